// SPDX-License-Identifier: Apache-2.0

// What the program says and answers to a shell.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/program.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runfile;

using Args = std::vector<std::string>;

const std::string kModel = Runfile("tests/testdata/model/target_v1.gdn");

Outcome Inspect(const Args& args) {
  testing::Launch launch;
  launch.path = Runfile("tools/inspect/inspect");
  launch.args = args;
  return testing::RunToEnd(launch);
}

TEST(InspectCliTest, AnswersOnStandardOutput) {
  for (const auto& [args, words] : std::vector<std::pair<Args, std::string>>{
           {{kModel}, "layers.0.gdn.in_qkv"},
           {{kModel, "--json"}, "\"kind\": \"target\""},
           {{"--verify", kModel}, "right"},
           {{kModel, "--tensor=embedding"}, "rms"},
           {{kModel, "--tensor=embedding", "--json"}, "\"max\": 1.9375"}}) {
    const Outcome outcome = Inspect(args);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(words));
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(InspectCliTest, ErrorsAreOnStandardError) {
  for (const auto& [args, words] : std::vector<std::pair<Args, std::string>>{
           {{}, "exactly one model file"},
           {{kModel, kModel}, "exactly one model file"},
           {{kModel, "--tensor=embed"},
            "no tensor 'embed'; there are embedding"},
           {{"none.gdn"}, "none.gdn"}}) {
    const Outcome outcome = Inspect(args);
    EXPECT_EQ(outcome.status, 1) << words;
    EXPECT_EQ(outcome.out, "") << words;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  }
}

}  // namespace
}  // namespace deltaedge
