// SPDX-License-Identifier: Apache-2.0

// Model files that are sound as files and that only the engine can refuse.

#include <string>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/model/model_contents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

ModelContents ByteModel() {
  ModelContents contents = testing::TinyTarget();
  contents.target.vocab_size = kByteTokens;
  contents.tokenizer = ByteTokenizer(kByteTokens);
  contents.chat = ByteChat();
  return contents;
}

absl::Status WriteAndOpen(const std::string& path,
                          const ModelContents& contents) {
  EXPECT_EQ(
      testing::WriteTinyModel(path, contents, testing::kTinyTargetFingerprint),
      absl::OkStatus());
  return Engine::Open({path, ""}, {/*num_threads=*/1}).status();
}

TEST(OpenTest, ErrorsOfTablesNameTheFile) {
  const std::string path = testing::TempPath("tables.gdn");
  EXPECT_EQ(WriteAndOpen(path, ByteModel()), absl::OkStatus());
  const auto expect = [&](const ModelContents& contents,
                          const std::string& text) {
    const absl::Status status = WriteAndOpen(path, contents);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(path));
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  expect(testing::TinyTarget(), "byte 0x00 has no token");

  ModelContents contents = ByteModel();
  contents.tokenizer->added.front().single_word = true;
  expect(contents, "single_word");

  contents = ByteModel();
  contents.tokenizer->pretokenizer = "(";
  expect(contents, "pretokenizer expression is unsound");

  contents = ByteModel();
  contents.chat->turn_start = "no marker";
  expect(contents, "turn_start is \"no marker\"");
}

}  // namespace
}  // namespace deltaedge
