// SPDX-License-Identifier: Apache-2.0

#include "engine/text/bpe_tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/nfc.h"
#include "engine/tokenizer.h"
#include "engine/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/text/golden.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeTokenizer;
using testing::ReadGolden;
using testing::ReadTokenizer;

constexpr const char* kMinis[] = {"mini_qwen3_regex", "mini_qwen35_regex"};

std::vector<TokenId> Encode(
    const Tokenizer& tokenizer, absl::string_view text,
    Tokenizer::Special special = Tokenizer::Special::kAsToken) {
  absl::StatusOr<std::vector<TokenId>> ids = tokenizer.Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : std::vector<TokenId>{-1};
}

// Ids 0 .. 255 are the bytes; "ab", "bc", "abc" and "aa" follow.
TokenizerTables LetterTables() {
  TokenizerTables tables;
  for (int byte = 0; byte < 256; ++byte) {
    tables.token_bytes.push_back(std::string(1, static_cast<char>(byte)));
  }
  for (const char* token : {"ab", "bc", "abc", "aa"}) {
    tables.token_bytes.push_back(token);
  }
  tables.merges = {{'b', 'c', 257}, {'a', 'b', 256}, {'a', 'a', 259}};
  tables.pretokenizer = "[a-z]+";
  tables.vocab_size = 260;
  return tables;
}

int32_t AddToken(TokenizerTables* tables, const std::string& text, bool special,
                 bool normalized = false) {
  AddedToken token;
  token.id = static_cast<TokenId>(tables->token_bytes.size());
  token.text = text;
  token.special = special;
  token.normalized = normalized;
  tables->token_bytes.push_back(text);
  tables->added.push_back(token);
  tables->vocab_size = token.id + 1;
  return token.id;
}

TEST(BpeTokenizer, EncodesAsTheReference) {
  const nlohmann::json golden = ReadGolden("encode.json");
  ASSERT_GT(golden.size(), 300u);
  int as_text = 0;
  for (const std::string mini : kMinis) {
    const auto tokenizer = ReadTokenizer(mini + ".tokenizer.json");
    ASSERT_NE(tokenizer, nullptr);
    for (const nlohmann::json& c : golden) {
      const std::string& text = c["text"].get_ref<const std::string&>();
      const nlohmann::json& expected = c[mini];
      const auto ids = expected["ids"].get<std::vector<TokenId>>();
      EXPECT_EQ(Encode(*tokenizer, text), ids) << mini << ": " << c["text"];
      if (expected.contains("ids_special_as_text")) {
        EXPECT_EQ(Encode(*tokenizer, text, Tokenizer::Special::kAsText),
                  expected["ids_special_as_text"].get<std::vector<TokenId>>())
            << mini << ": " << c["text"];
        ++as_text;
      }
      const std::string decoded = expected.value("decoded", text);
      EXPECT_EQ(testing::Decode(*tokenizer, ids), decoded);
      EXPECT_EQ(
          testing::Decode(*tokenizer, ids, StreamDecoder::SpecialTokens::kSkip),
          expected.value("decoded_skip_special", decoded));
    }
  }
}

TEST(BpeTokenizer, RandomTextsComeBackNormalised) {
  const auto tokenizer = ReadTokenizer("mini_qwen35_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"a",
                                          "the ",
                                          " ",
                                          "\n",
                                          "\r\n",
                                          "\t",
                                          "'s",
                                          "12",
                                          "e\xCC\x81",
                                          "\xC3\xA9",
                                          "\xE4\xB8\xAD",
                                          "\xF0\x9F\x98\x80",
                                          "\xE0\xA4\xA8\xE0\xA5\x87",
                                          "<|im_end|>",
                                          "<think>",
                                          "<|",
                                          "\xE2\x80\x8D",
                                          "\xE1\x84\x80\xE1\x85\xA1",
                                          std::string(1, '\0'),
                                          "!?",
                                          "\xC2\xA0"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const int length = static_cast<int>(random() % 20);
    for (int j = 0; j < length; ++j) text += parts[random() % parts.size()];
    for (const auto special :
         {Tokenizer::Special::kAsText, Tokenizer::Special::kAsToken}) {
      const std::vector<TokenId> ids = Encode(*tokenizer, text, special);
      const absl::StatusOr<std::string> normalised = Nfc(text);
      ASSERT_TRUE(normalised.ok());
      ASSERT_EQ(testing::Decode(*tokenizer, ids), *normalised);
    }
  }
}

// A run of one letter that merges to any length: quadratic merging would take
// minutes.
TEST(BpeTokenizer, MegabyteOfOneLetter) {
  const auto tokenizer = ReadTokenizer("mini_qwen35_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  for (const char c : {'x', 'q', ' ', '\n', '!'}) {
    const std::string text(1 << 20, c);
    const std::vector<TokenId> ids = Encode(*tokenizer, text);
    EXPECT_EQ(testing::Decode(*tokenizer, ids), text);
    if (c == 'x') {
      EXPECT_LT(ids.size(), text.size() / 4);
    }
  }
}

TEST(BpeTokenizer, MergesByRankThenFromTheLeft) {
  const auto tokenizer = MakeTokenizer(LetterTables());
  ASSERT_NE(tokenizer, nullptr);
  // "bc" ranks before "ab"; "a" + "bc" has no merge.
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre('a', 257));
  EXPECT_THAT(Encode(*tokenizer, "abab"), ElementsAre(256, 256));
  EXPECT_THAT(Encode(*tokenizer, "aaa"), ElementsAre(259, 'a'));
  EXPECT_THAT(Encode(*tokenizer, "aab"), ElementsAre('a', 256));
  // Not across pieces.
  EXPECT_THAT(Encode(*tokenizer, "a1b"), ElementsAre('a', '1', 'b'));
  EXPECT_THAT(Encode(*tokenizer, ""), IsEmpty());
}

TEST(BpeTokenizer, IgnoreMergesKeepsWholePieces) {
  TokenizerTables tables = LetterTables();
  tables.ignore_merges = true;
  const auto tokenizer = MakeTokenizer(std::move(tables));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(258));
  EXPECT_THAT(Encode(*tokenizer, "abca"), ElementsAre('a', 257, 'a'));
}

TEST(BpeTokenizer, LongestAddedTokenWins) {
  TokenizerTables tables = LetterTables();
  const TokenId shorter = AddToken(&tables, "<a>", /*special=*/false);
  const TokenId longer = AddToken(&tables, "<a><a>b", /*special=*/false);
  const auto tokenizer = MakeTokenizer(std::move(tables));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(Encode(*tokenizer, "<a><a>b<a>"), ElementsAre(longer, shorter));
  EXPECT_THAT(Encode(*tokenizer, "<a><a>a"),
              ElementsAre(shorter, shorter, 'a'));
}

// Case C23: whoever types a marker gets its characters, and nothing inside it
// counts.
TEST(BpeTokenizer, SpecialTokensCannotBeTyped) {
  TokenizerTables tables = LetterTables();
  const TokenId marker = AddToken(&tables, "<|ab|>", /*special=*/true);
  const TokenId word = AddToken(&tables, "|ab|", /*special=*/false);
  const auto tokenizer = MakeTokenizer(std::move(tables));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->IsSpecial(marker));
  EXPECT_FALSE(tokenizer->IsSpecial(word));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 20));

  EXPECT_THAT(Encode(*tokenizer, "a<|ab|>"), ElementsAre('a', marker));
  EXPECT_THAT(Encode(*tokenizer, "a<|ab|>", Tokenizer::Special::kAsText),
              ElementsAre('a', '<', '|', 256, '|', '>'));
  EXPECT_THAT(Encode(*tokenizer, "|ab|", Tokenizer::Special::kAsText),
              ElementsAre(word));
}

TEST(BpeTokenizer, NormalizedTokensAreFoundAfterNormalisation) {
  TokenizerTables tables = LetterTables();
  tables.nfc = true;
  const TokenId composed =
      AddToken(&tables, "\xC3\xA9", /*special=*/false, /*normalized=*/true);
  const TokenId raw = AddToken(&tables, "e\xCC\x81!", /*special=*/false);
  const auto tokenizer = MakeTokenizer(std::move(tables));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(Encode(*tokenizer, "ae\xCC\x81"), ElementsAre('a', composed));
  EXPECT_THAT(Encode(*tokenizer, "ae\xCC\x81!"), ElementsAre('a', raw));
}

// Case C21: lone surrogates and other bytes that are no text.
TEST(BpeTokenizer, TextMustBeUtf8) {
  const auto tokenizer = MakeTokenizer(LetterTables());
  ASSERT_NE(tokenizer, nullptr);
  for (const absl::string_view tail :
       {"\x80", "\xC3", "\xED\xA0\x80", "\xF0\x9F\x98", "\xFF"}) {
    const absl::Status status = tokenizer
                                    ->Encode("ab\xC3\xA9" + std::string(tail),
                                             Tokenizer::Special::kAsText)
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("byte 4"));
  }
}

TEST(BpeTokenizer, IdsBeyondTheTokensArePadding) {
  TokenizerTables tables = LetterTables();
  tables.token_bytes.insert(tables.token_bytes.end(), {"", ""});  // A hole.
  tables.vocab_size = 300;
  const auto tokenizer = MakeTokenizer(std::move(tables));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  EXPECT_EQ(tokenizer->Bytes(256).value(), "ab");
  EXPECT_EQ(tokenizer->Bytes(260).value(), "");
  EXPECT_EQ(tokenizer->Bytes(299).value(), "");
  for (const TokenId id : {-1, 300, 1 << 30}) {
    const absl::Status status = tokenizer->Bytes(id).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(id)));
  }
}

TEST(BpeTokenizer, RefusesTextsThatAreTooLong) {
  const auto tokenizer = ReadTokenizer("mini_qwen3_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  constexpr size_t kMost = size_t{1} << 28;
  const std::string text(kMost + 1, 'a');
  const absl::Status status =
      tokenizer->Encode(text, Tokenizer::Special::kAsText).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(kMost + 1)));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(kMost)));
}

TEST(BpeTokenizer, ThreadsShareIt) {
  const auto tokenizer = ReadTokenizer("mini_qwen3_regex.tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "Hello, world! e\xCC\x81 12 <think> the end\n";
  const std::vector<TokenId> expected = Encode(*tokenizer, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        EXPECT_EQ(Encode(*tokenizer, text), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BpeTokenizer, RefusesUnsoundTables) {
  const struct {
    const char* message;
    std::function<void(TokenizerTables*)> damage;
  } cases[] = {
      {"vocab_size is 259", [](TokenizerTables* t) { t->vocab_size = 259; }},
      {"vocab_size is -1", [](TokenizerTables* t) { t->vocab_size = -1; }},
      {"byte 0x61 has no token",
       [](TokenizerTables* t) { t->token_bytes['a'] = "zz"; }},
      {"merge 1 (97 98 -> 999)",
       [](TokenizerTables* t) { t->merges[1].result = 999; }},
      {"merge 0 (-5", [](TokenizerTables* t) { t->merges[0].left = -5; }},
      {"merge 2: token 256 is not token 97 followed by token 97",
       [](TokenizerTables* t) { t->merges[2].result = 256; }},
      {"pretokenizer expression",
       [](TokenizerTables* t) { t->pretokenizer = "("; }},
      {"added token 0 (id 260) sets lstrip",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added[0].lstrip = true;
       }},
      {"sets rstrip",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added[0].rstrip = true;
       }},
      {"sets single_word",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added[0].single_word = true;
       }},
      {"added token 0 (id 777) is not among",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added[0].id = 777;
       }},
      {"spelt otherwise",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added[0].text = "<y>";
       }},
      {"empty or spelt otherwise",
       [](TokenizerTables* t) { AddToken(t, "", true); }},
      {"not UTF-8", [](TokenizerTables* t) { AddToken(t, "\xFF", true); }},
      {"comes twice",
       [](TokenizerTables* t) {
         AddToken(t, "<x>", true);
         t->added.push_back(t->added[0]);
       }},
  };
  for (const auto& c : cases) {
    TokenizerTables tables = LetterTables();
    c.damage(&tables);
    const absl::Status status = MakeBpeTokenizer(std::move(tables)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
  EXPECT_FALSE(MakeBpeTokenizer({}).ok());
}

}  // namespace
}  // namespace deltaedge
