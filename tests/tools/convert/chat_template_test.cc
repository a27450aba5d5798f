// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/chat_template.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/tokenizer_json.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempFolder;
using Json = nlohmann::json;

constexpr char kDemo[] = "tests/testdata/tokenizer/demo";

// Turns, nothing else.
constexpr char kPlain[] = R"({%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %})";

// Texts trimmed by a macro, one system message at most and first, reasoning
// unless it is switched off, reasoning of earlier turns removed, tools.
constexpr char kReasoner[] = R"(
{#- Parts of a message. -#}
{%- macro part(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'text' in item %}{{- item.text }}
            {%- else %}{{- raise_exception('Text only.') }}{% endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('Nothing said.') }}{%- endif %}
{%- if tools and tools is iterable %}
    {{- '<|im_start|>system\nTools:' }}
    {%- for tool in tools %}{{- '\n' ~ (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set ns.searching = false %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = part(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message comes first.') }}
        {%- endif %}
        {{- '<|im_start|>system\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n')
                                      .split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\n<think>\n' + thoughts | trim +
                '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- raise_exception('Who is that?') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %})";

class ChatTemplateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<TokenizerTables> tables =
        ReadTokenizerJson(absl::StrCat(kDemo, "/tokenizer.json"));
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
  }

  absl::StatusOr<ChatTable> Recognise(const std::string& source) {
    return RecogniseChatTemplate(source, Json::object(), tables_);
  }

  TokenizerTables tables_;
};

TEST_F(ChatTemplateTest, Demo) {
  const absl::StatusOr<std::optional<ChatTable>> table =
      ReadChatTable(kDemo, tables_);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_TRUE(table->has_value());
  EXPECT_EQ((*table)->turn_start, "<|im_start|>");
  EXPECT_EQ((*table)->name_end, "\n");
  EXPECT_EQ((*table)->turn_end, "<|im_end|>\n");
  EXPECT_EQ((*table)->reply_open_unset, "");
  EXPECT_EQ((*table)->reply_open_off, "<think>\n\n</think>\n\n");
  EXPECT_EQ((*table)->reply_open_on, "<think>\n");
  EXPECT_EQ((*table)->default_system, std::nullopt);
  EXPECT_FALSE((*table)->trim_texts);
  EXPECT_TRUE((*table)->system_anywhere);
  EXPECT_THAT((*table)->stop_tokens, ElementsAre(4092, 4090));
  ASSERT_EQ((*table)->control_tokens.size(), 4u);
  EXPECT_EQ((*table)->control_tokens[0].id, 4091);
  EXPECT_EQ((*table)->control_tokens[0].text, "<|im_start|>");
  EXPECT_EQ((*table)->control_tokens[3].text, "</think>");
}

TEST_F(ChatTemplateTest, Plain) {
  const absl::StatusOr<ChatTable> table = Recognise(kPlain);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->reply_open_unset, "");
  EXPECT_EQ(table->reply_open_off, "");
  EXPECT_EQ(table->reply_open_on, "");
  EXPECT_EQ(table->control_tokens.size(), 2u);
  EXPECT_THAT(table->stop_tokens, ElementsAre(4092));
}

TEST_F(ChatTemplateTest, Reasoner) {
  const absl::StatusOr<ChatTable> table = Recognise(kReasoner);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE(table->trim_texts);
  EXPECT_FALSE(table->system_anywhere);
  EXPECT_EQ(table->reply_open_unset, "<think>\n");
  EXPECT_EQ(table->reply_open_off, "<think>\n\n</think>\n\n");
  EXPECT_EQ(table->reply_open_on, "<think>\n");
}

TEST_F(ChatTemplateTest, StandingSystemMessage) {
  const absl::StatusOr<ChatTable> table = Recognise(absl::StrCat(
      "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\\n"
      "You are a helpful assistant.<|im_end|>\\n' }}{%- endif %}",
      kPlain));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->default_system, "You are a helpful assistant.");
}

TEST_F(ChatTemplateTest, UnknownTemplatesShowTheProbe) {
  const struct {
    std::string source, message;
  } cases[] = {
      {"{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
       "\"user (thinking unset, reply opened)\" the template gives"},
      {absl::StrCat("<s>", kPlain),
       "the template gives, from byte 0, \"<s><|im_start|>"},
      // The assistant's blanks only; upper case; a standing message that nobody
      // knows; a raise where all known tables go on.
      {std::string(kPlain).replace(
           std::string(kPlain).find("m.content"), 9,
           "(m.content|trim if m.role == 'assistant' else m.content)"),
       "blanks around texts (thinking unset, reply opened)"},
      {std::string(kPlain).replace(std::string(kPlain).find("m.content"), 9,
                                   "m.content|replace('O', '0')"),
       "user, assistant, user (thinking"},
      {absl::StrCat("{%- if messages[0].role != 'system' %}{{- '<|im_start|>"
                    "system\\nObey.<|im_end|>\\n' }}{%- endif %}",
                    kPlain),
       "Obey."},
      {absl::StrCat("{%- if messages[0].role == 'assistant' %}{{- "
                    "raise_exception('User first.') }}{%- endif %}",
                    kPlain),
       "\"assistant, user (thinking unset, reply opened)\" the template "
       "refuses (\"User first.\")"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Recognise(c.source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.source;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), HasSubstr("ChatML"));
  }
}

TEST_F(ChatTemplateTest, WhatJinjaDoesNotKnowIsNamed) {
  const absl::Status status =
      Recognise(absl::StrCat("{{ strftime_now('%Y') }}", kPlain)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("function 'strftime_now'"));

  const absl::Status failing =
      Recognise("{{ messages[0].content.x.y }}").status();
  EXPECT_FALSE(failing.ok());
  EXPECT_THAT(failing.message(), HasSubstr("line 1"));
  EXPECT_THAT(failing.message(), HasSubstr("\"user (thinking unset"));
}

TEST_F(ChatTemplateTest, TokenizerMustHaveTheMarkers) {
  tables_.added[2].special = false;  // <|im_end|>
  const absl::Status status = Recognise(kPlain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("<|im_end|>"));
}

TEST_F(ChatTemplateTest, PlacesOfATemplate) {
  TempFolder folder;
  absl::StatusOr<std::optional<ChatTable>> table =
      ReadChatTable(folder.path(), tables_);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_FALSE(table->has_value());

  folder.Write("chat_template.json", Json{{"chat_template", kPlain}}.dump());
  table = ReadChatTable(folder.path(), tables_);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_TRUE(table->has_value());
  EXPECT_FALSE((*table)->trim_texts);

  folder.Write(
      "tokenizer_config.json",
      Json{{"chat_template",
            Json::array({{{"name", "tool"}, {"template", "x"}},
                         {{"name", "default"}, {"template", kReasoner}}})}}
          .dump());
  table = ReadChatTable(folder.path(), tables_);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE((*table)->trim_texts);

  folder.Write("chat_template.jinja", kPlain);
  table = ReadChatTable(folder.path(), tables_);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_FALSE((*table)->trim_texts);

  folder.Write("chat_template.jinja", "{{ x|sort }}");
  const absl::Status unknown = ReadChatTable(folder.path(), tables_).status();
  EXPECT_THAT(unknown.message(), HasSubstr("chat_template.jinja: "));
  EXPECT_THAT(unknown.message(), HasSubstr("filter 'sort'"));
}

TEST_F(ChatTemplateTest, DamagedConfigs) {
  TempFolder folder;
  for (const char* text :
       {"", "[]", "{\"chat_template\": 3}", "{\"chat_template\": [3]}",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": 1}]}"}) {
    folder.Write("tokenizer_config.json", text);
    const absl::Status status = ReadChatTable(folder.path(), tables_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer_config.json"));
  }
}

TEST_F(ChatTemplateTest, StopTokens) {
  TempFolder folder;
  const auto read = [&]() { return ReadStopTokens(folder.path(), tables_); };
  EXPECT_THAT(read().value(), IsEmpty());
  folder.Write("config.json", R"({"text_config": {"eos_token_id": 7}})");
  EXPECT_THAT(read().value(), ElementsAre(7));
  folder.Write("config.json", R"({"eos_token_id": 4090})");
  EXPECT_THAT(read().value(), ElementsAre(4090));
  folder.Write("generation_config.json", R"({"eos_token_id": [4092, 4090]})");
  EXPECT_THAT(read().value(), ElementsAre(4092, 4090));
  folder.Write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(read().value(), ElementsAre(4090));
  tables_.vocab_size = 5000;  // Padding may be meant.
  folder.Write("generation_config.json", R"({"eos_token_id": 4999})");
  EXPECT_THAT(read().value(), ElementsAre(4999, 4090));
  for (const char* bad : {"5000", "-1", "\"x\"", "1.5", "[[1]]", "{}"}) {
    folder.Write("generation_config.json",
                 absl::StrCat("{\"eos_token_id\": ", bad, "}"));
    const absl::Status status = read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr("generation_config.json"));
    EXPECT_THAT(status.message(), HasSubstr("eos_token_id"));
  }
}

}  // namespace
}  // namespace deltaedge
