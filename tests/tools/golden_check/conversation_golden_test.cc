// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/emulated.h"
#include "tests/tools/convert/temp_folder.h"
#include "tests/tools/golden_check/golden_files.h"
#include "tools/golden_check/golden_check.h"
#include "tools/golden_check/report.h"

namespace deltaedge {
namespace {

using testing::ReadBytes;
using testing::Runfile;
using testing::TempFolder;

class ConversationsTest : public ::testing::Test {
 protected:
  ConversationsTest()
      : golden_(nlohmann::json::parse(
            ReadBytes(Runfile("tests/testdata/demo/goldens.json")))) {}

  // Keeps the shortest `count` conversations of `turns` turns.
  void Keep(size_t count, size_t turns) {
    std::multimap<size_t, nlohmann::json> by_length;
    for (const nlohmann::json& conversation : golden_["conversations"]) {
      if (conversation["turns"].size() != turns) continue;
      size_t length = 0;
      for (const nlohmann::json& turn : conversation["turns"]) {
        length += turn["answer_ids"].size();
      }
      by_length.emplace(length, conversation);
    }
    ASSERT_GE(by_length.size(), count);
    nlohmann::json kept = nlohmann::json::array();
    for (const auto& [length, conversation] : by_length) {
      if (kept.size() < count) kept.push_back(conversation);
    }
    golden_["conversations"] = kept;
  }

  nlohmann::json& turn(int i) {
    return golden_["conversations"][0]["turns"][i];
  }

  GoldenCheckOptions Options() {
    GoldenCheckOptions options;
    options.golden = folder_.Write("golden.json", golden_.dump());
    options.model = Runfile("examples/chat/model/target.gdn");
    options.draft = Runfile("examples/chat/model/draft.gdn");
    return options;
  }

  // Runs the check, which must fail in `names`, and in nothing else.
  void ExpectFailures(const std::vector<std::string>& names) {
    Report report(stdout);
    const absl::Status status = RunGoldenCheck(Options(), &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.failures(), names);
    EXPECT_EQ(report.ok(), names.empty());
  }

  TempFolder folder_;
  nlohmann::json golden_;
};

TEST_F(ConversationsTest, AllPass) {
  nlohmann::json& conversations = golden_["conversations"];
  const size_t all = conversations.size();
  const size_t some = testing::FewerIfEmulated<size_t>("conversations", all, 3);
  conversations.erase(conversations.begin() + some, conversations.end());
  int64_t turns = 0;
  for (const nlohmann::json& conversation : conversations) {
    turns += conversation["turns"].size();
  }
  if (some == all) {
    EXPECT_EQ(turns, 97);
  }
  Report report(stdout);
  ASSERT_TRUE(RunGoldenCheck(Options(), &report).ok());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.passed(), 4 * turns);
  EXPECT_EQ(report.not_run(), 0);
}

TEST_F(ConversationsTest, PassWithoutDraft) {
  const int count =
      testing::FewerIfEmulated("conversations without a draft", 3, 1);
  Keep(count, 3);
  GoldenCheckOptions options = Options();
  options.draft.clear();
  Report report(stdout);
  ASSERT_TRUE(RunGoldenCheck(options, &report).ok());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.passed(), count * 9);
  EXPECT_EQ(report.not_run(), 1);
}

TEST_F(ConversationsTest, AnswerAndText) {
  Keep(1, 2);
  turn(0)["answer_ids"][2] = 5;
  turn(1)["answer"] = "?";
  ExpectFailures({"c0.t0.answer_ids", "c0.t0.answer", "c0.t1.answer"});
}

TEST_F(ConversationsTest, StepThatBringsMore) {
  Keep(1, 2);
  turn(1)["accepted"][0] = turn(1)["accepted"][0].get<int>() - 1;
  ExpectFailures({"c0.t1.accepted"});
}

TEST_F(ConversationsTest, Prompt) {
  Keep(1, 2);
  golden_["conversations"][0]["messages"][0]["content"] = "What is a horse?";
  ExpectFailures({"c0.t0.prompt_ids", "c0.t1.prompt_ids"});
}

TEST_F(ConversationsTest, TiesAreExcused) {
  Keep(1, 2);
  turn(0)["accepted"][0] = 1;
  turn(0)["draft_margin"] = 5e-4;
  turn(1)["answer_ids"][1] = 5;
  turn(1)["margin"] = 5e-4;
  // What follows a difference is another answer: only its text is compared.
  ExpectFailures({"c0.t1.answer"});
}

TEST_F(ConversationsTest, DraftMarginDoesNotExcuseTheAnswer) {
  Keep(1, 2);
  turn(0)["answer_ids"][2] = 5;
  turn(0)["draft_margin"] = 5e-4;
  ExpectFailures({"c0.t0.answer_ids", "c0.t0.answer"});
}

TEST_F(ConversationsTest, NotAsTheFormatSays) {
  Keep(1, 2);
  turn(0).erase("answer_ids");
  ExpectFailures({"conversation 0"});
}

}  // namespace
}  // namespace deltaedge
