// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/scored_text.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Every byte is a token in the test's model.
class ScoredTextTest : public ::testing::Test {
 protected:
  ScoredTextTest() {
    auto model = ModelFile::Open(
        testing::Runfile("tests/testdata/models/quant_f32.gdn"));
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  absl::StatusOr<std::vector<TextWindow>> Read(const std::string& name,
                                               const std::string& text,
                                               int32_t context,
                                               int64_t tokens = 0) {
    testing::WriteBytes(folder_.path() + "/" + name, text);
    return ReadScoredText(folder_.path() + "/" + name, *model_, context,
                          tokens);
  }

  // What the scored rows are of.
  static std::string Scored(const std::vector<TextWindow>& windows) {
    std::string text;
    for (const TextWindow& window : windows) {
      for (const int32_t row : window.scored) {
        const TokenId token = window.tokens[row + 1];
        text += token == kByteTurnEnd ? '$' : static_cast<char>(token);
      }
      text += '|';
    }
    return text;
  }

  testing::TempFolder folder_;
  std::unique_ptr<ModelFile> model_;
};

TEST_F(ScoredTextTest, PlainTextCountsButForTheFirstOfEachWindow) {
  auto windows = Read("a.txt", "abcdefg", 3);
  ASSERT_TRUE(windows.ok()) << windows.status();
  ASSERT_THAT(*windows, SizeIs(2));
  EXPECT_THAT((*windows)[1].tokens, ElementsAre('d', 'e', 'f'));
  EXPECT_THAT((*windows)[1].scored, ElementsAre(0, 1));
  EXPECT_EQ(Scored(*windows), "bc|ef|");
  windows = Read("a.txt", "abcdefg", 3, 3);
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(Scored(*windows), "bc|e|");
  windows = Read("a.txt", "a<|im_end|>b", 10);
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(Scored(*windows), "$b|");
}

TEST_F(ScoredTextTest, OfConversationsTheAnswersCount) {
  const std::string text =
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"},)"
      R"( {"role": "assistant", "content": "first"},)"
      R"( {"role": "user", "content": "r"},)"
      R"( {"role": "assistant", "content": "second"}])"
      "\n\n"
      R"([{"role": "user", "content": "x"}, {"role": "assistant",)"
      R"( "content": "third"}])";
  auto windows = Read("a.jsonl", text, 500);
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(Scored(*windows), "first$second$|third$|");
  EXPECT_EQ((*windows)[1].tokens[0], kByteTurnStart);
  // Windows in which nothing counts are left out.
  windows = Read("a.jsonl", text, 4);
  ASSERT_TRUE(windows.ok()) << windows.status();
  for (const TextWindow& window : *windows) {
    EXPECT_THAT(window.scored, ::testing::Not(::testing::IsEmpty()));
    EXPECT_LE(window.tokens.size(), 4u);
  }
}

TEST_F(ScoredTextTest, ErrorsNameTheFileAndTheLine) {
  const std::string good = R"([{"role": "user", "content": "x"}])";
  for (const auto& [name, text, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"a.txt", "", "nothing in it can be scored"},
           {"a.txt", "x", "nothing in it can be scored"},
           {"a.txt", "x\xff", "a.txt"},
           {"a.jsonl", good, "in an assistant's answer"},
           {"a.jsonl", good + "\n{", "line 2"},
           {"a.jsonl", good + "\n[]", "line 2: [] is no conversation"},
           {"a.jsonl", R"([{"role": "tool", "content": "x"}])", "line 1"},
           {"a.jsonl", R"([{"role": "user"}])", "is no conversation"}}) {
    const absl::Status status = Read(name, text, 100).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
  EXPECT_TRUE(absl::IsNotFound(
      ReadScoredText(folder_.path() + "/none", *model_, 10, 0).status()));
}

}  // namespace
}  // namespace deltaedge
