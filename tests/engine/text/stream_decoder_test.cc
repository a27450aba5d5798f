// SPDX-License-Identifier: Apache-2.0

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "engine/tokenizer.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/text/golden.h"

namespace deltaedge {
namespace {

using testing::ReadGolden;
using testing::ReadTokenizer;

TEST(StreamDecoder, DecodesAsTheReference) {
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  int cases = 0, prefixes = 0;
  for (const nlohmann::json& c : ReadGolden("decode_ids.json")) {
    const std::string name = c["tok"].get<std::string>();
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[name];
    if (tokenizer == nullptr) {
      tokenizer = ReadTokenizer(name + ".tokenizer.json");
    }
    ASSERT_NE(tokenizer, nullptr);
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    const std::string decoded = c["decoded"].get<std::string>();
    EXPECT_EQ(testing::Decode(*tokenizer, ids), decoded);
    EXPECT_EQ(
        testing::Decode(*tokenizer, ids, StreamDecoder::SpecialTokens::kSkip),
        c.value("decoded_skip_special", decoded));
    ++cases;
    if (!c.contains("prefix_decodes")) continue;

    StreamDecoder decoder(tokenizer.get());
    std::string streamed;
    for (size_t i = 0; i < ids.size(); ++i) {
      const absl::StatusOr<absl::string_view> part = decoder.Push(ids[i]);
      ASSERT_TRUE(part.ok());
      EXPECT_TRUE(CheckUtf8(*part, "part").ok());
      streamed.append(part->data(), part->size());
      StreamDecoder copy = decoder;
      EXPECT_EQ(streamed + copy.Flush(),
                c["prefix_decodes"][i].get<std::string>());
      ++prefixes;
    }
  }
  EXPECT_GT(cases, 200);
  EXPECT_GT(prefixes, 200);
}

TEST(StreamDecoder, HoldsCharactersBackUntilTheyAreWhole) {
  const auto tokenizer = ReadTokenizer("mini_qwen35_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  // The single bytes of U+1F600, which has no token of its own here.
  const std::vector<TokenId> bytes = {172, 253, 246, 222};
  StreamDecoder decoder(tokenizer.get());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(decoder.Push(bytes[i]).value(), "");
  EXPECT_EQ(decoder.Push(bytes[3]).value(), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.Flush(), "");

  // A tail that stays broken, and a new start.
  EXPECT_EQ(decoder.Push(bytes[0]).value(), "");
  EXPECT_EQ(decoder.Flush(), kReplacementCharacter);
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(decoder.Push(64).value(), "a");
}

TEST(StreamDecoder, WrongIdChangesNothing) {
  const auto tokenizer = ReadTokenizer("mini_qwen35_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  StreamDecoder decoder(tokenizer.get());
  EXPECT_EQ(decoder.Push(172).value(), "");
  EXPECT_EQ(decoder.Push(-1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(decoder.Push(1 << 20).status().code(),
            absl::StatusCode::kOutOfRange);
  for (const TokenId id : {253, 246}) EXPECT_EQ(decoder.Push(id).value(), "");
  EXPECT_EQ(decoder.Push(222).value(), "\xF0\x9F\x98\x80");
}

TEST(StreamDecoder, SkippedTokensDoNotSplitCharacters) {
  const auto tokenizer = ReadTokenizer("mini_qwen35_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  constexpr TokenId kImEnd = 1102;
  const std::vector<TokenId> ids = {172, 253, kImEnd, 246, 222};
  EXPECT_EQ(
      testing::Decode(*tokenizer, ids, StreamDecoder::SpecialTokens::kSkip),
      "\xF0\x9F\x98\x80");
  EXPECT_EQ(testing::Decode(*tokenizer, ids),
            "\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace deltaedge
