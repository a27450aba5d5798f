// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tokenizer_json.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/model/tokenizer_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr char kDemo[] = "tests/testdata/tokenizer/demo/tokenizer.json";

// A small file of the kind that is taken.
Json SmallFile() {
  return Json::parse(R"json({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 4, "content": "<|x|>", "single_word": false, "lstrip": false,
       "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated",
       "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
       "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true,
                "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
      "continuing_subword_prefix": "", "end_of_word_suffix": null,
      "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"a": 0, "\u0120": 1, "\u0120a": 2, "\u00e9": 3},
      "merges": ["\u0120 a"]}
  })json");
}

TEST(TokenizerJson, ReadsTheDemo) {
  const absl::StatusOr<TokenizerTables> tables = ReadTokenizerJson(kDemo);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(tables->vocab_size, 4096);
  ASSERT_EQ(tables->token_bytes.size(), 4096u);
  EXPECT_EQ(tables->merges.size(), 3834u);
  EXPECT_EQ(tables->added.size(), 6u);
  EXPECT_EQ(tables->added[1].id, 4091);
  EXPECT_EQ(tables->added[1].text, "<|im_start|>");
  EXPECT_TRUE(tables->added[1].special);
  EXPECT_EQ(tables->added[3].text, "<think>");
  EXPECT_FALSE(tables->added[3].special);
  EXPECT_EQ(tables->token_bytes[4093], "<think>");
  EXPECT_TRUE(tables->nfc);
  EXPECT_FALSE(tables->ignore_merges);
  EXPECT_THAT(tables->pretokenizer, StartsWith("(?i:'s|'t|"));
}

TEST(TokenizerJson, MapsBytesAndMerges) {
  const Json file = SmallFile();
  const absl::StatusOr<TokenizerTables> tables =
      ParseTokenizerJson(file.dump(), "t.json");
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(tables->token_bytes,
            (std::vector<std::string>{"a", " ", " a", "\xE9", "<|x|>"}));
  ASSERT_EQ(tables->merges.size(), 1u);
  EXPECT_EQ(tables->merges[0].left, 1);
  EXPECT_EQ(tables->merges[0].right, 0);
  EXPECT_EQ(tables->merges[0].result, 2);
  EXPECT_EQ(tables->pretokenizer, "\\s+");
}

// SmallFile() with one value set, or taken away if `value` is empty. `at` is a
// JSON pointer.
absl::StatusOr<TokenizerTables> ReadWith(const std::string& at,
                                         const std::string& value) {
  Json file = SmallFile();
  const Json::json_pointer pointer(at);
  if (value.empty()) {
    file[pointer.parent_pointer()].erase(pointer.back());
  } else {
    file[pointer] = Json::parse(value);
  }
  return ParseTokenizerJson(file.dump(), "dir/tokenizer.json");
}

TEST(TokenizerJson, OtherSpellingsOfTheSame) {
  const auto read = [](const std::string& at, const std::string& value) {
    absl::StatusOr<TokenizerTables> tables = ReadWith(at, value);
    EXPECT_TRUE(tables.ok()) << tables.status();
    return tables.ok() ? *tables : TokenizerTables{};
  };
  EXPECT_EQ(read("/model/merges", R"([["\u0120", "a"]])").merges[0].result, 2);
  EXPECT_TRUE(read("/model/ignore_merges", "true").ignore_merges);
  EXPECT_FALSE(read("/normalizer", "null").nfc);
  EXPECT_FALSE(
      read("/normalizer", R"({"type": "Sequence", "normalizers": []})").nfc);
  EXPECT_TRUE(read("/normalizer",
                   R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})")
                  .nfc);
  read("/post_processor",
       R"({"type": "ByteLevel", "add_prefix_space": false,
           "trim_offsets": false, "use_regex": false})");
  // A token that is in the vocabulary and added, too; a hole.
  EXPECT_EQ(read("/model/vocab/<|x|>", "4").vocab_size, 5);
  EXPECT_EQ(read("/added_tokens/0/id", "9").token_bytes[8], "");
}

TEST(TokenizerJson, RefusesByName) {
  constexpr char kNormalizers[] =
      R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})";
  constexpr char kTwice[] =
      R"({"id": 4, "content": "<|x|>", "single_word": false, "lstrip": false,
          "rstrip": false, "normalized": false, "special": true})";
  const struct {
    const char *message, *at, *value;
  } cases[] = {
      {"model.type is \"WordPiece\"", "/model/type", "\"WordPiece\""},
      {"model.type is missing", "/model/type", ""},
      {"model is missing", "/model", ""},
      {"model.dropout is 0.1", "/model/dropout", "0.1"},
      {"model.unk_token is \"<unk>\"", "/model/unk_token", "\"<unk>\""},
      {"model.continuing_subword_prefix is \"##\"",
       "/model/continuing_subword_prefix", "\"##\""},
      {"model.end_of_word_suffix is \"</w>\"", "/model/end_of_word_suffix",
       "\"</w>\""},
      {"model.fuse_unk is true", "/model/fuse_unk", "true"},
      {"model.byte_fallback is true", "/model/byte_fallback", "true"},
      {"model.ignore_merges is 1", "/model/ignore_merges", "1"},
      {"model.novelty (true) is not a key", "/model/novelty", "true"},
      {"novelty (1) is not a key", "/novelty", "1"},
      {"model.vocab is an array", "/model/vocab", "[]"},
      {"model.vocab[\"a\"] is -1", "/model/vocab/a", "-1"},
      {"model.vocab[\"a\"] is 1.5", "/model/vocab/a", "1.5"},
      {"model.vocab[\"a\"] is 18446744073709551615", "/model/vocab/a",
       "18446744073709551615"},
      {"model.vocab[\"a\"] is 16777216", "/model/vocab/a", "16777216"},
      {"the id of another token", "/model/vocab/\xC4\xA0", "0"},
      {"is not written in the byte alphabet", "/model/vocab/b c", "3"},
      {"is not written in the byte alphabet", "/model/vocab/\xE4\xB8\xAD", "7"},
      {"is not written in the byte alphabet", "/model/vocab/", "7"},
      {"model.merges is null", "/model/merges", "null"},
      {"model.merges[0] is \"a\"", "/model/merges", "[\"a\"]"},
      {"model.merges[0] is \"a b c\"", "/model/merges", "[\"a b c\"]"},
      {"model.merges[0] is an array of 3", "/model/merges",
       "[[\"a\", \"b\", \"c\"]]"},
      {"model.merges[0]: \"b\" is not in model.vocab", "/model/merges",
       "[\"a b\"]"},
      {"model.merges[0]: \"aa\" is not in model.vocab", "/model/merges",
       "[\"a a\"]"},
      {"normalizer.type is \"NFKC\"", "/normalizer/type", "\"NFKC\""},
      {"normalizer.normalizers[0].type is \"Lowercase\"", "/normalizer",
       kNormalizers},
      {"pre_tokenizer is null", "/pre_tokenizer", "null"},
      {"pre_tokenizer.type is \"Whitespace\"", "/pre_tokenizer",
       "{\"type\": \"Whitespace\"}"},
      {"pre_tokenizer.pretokenizers is an array of 1",
       "/pre_tokenizer/pretokenizers", "[7]"},
      {"pre_tokenizer.pretokenizers[0].behavior is \"Removed\"",
       "/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\""},
      {"pre_tokenizer.pretokenizers[0].invert is true",
       "/pre_tokenizer/pretokenizers/0/invert", "true"},
      {"pre_tokenizer.pretokenizers[0].pattern.String (\" \") is not a key",
       "/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}"},
      {"pre_tokenizer.pretokenizers[0].type is \"Digits\"",
       "/pre_tokenizer/pretokenizers/0/type", "\"Digits\""},
      {"pre_tokenizer.pretokenizers[1].add_prefix_space is true",
       "/pre_tokenizer/pretokenizers/1/add_prefix_space", "true"},
      {"pre_tokenizer.pretokenizers[1].use_regex is true",
       "/pre_tokenizer/pretokenizers/1/use_regex", "true"},
      {"pre_tokenizer.pretokenizers[1].use_regex is missing",
       "/pre_tokenizer/pretokenizers/1/use_regex", ""},
      {"post_processor.type is \"TemplateProcessing\"", "/post_processor",
       "{\"type\": \"TemplateProcessing\"}"},
      {"decoder.type is \"Metaspace\"", "/decoder/type", "\"Metaspace\""},
      {"decoder is null", "/decoder", "null"},
      {"truncation is an object", "/truncation", "{\"max_length\": 5}"},
      {"padding is an object", "/padding", "{\"pad_id\": 5}"},
      {"version is \"2.0\"", "/version", "\"2.0\""},
      {"added_tokens is an object", "/added_tokens", "{}"},
      {"added_tokens[0].lstrip is true", "/added_tokens/0/lstrip", "true"},
      {"added_tokens[0].rstrip is true", "/added_tokens/0/rstrip", "true"},
      {"added_tokens[0].single_word is true", "/added_tokens/0/single_word",
       "true"},
      {"added_tokens[0].special is missing", "/added_tokens/0/special", ""},
      {"added_tokens[0].content is \"\"", "/added_tokens/0/content", "\"\""},
      {"added_tokens[0].id is \"4\"", "/added_tokens/0/id", "\"4\""},
      {"added_tokens[0]: \"<|x|>\" with id 2 clashes", "/added_tokens/0/id",
       "2"},
      {"added_tokens[1]: \"<|x|>\" with id 4 clashes", "/added_tokens/1",
       kTwice},
  };
  for (const auto& c : cases) {
    const absl::Status status = ReadWith(c.at, c.value).status();
    EXPECT_FALSE(status.ok()) << c.message;
    EXPECT_THAT(status.message(), StartsWith("dir/tokenizer.json: "));
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

TEST(TokenizerJson, FilesThatAreNoJson) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        std::string("{\"model\":{\"type\":\"\xFF\"}}"), std::string(10000, '['),
        std::string("{\"a\":1}trailing")}) {
    const absl::Status status = ParseTokenizerJson(text, "x.json").status();
    EXPECT_FALSE(status.ok()) << text.substr(0, 20);
    EXPECT_THAT(status.message(), StartsWith("x.json: "));
  }
  const absl::Status missing = ReadTokenizerJson("no/such.json").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("no/such.json"));
}

// Cut anywhere, the file is an error.
TEST(TokenizerJson, TruncatedAtEveryLength) {
  const std::string text = SmallFile().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_FALSE(ParseTokenizerJson(text.substr(0, length), "x.json").ok());
  }
}

}  // namespace
}  // namespace deltaedge
