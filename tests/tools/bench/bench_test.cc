// SPDX-License-Identifier: Apache-2.0

// That the benchmark runs and what its output looks like; never how fast.

#include <sys/wait.h>

#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/demo_pair.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Outcome {
  int status = -1;
  std::string out;  // And what went to stderr.
};

Outcome Bench(const std::string& flags) {
  Outcome outcome;
  const std::string command =
      testing::Runfile("tools/bench/bench") + " " + flags + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (fgets(buffer, sizeof(buffer), pipe) != nullptr) outcome.out += buffer;
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

std::string Model(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

const char kQuick[] = "--threads=1 --decode=3 --repetitions=2 --sessions=2 ";

// [test, way, rollback, draft_tokens > 0]
using Key = std::vector<std::string>;

TEST(BenchTest, JsonLines) {
  const Outcome outcome = Bench(
      std::string(kQuick) + "--format=json --prompt=5 --target=" + Model("t") +
      " --draft=" + Model("t_draft"));
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  std::vector<Key> keys;
  for (const auto& text :
       absl::StrSplit(outcome.out, '\n', absl::SkipEmpty())) {
    const auto line = nlohmann::json::parse(text.begin(), text.end(),
                                            /*cb=*/nullptr,
                                            /*allow_exceptions=*/false);
    ASSERT_TRUE(line.is_object()) << text;
    std::set<std::string> names;
    for (const auto& member : line.items()) names.insert(member.key());
    EXPECT_THAT(names, UnorderedElementsAre(
                           "test", "way", "rollback", "weights", "threads",
                           "draft_tokens", "n", "ms_median", "ms_min", "ms_max",
                           "tokens_per_second", "tokens_per_step", "ratio",
                           "ratio_min", "ratio_max"));
    EXPECT_EQ(line["weights"], "f32");
    EXPECT_EQ(line["threads"], 1);
    EXPECT_EQ(line["n"], line["test"] == "sessions" ? 2 : 3);
    EXPECT_LE(line["ms_min"], line["ms_median"]);
    EXPECT_LE(line["ms_median"], line["ms_max"]);
    EXPECT_GT(line["tokens_per_second"], 0.0);
    EXPECT_GE(line["tokens_per_step"], 1.0);
    EXPECT_LE(line["ratio_min"], line["ratio_max"]);
    keys.push_back({line["test"], line["way"], line["rollback"],
                    line["draft_tokens"] == 0 ? "0" : "K"});
  }
  EXPECT_THAT(keys, ::testing::ElementsAre(
                        Key{"decode", "plain", "journal", "0"},
                        Key{"decode", "plain", "slots", "0"},
                        Key{"spec", "plain", "journal", "0"},
                        Key{"spec", "drafts", "journal", "K"},
                        Key{"spec", "drafts", "slots", "K"},
                        Key{"sessions", "apart", "journal", "0"},
                        Key{"sessions", "together", "journal", "0"},
                        Key{"sessions", "apart", "journal", "K"},
                        Key{"sessions", "together", "journal", "K"}));
}

TEST(BenchTest, TableOfTheDefaultPair) {
  const Outcome outcome = Bench(
      "--threads=1 --decode=2 --repetitions=1 --sessions=0 "
      "--rollback=slots");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  const std::vector<std::string> lines =
      absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u) << outcome.out;
  EXPECT_THAT(lines[0], HasSubstr("1 threads"));
  EXPECT_THAT(lines[1], HasSubstr("tokens/s"));
  for (size_t i = 2; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[1].size());
    EXPECT_THAT(lines[i], HasSubstr("slots"));
  }
}

TEST(BenchTest, BadFlagsAreNamed) {
  for (const auto& [flags, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"--format=xml", "--format is \"xml\""},
           {"--rollback=journal,none", "--rollback is \"none\""},
           {"--threads=1,x", "--threads is \"x\""},
           {"--decode=0", "--decode is \"0\"; allowed is 1 or more"},
           {"--draft=x.gdn", "--draft needs --target"},
           {"--target=/nonexistent.gdn", "nonexistent.gdn"},
           {"fast", "\"fast\" is not expected"}}) {
    const Outcome outcome = Bench(flags);
    EXPECT_NE(outcome.status, 0) << flags;
    EXPECT_THAT(outcome.out, HasSubstr("error: ")) << flags;
    EXPECT_THAT(outcome.out, HasSubstr(message)) << flags;
  }
}

}  // namespace
}  // namespace deltaedge
