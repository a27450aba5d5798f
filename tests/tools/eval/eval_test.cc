// SPDX-License-Identifier: Apache-2.0

// The program: its two ways to be called, its output, its errors.

#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/demo_pair.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string out;  // And what went to stderr.
};

Outcome Eval(const std::string& flags) {
  Outcome outcome;
  const std::string command =
      testing::Runfile("tools/eval/eval") + " --threads=1 " + flags + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (fgets(buffer, sizeof(buffer), pipe) != nullptr) outcome.out += buffer;
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

std::vector<nlohmann::json> Lines(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (const auto& text : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(text.begin(), text.end(),
                                          /*cb=*/nullptr,
                                          /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << text;
  }
  return lines;
}

std::string Model(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

TEST(EvalTest, FilesAsJson) {
  const testing::TempFolder folder;
  const std::string text = folder.path() + "/text";
  testing::WriteBytes(text, std::string(200, 'a') + "and so on");
  const Outcome outcome =
      Eval("--format=json --context=64 --tokens=100 --text=" + text +
           " --reference=" + Model("quant_f32") +
           " --target=" + Model("quant_f32") + " " + Model("quant_q4"));
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  const std::vector<nlohmann::json> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["weights"], "quant_f32.gdn");
  EXPECT_EQ(lines[0]["tokens"], 100);
  EXPECT_EQ(lines[0]["kl_max"], 0.0);
  EXPECT_EQ(lines[0]["agreement"], 1.0);
  EXPECT_EQ(lines[0]["perplexity_ratio"], 1.0);
  EXPECT_EQ(lines[0]["perplexity"], lines[0]["reference_perplexity"]);
  EXPECT_EQ(lines[1]["weights"], "quant_q4.gdn");
  EXPECT_LT(lines[1]["file_bytes"], lines[0]["file_bytes"]);
  EXPECT_GT(lines[1]["kl_mean"], 0.0);
  EXPECT_LE(lines[1]["kl_median"], lines[1]["kl_p99"]);
  EXPECT_LE(lines[1]["kl_p99"], lines[1]["kl_max"]);
}

TEST(EvalTest, RecipesOfTheDefaultCheckpoint) {
  const Outcome outcome = Eval("--tokens=40 --recipes=q8,'q4 head=q8'");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  const std::vector<std::string> lines =
      absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u) << outcome.out;
  EXPECT_THAT(lines[0], HasSubstr("40 tokens; reference f32"));
  EXPECT_THAT(lines[2], ::testing::StartsWith("q8 "));
  EXPECT_THAT(lines[3], ::testing::StartsWith("q4 head=q8 "));
  for (size_t i = 2; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[1].size());
  }
}

TEST(EvalTest, BadFlagsAreNamed) {
  const std::string f32 = Model("quant_f32");
  for (const auto& [flags, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"--format=xml", "--format is \"xml\""},
           {"--context=1", "--context is 1; allowed is 2 or more"},
           {"--tokens=-1", "--tokens is -1"},
           {"--recipes=q8,q5", "\"q5\" is no type of weights"},
           {"--recipes=", "--recipes is empty"},
           {"--checkpoint=/nonexistent", "/nonexistent"},
           {"--text=/nonexistent", "/nonexistent"},
           {"--reference=" + f32, "--reference needs --target"},
           {f32, "--target needs --reference"},
           {"--checkpoint=x --reference=" + f32 + " " + f32,
            "--checkpoint is instead of"},
           {"--reference=" + f32 + " --target=" + Model("t"),
            "of another checkpoint"}}) {
    const Outcome outcome = Eval(flags);
    EXPECT_EQ(outcome.status, 1) << flags;
    EXPECT_THAT(outcome.out, HasSubstr("error: ")) << flags;
    EXPECT_THAT(outcome.out, HasSubstr(message)) << flags;
  }
}

}  // namespace
}  // namespace deltaedge
