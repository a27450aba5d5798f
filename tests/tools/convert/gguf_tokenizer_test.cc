// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/gguf_tokenizer.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/gguf_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/chat_template.h"
#include "tools/convert/gguf.h"
#include "tools/convert/tokenizer_json.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::Little;
using testing::ReadBytes;
using testing::TempFolder;

constexpr char kTokenizers[] = "tests/testdata/tokenizer/";

// What a GGUF file says of a tokenizer, to be changed and written.
struct Keys {
  std::string model = "gpt2", pre = "qwen35";
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::string chat_template;

  // As tokenizer.json at `path` says it, with some ids behind that have no
  // token.
  static Keys Of(const std::string& path) {
    const Json json = Json::parse(ReadBytes(path));
    Keys keys;
    keys.pre = path.find("qwen3_") != std::string::npos ? "qwen2" : "qwen35";
    const auto set = [&](size_t id, const std::string& text, int type) {
      while (keys.tokens.size() <= id + 3) {
        keys.tokens.push_back("[PAD" + std::to_string(keys.tokens.size()) +
                              "]");
        keys.types.push_back(5);
      }
      keys.tokens[id] = text;
      keys.types[id] = type;
    };
    for (const auto& [text, id] : json["model"]["vocab"].items()) {
      set(id, text, 1);
    }
    for (const Json& added : json["added_tokens"]) {
      set(added["id"], added["content"], added["special"] ? 3 : 4);
    }
    for (const Json& merge : json["model"]["merges"]) {
      keys.merges.push_back(merge.is_string()
                                ? merge.get<std::string>()
                                : merge[0].get<std::string>() + " " +
                                      merge[1].get<std::string>());
    }
    return keys;
  }

  GgufWriter Writer() const {
    GgufWriter writer;
    writer.Text("tokenizer.ggml.model", model)
        .Text("tokenizer.ggml.pre", pre)
        .Texts("tokenizer.ggml.tokens", tokens)
        .I32s("tokenizer.ggml.token_type", types)
        .Texts("tokenizer.ggml.merges", merges);
    if (!chat_template.empty()) {
      writer.Text("tokenizer.chat_template", chat_template);
    }
    return writer;
  }
};

Gguf Open(const TempFolder& folder, const GgufWriter& writer) {
  auto file = Gguf::Open(folder.Write("x.gguf", writer.Bytes()));
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

void ExpectEqual(const TokenizerTables& a, const TokenizerTables& b) {
  EXPECT_EQ(a.token_bytes, b.token_bytes);
  ASSERT_EQ(a.merges.size(), b.merges.size());
  for (size_t i = 0; i < a.merges.size(); ++i) {
    EXPECT_EQ(a.merges[i].left, b.merges[i].left);
    EXPECT_EQ(a.merges[i].right, b.merges[i].right);
    EXPECT_EQ(a.merges[i].result, b.merges[i].result);
  }
  ASSERT_EQ(a.added.size(), b.added.size());
  for (size_t i = 0; i < a.added.size(); ++i) {
    EXPECT_EQ(a.added[i].id, b.added[i].id);
    EXPECT_EQ(a.added[i].text, b.added[i].text);
    EXPECT_EQ(a.added[i].special, b.added[i].special);
    EXPECT_EQ(a.added[i].normalized, b.added[i].normalized);
  }
  EXPECT_EQ(a.pretokenizer, b.pretokenizer);
  EXPECT_EQ(a.nfc, b.nfc);
  EXPECT_EQ(a.ignore_merges, b.ignore_merges);
}

TEST(GgufTokenizerTest, EqualsTheTokenizerOfTheFolder) {
  for (const std::string name : {"mini_qwen35_regex.tokenizer.json",
                                 "mini_qwen3_regex.tokenizer.json"}) {
    const std::string path = kTokenizers + name;
    const TempFolder folder;
    const Keys keys = Keys::Of(path);
    const auto ours = ReadGgufTokenizer(Open(folder, keys.Writer()));
    const auto theirs = ReadTokenizerJson(path);
    ASSERT_TRUE(ours.ok()) << ours.status();
    ASSERT_TRUE(ours->has_value());
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    ExpectEqual(**ours, *theirs);
    EXPECT_EQ((*ours)->vocab_size, static_cast<int32_t>(keys.tokens.size()));
    EXPECT_EQ(theirs->vocab_size + 3, (*ours)->vocab_size);
    EXPECT_TRUE(MakeBpeTokenizer(**ours).ok());
  }
}

TEST(GgufTokenizerTest, NormalFormIsWhatTheFileSays) {
  const TempFolder folder;
  GgufWriter writer =
      Keys::Of(std::string(kTokenizers) + "mini_qwen35_regex.tokenizer.json")
          .Writer();
  writer.Bool("tokenizer.ggml.normalizer.nfc", false);
  const auto tables = ReadGgufTokenizer(Open(folder, writer));
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_FALSE((*tables)->nfc);
}

TEST(GgufTokenizerTest, AFileMayHaveNone) {
  const TempFolder folder;
  for (const GgufWriter& writer :
       {GgufWriter(), GgufWriter().Text("tokenizer.ggml.model", "no_vocab")}) {
    const auto tables = ReadGgufTokenizer(Open(folder, writer));
    ASSERT_TRUE(tables.ok()) << tables.status();
    EXPECT_FALSE(tables->has_value());
  }
}

TEST(GgufTokenizerTest, ChatTemplateIsRecognisedAndStopsAreJoined) {
  const TempFolder folder;
  const Json config = Json::parse(
      ReadBytes(std::string(kTokenizers) + "demo/tokenizer_config.json"));
  Keys keys = Keys::Of(std::string(kTokenizers) + "demo/tokenizer.json");
  keys.chat_template = config["chat_template"].get<std::string>();
  const Gguf file = Open(folder, keys.Writer());
  const auto tables = ReadGgufTokenizer(file);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const auto ours = ReadGgufChatTable(file, **tables, {5});
  const auto theirs =
      ReadChatTable(std::string(kTokenizers) + "demo", **tables);
  ASSERT_TRUE(ours.ok() && ours->has_value()) << ours.status();
  ASSERT_TRUE(theirs.ok() && theirs->has_value()) << theirs.status();
  EXPECT_EQ((*ours)->turn_start, (*theirs)->turn_start);
  EXPECT_EQ((*ours)->turn_end, (*theirs)->turn_end);
  EXPECT_EQ((*ours)->reply_open_on, (*theirs)->reply_open_on);
  EXPECT_EQ((*ours)->default_system, (*theirs)->default_system);
  EXPECT_EQ((*ours)->stop_tokens.size(), 2u);
  EXPECT_EQ((*ours)->stop_tokens[0], 5);
  EXPECT_THAT((*theirs)->stop_tokens,
              ::testing::Contains((*ours)->stop_tokens[1]));

  keys.chat_template = "{{ messages[0]['content'] }}";
  const auto unknown =
      ReadGgufChatTable(Open(folder, keys.Writer()), **tables, {});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(unknown.status().message(),
              HasSubstr("x.gguf: tokenizer.chat_template: "));
}

TEST(GgufTokenizerTest, RefusalsNameTheKey) {
  const TempFolder folder;
  const Keys good =
      Keys::Of(std::string(kTokenizers) + "mini_qwen35_regex.tokenizer.json");
  const auto error = [&](const GgufWriter& writer) {
    return std::string(
        ReadGgufTokenizer(Open(folder, writer)).status().message());
  };
  const auto changed = [&](void (*change)(Keys*)) {
    Keys keys = good;
    change(&keys);
    return error(keys.Writer());
  };
  EXPECT_THAT(changed([](Keys* k) { k->model = "llama"; }),
              HasSubstr("tokenizer.ggml.model is \"llama\"; supported: "
                        "\"gpt2\""));
  EXPECT_THAT(changed([](Keys* k) { k->pre = "gpt-4o"; }),
              HasSubstr("tokenizer.ggml.pre is \"gpt-4o\"; supported: "
                        "\"qwen2\", \"qwen35\""));
  EXPECT_THAT(changed([](Keys* k) { k->types.pop_back(); }),
              HasSubstr("tokenizer.ggml.token_type 1109; as many"));
  EXPECT_THAT(changed([](Keys* k) { k->types[7] = 6; }),
              HasSubstr("tokenizer.ggml.token_type[7] is 6; supported are"));
  EXPECT_THAT(changed([](Keys* k) { k->tokens[7] = ""; }),
              HasSubstr("tokenizer.ggml.tokens[7] is \"\"; a text that is"));
  EXPECT_THAT(changed([](Keys* k) { k->tokens[7] = "a b"; }),
              HasSubstr("tokenizer.ggml.tokens[7] is \"a b\", which is not"));
  for (const char* broken : {"a\xC3", "\xC3\xC3\xA9", "\xE9", "\x80"}) {
    Keys keys = good;
    keys.tokens[7] = broken;
    EXPECT_THAT(error(keys.Writer()), HasSubstr("not written in the byte"))
        << keys.tokens[7];
  }
  EXPECT_THAT(changed([](Keys* k) {
                for (const size_t id : {7, 9}) {
                  k->tokens[id] = "<|twice|>";
                  k->types[id] = 3;
                }
              }),
              HasSubstr("tokenizer.ggml.tokens[9] is \"<|twice|>\", the text "
                        "of token 7 too"));
  EXPECT_THAT(error(GgufWriter()
                        .Text("tokenizer.ggml.model", "gpt2")
                        .Text("tokenizer.ggml.pre", "qwen2")
                        .Texts("tokenizer.ggml.tokens", {"a"})
                        .Array("tokenizer.ggml.token_type", 6, 1, Little(NAN))
                        .Texts("tokenizer.ggml.merges", {})),
              HasSubstr("tokenizer.ggml.token_type[0] is null; supported are"));
  EXPECT_THAT(changed([](Keys* k) { k->tokens[7] = k->tokens[3]; }),
              HasSubstr("the text of token 3 too"));
  EXPECT_THAT(changed([](Keys* k) { k->merges[2] = "xx"; }),
              HasSubstr("tokenizer.ggml.merges[2] is \"xx\"; two tokens"));
  EXPECT_THAT(changed([](Keys* k) { k->merges[2] = "xx yyyyyyyyyy"; }),
              HasSubstr("are not all tokens"));
  EXPECT_THAT(error(good.Writer().Bool("tokenizer.ggml.add_bos_token", true)),
              HasSubstr("tokenizer.ggml.add_bos_token is true"));
  EXPECT_THAT(error(GgufWriter()
                        .Text("tokenizer.ggml.model", "gpt2")
                        .Text("tokenizer.ggml.pre", "qwen2")),
              HasSubstr("tokenizer.ggml.tokens is missing"));
  EXPECT_THAT(error(GgufWriter()
                        .Text("tokenizer.ggml.model", "gpt2")
                        .Text("tokenizer.ggml.pre", "qwen2")
                        .U32("tokenizer.ggml.tokens", 5)),
              HasSubstr("tokenizer.ggml.tokens is 5; a list is expected"));
}

}  // namespace
}  // namespace deltaedge
