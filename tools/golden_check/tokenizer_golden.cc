// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/tokenizer_golden.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/chat_format.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/text/chat_layout.h"
#include "engine/text/nfc.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/utf8.h"
#include "engine/tokenizer.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/tokenizer_json.h"
#include "tools/golden_check/golden_json.h"
#include "tools/golden_check/golden_tensors.h"

namespace deltaedge {

namespace {

using nlohmann::json;

constexpr int64_t kMaxJsonBytes = int64_t{1} << 28;
constexpr std::array<const char*, 4> kFiles = {"encode.json", "decode_ids.json",
                                               "pretokenize.json", "chat.json"};
constexpr absl::string_view kTokenizerSuffix = ".tokenizer.json";
constexpr absl::string_view kFull = "qwen3";
constexpr absl::string_view kFullOtherRegex = "qwen35_regex";

std::string PathOf(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// Many small comparisons that make one check.
class Tally {
 public:
  void Count(bool same, int64_t values, const std::string& detail) {
    values_ += values;
    if (same) return;
    if (++different_ == 1) first_ = detail;
  }
  // A text or a list that could not be made at all.
  void Error(const absl::Status& status) { Count(false, 1, status.ToString()); }

  void Report(absl::string_view name, deltaedge::Report* report) const {
    report->Check(name, different_ == 0, values_,
                  absl::StrCat(different_, " differ, the first: ", first_));
  }
  bool empty() const { return values_ == 0 && different_ == 0; }

 private:
  int64_t values_ = 0;
  int64_t different_ = 0;
  std::string first_;
};

std::string Quote(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, 60)),
                      text.size() > 60 ? "...\"" : "\"");
}

template <class Ids>
std::string ListIds(const Ids& ids) {
  std::string list = absl::StrJoin(
      ids.begin(), ids.begin() + std::min<size_t>(ids.size(), 16), ",");
  return absl::StrCat("[", list, ids.size() > 16 ? ",...]" : "]");
}

void CompareIds(absl::string_view text,
                const absl::StatusOr<std::vector<TokenId>>& ours,
                const std::vector<int64_t>& golden, Tally* tally) {
  if (!ours.ok()) return tally->Error(ours.status());
  // An empty text is a comparison, too.
  const int64_t values = std::max<int64_t>(1, golden.size());
  tally->Count(
      std::equal(ours->begin(), ours->end(), golden.begin(), golden.end()),
      values,
      absl::StrCat(Quote(text), " gives ", ListIds(*ours), ", golden ",
                   ListIds(golden)));
}

void CompareText(absl::string_view what,
                 const absl::StatusOr<std::string>& ours,
                 absl::string_view golden, Tally* tally) {
  if (!ours.ok()) return tally->Error(ours.status());
  tally->Count(
      *ours == golden, std::max<int64_t>(1, golden.size()),
      absl::StrCat(what, " gives ", Quote(*ours), ", golden ", Quote(golden)));
}

absl::StatusOr<std::string> Decode(const Tokenizer& tokenizer,
                                   const std::vector<TokenId>& ids,
                                   StreamDecoder::SpecialTokens special) {
  StreamDecoder decoder(&tokenizer, special);
  std::string text;
  for (const TokenId id : ids) {
    DELTAEDGE_ASSIGN_OR_RETURN(const absl::string_view more, decoder.Push(id));
    absl::StrAppend(&text, more);
  }
  return absl::StrCat(text, decoder.Flush());
}

// A tokenizer and what it was made of.
struct Loaded {
  TokenizerTables tables;
  std::unique_ptr<Tokenizer> tokenizer;
};

absl::StatusOr<Loaded> Load(const std::string& path,
                            const std::optional<std::string>& expression) {
  Loaded loaded;
  DELTAEDGE_ASSIGN_OR_RETURN(loaded.tables, ReadTokenizerJson(path));
  if (expression.has_value()) loaded.tables.pretokenizer = *expression;
  DELTAEDGE_ASSIGN_OR_RETURN(loaded.tokenizer, MakeBpeTokenizer(loaded.tables));
  return loaded;
}

// The table that Qwen3's own template is recognised as.
ChatTable Qwen3Table() {
  ChatTable table;
  table.turn_start = "<|im_start|>";
  table.name_end = "\n";
  table.turn_end = "<|im_end|>\n";
  table.reply_open_off = "<think>\n\n</think>\n\n";
  return table;
}

absl::string_view StripNewlines(absl::string_view text, bool front, bool back) {
  while (front && absl::ConsumePrefix(&text, "\n")) {
  }
  while (back && absl::ConsumeSuffix(&text, "\n")) {
  }
  return text;
}

// Messages of chat.json as a caller of ours holds them: reasoning is part of an
// assistant's text, before the answer, and only behind the last question.
absl::StatusOr<std::vector<ChatMessage>> Qwen3Messages(const json& list) {
  std::vector<ChatMessage> messages;
  size_t last_question = 0;
  for (const json& from : list) {
    DELTAEDGE_ASSIGN_OR_RETURN(ChatMessage message, JsonMessage(from));
    const bool tool_response =
        absl::StartsWith(message.text, "<tool_response>") &&
        absl::EndsWith(message.text, "</tool_response>");
    if (message.role == Role::kUser && !tool_response) {
      last_question = messages.size();
    }
    messages.push_back(std::move(message));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != Role::kAssistant) continue;
    absl::string_view text = messages[i].text;
    std::string reasoning;
    if (const auto found = list[i].find("reasoning_content");
        found != list[i].end() && found->is_string()) {
      reasoning = found->get<std::string>();
    } else if (const size_t end = text.rfind("</think>");
               end != absl::string_view::npos) {
      absl::string_view before = text.substr(0, text.find("</think>"));
      before = StripNewlines(before, false, true);
      if (const size_t begin = before.rfind("<think>");
          begin != absl::string_view::npos) {
        before.remove_prefix(begin + 7);
      }
      reasoning = std::string(StripNewlines(before, true, false));
      text = StripNewlines(text.substr(end + 8), true, false);
    }
    const bool is_last = i + 1 == messages.size();
    messages[i].text =
        i > last_question && (is_last || !reasoning.empty())
            ? absl::StrCat("<think>\n", StripNewlines(reasoning, true, true),
                           "\n</think>\n\n", StripNewlines(text, true, false))
            : std::string(text);
  }
  return messages;
}

bool NeedsTools(const json& conversation) {
  const auto tools = conversation.find("tools");
  if (tools != conversation.end() && !tools->is_null() && !tools->empty()) {
    return true;
  }
  const auto messages = conversation.find("messages");
  if (messages == conversation.end() || !messages->is_array()) return false;
  return std::any_of(messages->begin(), messages->end(),
                     [](const json& message) {
                       return message.is_object() &&
                              (message.contains("tool_calls") ||
                               message.value("role", json()) == json("tool"));
                     });
}

class TokenizerChecks {
 public:
  TokenizerChecks(std::string folder, std::string tokenizer, Report* report)
      : folder_(std::move(folder)),
        full_path_(std::move(tokenizer)),
        report_(*report) {}

  void Run() {
    for (const char* name : kFiles) {
      const std::string path = PathOf(folder_, name);
      if (!Exists(path)) continue;
      const auto list = ReadJsonFile(path, kMaxJsonBytes);
      absl::Status status = list.status();
      if (status.ok() && (!list->is_array() || list->empty())) {
        status = absl::InvalidArgumentError("not a list with something in it");
      }
      if (!status.ok()) {
        report_.Fail(name, status);
      } else if (name == kFiles[0]) {
        Encode(*list);
      } else if (name == kFiles[1]) {
        DecodeIds(*list);
      } else if (name == kFiles[2]) {
        Pretokenize(*list);
      } else {
        Chat(*list);
      }
    }
  }

 private:
  // The tokenizer of a column; null: there is none, which has been reported.
  const Loaded* ForColumn(const std::string& column) {
    const auto found = columns_.find(column);
    if (found != columns_.end()) return found->second.get();
    auto& place = columns_[column];
    const std::string own =
        PathOf(folder_, absl::StrCat(column, kTokenizerSuffix));
    absl::StatusOr<Loaded> loaded;
    if (Exists(own)) {
      loaded = Load(own, std::nullopt);
    } else if (column != kFull && column != kFullOtherRegex) {
      report_.NotRun(absl::StrCat("column ", column),
                     "nothing is known of this tokenizer");
      return nullptr;
    } else if (full_path_.empty()) {
      report_.NotRun(absl::StrCat("column ", column), "needs --tokenizer");
      return nullptr;
    } else if (column == kFull) {
      loaded = Load(full_path_, std::nullopt);
    } else {
      const auto expression = Expression(std::string(kFullOtherRegex));
      loaded = expression.ok() ? Load(full_path_, *expression)
                               : absl::StatusOr<Loaded>(expression.status());
    }
    if (!loaded.ok()) {
      report_.Fail(absl::StrCat("column ", column), loaded.status());
      return nullptr;
    }
    place = std::make_unique<Loaded>(*std::move(loaded));
    return place.get();
  }

  absl::StatusOr<std::string> Expression(const std::string& name) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const json expressions,
        ReadJsonFile(PathOf(folder_, "regex.json"), kMaxJsonBytes));
    return JsonText(expressions, name.c_str());
  }

  // encode.json: {"text": ..., COLUMN: {"ids": [...], ...}, ...}.
  void Encode(const json& list) {
    std::set<std::string> columns;
    for (const json& entry : list) {
      if (!entry.is_object()) continue;
      for (const auto& [key, value] : entry.items()) {
        if (value.is_object()) columns.insert(key);
      }
    }
    if (columns.empty()) report_.Fail("encode.json", "it has no columns");
    for (const std::string& column : columns) {
      const Loaded* loaded = ForColumn(column);
      if (loaded != nullptr) EncodeColumn(list, column, *loaded->tokenizer);
    }
  }

  void EncodeColumn(const json& list, const std::string& column,
                    const Tokenizer& tokenizer) {
    Tally ids, as_text, decoded, skipped;
    for (const json& entry : list) {
      const auto text = JsonText(entry, "text");
      if (!text.ok()) {
        ids.Error(text.status());
        continue;
      }
      const auto found = entry.find(column);
      if (found == entry.end()) continue;
      const auto golden = JsonInts(*found, "ids");
      if (!golden.ok()) {
        ids.Error(golden.status());
        continue;
      }
      CompareIds(*text, tokenizer.Encode(*text, Tokenizer::Special::kAsToken),
                 *golden, &ids);
      if (found->contains("ids_special_as_text")) {
        const auto other = JsonInts(*found, "ids_special_as_text");
        if (other.ok()) {
          CompareIds(*text,
                     tokenizer.Encode(*text, Tokenizer::Special::kAsText),
                     *other, &as_text);
        } else {
          as_text.Error(other.status());
        }
      }
      const auto tokens = ToTokens(*golden, tokenizer.vocab_size());
      if (!tokens.ok()) {
        decoded.Error(tokens.status());
        continue;
      }
      std::string whole = *text;
      if (const auto own = JsonText(*found, "decoded"); own.ok()) whole = *own;
      std::string without = whole;
      if (const auto own = JsonText(*found, "decoded_skip_special"); own.ok()) {
        without = *own;
      }
      CompareText(
          ListIds(*tokens),
          Decode(tokenizer, *tokens, StreamDecoder::SpecialTokens::kKeep),
          whole, &decoded);
      CompareText(
          ListIds(*tokens),
          Decode(tokenizer, *tokens, StreamDecoder::SpecialTokens::kSkip),
          without, &skipped);
    }
    const std::string prefix = absl::StrCat("encode.", column);
    ids.Report(absl::StrCat(prefix, ".ids"), &report_);
    if (!as_text.empty()) {
      as_text.Report(absl::StrCat(prefix, ".ids_special_as_text"), &report_);
    }
    decoded.Report(absl::StrCat(prefix, ".decoded"), &report_);
    skipped.Report(absl::StrCat(prefix, ".decoded_skip_special"), &report_);
  }

  // decode_ids.json: {"tok": COLUMN, "ids": [...], "decoded": ..., ...}.
  void DecodeIds(const json& list) {
    struct Column {
      Tally decoded, skipped, prefixes, streamed;
    };
    std::map<std::string, Column> columns;
    Tally unreadable;
    for (const json& entry : list) {
      const auto name = JsonText(entry, "tok");
      const auto ids = JsonInts(entry, "ids");
      const auto golden = JsonText(entry, "decoded");
      if (!name.ok() || !ids.ok() || !golden.ok()) {
        unreadable.Error(!name.ok()  ? name.status()
                         : !ids.ok() ? ids.status()
                                     : golden.status());
        continue;
      }
      const Loaded* loaded = ForColumn(*name);
      if (loaded == nullptr) continue;
      Column& column = columns[*name];
      const Tokenizer& tokenizer = *loaded->tokenizer;
      const auto tokens = ToTokens(*ids, tokenizer.vocab_size());
      if (!tokens.ok()) {
        column.decoded.Error(tokens.status());
        continue;
      }
      CompareText(
          ListIds(*tokens),
          Decode(tokenizer, *tokens, StreamDecoder::SpecialTokens::kKeep),
          *golden, &column.decoded);
      if (entry.contains("decoded_skip_special")) {
        const auto skipped = JsonText(entry, "decoded_skip_special");
        CompareText(
            ListIds(*tokens),
            Decode(tokenizer, *tokens, StreamDecoder::SpecialTokens::kSkip),
            skipped.ok() ? *skipped : "", &column.skipped);
      }
      if (entry.contains("prefix_decodes")) {
        const auto prefixes = JsonTexts(entry, "prefix_decodes");
        if (!prefixes.ok() || prefixes->size() != tokens->size()) {
          column.prefixes.Error(absl::InvalidArgumentError(
              "prefix_decodes is not a text for each id"));
          continue;
        }
        for (size_t i = 0; i < tokens->size(); ++i) {
          const std::vector<TokenId> prefix(tokens->begin(),
                                            tokens->begin() + i + 1);
          CompareText(
              ListIds(prefix),
              Decode(tokenizer, prefix, StreamDecoder::SpecialTokens::kKeep),
              (*prefixes)[i], &column.prefixes);
        }
        Stream(tokenizer, *tokens, *prefixes, &column.streamed);
      }
    }
    if (!unreadable.empty()) unreadable.Report("decode_ids.json", &report_);
    for (const auto& [name, column] : columns) {
      const std::string prefix = absl::StrCat("decode_ids.", name);
      column.decoded.Report(absl::StrCat(prefix, ".decoded"), &report_);
      if (!column.skipped.empty()) {
        column.skipped.Report(absl::StrCat(prefix, ".decoded_skip_special"),
                              &report_);
      }
      if (!column.prefixes.empty()) {
        column.prefixes.Report(absl::StrCat(prefix, ".prefix_decodes"),
                               &report_);
        column.streamed.Report(absl::StrCat(prefix, ".streamed"), &report_);
      }
    }
  }

  // What a stream has given after each id is UTF-8, and the beginning of what
  // all ids so far decode to.
  static void Stream(const Tokenizer& tokenizer,
                     const std::vector<TokenId>& tokens,
                     const std::vector<std::string>& prefixes, Tally* tally) {
    StreamDecoder decoder(&tokenizer);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto more = decoder.Push(tokens[i]);
      if (!more.ok()) return tally->Error(more.status());
      absl::StrAppend(&text, *more);
      tally->Count(CheckUtf8(*more, "a piece").ok() &&
                       absl::StartsWith(prefixes[i], text),
                   1,
                   absl::StrCat("after ", i + 1, " ids ", Quote(text),
                                ", golden ", Quote(prefixes[i])));
    }
  }

  // pretokenize.json: {"text", "nfc", EXPRESSION: [pieces]}, where EXPRESSION
  // without "_regex" is its name in regex.json.
  void Pretokenize(const json& list) {
    std::set<std::string> columns;
    for (const json& entry : list) {
      if (!entry.is_object()) continue;
      for (const auto& [key, value] : entry.items()) {
        if (value.is_array()) columns.insert(key);
      }
    }
    if (columns.empty()) report_.Fail("pretokenize.json", "it has no columns");
    Tally nfc;
    for (const json& entry : list) {
      const auto text = JsonText(entry, "text");
      if (!text.ok()) {
        nfc.Error(text.status());
        continue;
      }
      const auto golden = JsonText(entry, "nfc");
      CompareText(Quote(*text), Nfc(*text), golden.ok() ? *golden : *text,
                  &nfc);
    }
    nfc.Report("pretokenize.nfc", &report_);
    for (const std::string& column : columns) {
      const std::string name = absl::StrCat("pretokenize.", column);
      const auto expression = Expression(absl::StrCat(column, "_regex"));
      if (!expression.ok()) {
        report_.Fail(name, expression.status());
        continue;
      }
      const auto pretokenizer = Pretokenizer::Make(*expression);
      if (!pretokenizer.ok()) {
        report_.Fail(name, pretokenizer.status());
        continue;
      }
      Tally pieces;
      for (const json& entry : list) {
        const absl::Status status =
            ComparePieces(entry, column, *pretokenizer, &pieces);
        if (!status.ok()) pieces.Error(status);
      }
      pieces.Report(name, &report_);
    }
  }

  static absl::Status ComparePieces(const json& entry,
                                    const std::string& column,
                                    const Pretokenizer& pretokenizer,
                                    Tally* tally) {
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string text, JsonText(entry, "text"));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<std::string> golden,
                               JsonTexts(entry, column.c_str()));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string normal, Nfc(text));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<absl::string_view> ours,
                               pretokenizer.Split(normal));
    tally->Count(
        std::equal(ours.begin(), ours.end(), golden.begin(), golden.end()),
        std::max<int64_t>(1, golden.size()),
        absl::StrCat(Quote(text), " gives ", Quote(absl::StrJoin(ours, "|")),
                     ", golden ", Quote(absl::StrJoin(golden, "|"))));
    return absl::OkStatus();
  }

  // chat.json: {"messages", "tools", "add_generation_prompt", "kwargs", "text",
  // "ids"}.
  void Chat(const json& list) {
    ChatTable table = Qwen3Table();
    const Loaded* loaded = ForColumn(std::string(kFull));
    std::unique_ptr<ChatFormat> format;
    if (loaded != nullptr) {
      auto made = MakeFormat(*loaded, table);
      if (!made.ok()) {
        report_.Fail("chat.ids", made.status());
      } else {
        format = *std::move(made);
      }
    }
    Tally text, ids, typed;
    std::vector<size_t> with_tools;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_object()) {
        text.Error(absl::InvalidArgumentError("not an object"));
        continue;
      }
      if (NeedsTools(list[i])) {
        with_tools.push_back(i);
        continue;
      }
      const absl::Status status = CheckConversation(
          list[i], table, loaded, format.get(), &text, &ids, &typed);
      if (!status.ok()) {
        text.Error(absl::Status(
            status.code(), absl::StrCat("case ", i, ": ", status.message())));
      }
    }
    text.Report("chat.text", &report_);
    if (format != nullptr) {
      ids.Report("chat.ids", &report_);
      if (!typed.empty()) {
        typed.Report("chat.ids, markers that were typed", &report_);
      }
    } else if (loaded == nullptr && full_path_.empty()) {
      report_.NotRun("chat.ids", "needs --tokenizer");
    }
    if (!with_tools.empty()) {
      report_.NotRun(
          absl::StrCat("chat, cases ", absl::StrJoin(with_tools, ", ")),
          "tools are not part of the chat format");
    }
  }

  static absl::StatusOr<std::unique_ptr<ChatFormat>> MakeFormat(
      const Loaded& loaded, const ChatTable& plain) {
    auto table = std::make_unique<ChatTable>(plain);
    for (const absl::string_view marker :
         {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}) {
      for (const AddedToken& token : loaded.tables.added) {
        if (token.text == marker) {
          table->control_tokens.push_back({token.id, token.text});
        }
        if (token.text == marker && marker == "<|im_end|>") {
          table->stop_tokens.push_back(token.id);
        }
      }
    }
    return ChatFormat::Make(loaded.tokenizer.get(), std::move(table));
  }

  // Whether one of `messages` spells a control token of the tokenizer.
  static bool SpellsToken(const std::vector<ChatMessage>& messages,
                          const Loaded& loaded) {
    for (const ChatMessage& message : messages) {
      for (const AddedToken& token : loaded.tables.added) {
        if (token.special && absl::StrContains(message.text, token.text)) {
          return true;
        }
      }
    }
    return false;
  }

  static absl::Status CheckConversation(const json& conversation,
                                        const ChatTable& table,
                                        const Loaded* loaded,
                                        const ChatFormat* format, Tally* text,
                                        Tally* ids, Tally* typed) {
    DELTAEDGE_ASSIGN_OR_RETURN(const json* list,
                               JsonArray(conversation, "messages"));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string golden_text,
                               JsonText(conversation, "text"));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages,
                               Qwen3Messages(*list));
    ChatLayout layout;
    const auto open = conversation.find("add_generation_prompt");
    layout.open_reply = open != conversation.end() && *open == true;
    if (const auto kwargs = conversation.find("kwargs");
        kwargs != conversation.end() && kwargs->is_object()) {
      for (const auto& [key, value] : kwargs->items()) {
        if (key != "enable_thinking" || !value.is_boolean()) {
          return absl::UnimplementedError(
              absl::StrCat("the argument ", key, " of the template"));
        }
        layout.thinking = value.get<bool>() ? Thinking::kOn : Thinking::kOff;
      }
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<ChatPiece> pieces,
                               LayOutChat(table, messages, layout));
    std::string ours;
    for (const ChatPiece& piece : pieces) absl::StrAppend(&ours, piece.text);
    CompareText("the conversation", ours, golden_text, text);
    if (format == nullptr) return absl::OkStatus();

    RenderOptions options;
    options.open_reply = layout.open_reply;
    options.thinking = layout.thinking;
    const auto our_ids = format->Render(messages, options);
    if (!SpellsToken(messages, *loaded)) {
      DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<int64_t> golden_ids,
                                 JsonInts(conversation, "ids"));
      CompareIds(golden_text, our_ids, golden_ids, ids);
      return absl::OkStatus();
    }
    // The golden reads as a token what somebody typed. Ours must be the same
    // text, with one end of turn for each message and no more.
    DELTAEDGE_RETURN_IF_ERROR(our_ids.status());
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string decoded,
                               Decode(*loaded->tokenizer, *our_ids,
                                      StreamDecoder::SpecialTokens::kKeep));
    CompareText(ListIds(*our_ids), decoded, golden_text, typed);
    const absl::Span<const TokenId> stop = format->stop_tokens();
    const int64_t ends =
        std::count_if(our_ids->begin(), our_ids->end(), [&](TokenId id) {
          return std::find(stop.begin(), stop.end(), id) != stop.end();
        });
    typed->Count(ends == static_cast<int64_t>(messages.size()), 1,
                 absl::StrCat(ends, " ends of turns for ", messages.size(),
                              " messages"));
    return absl::OkStatus();
  }

  const std::string folder_;
  const std::string full_path_;  // Empty: not given.
  Report& report_;
  std::map<std::string, std::unique_ptr<Loaded>> columns_;
};

}  // namespace

bool IsTokenizerGolden(const std::string& folder) {
  return std::any_of(kFiles.begin(), kFiles.end(), [&](const char* name) {
    return Exists(PathOf(folder, name));
  });
}

void CheckTokenizer(const std::string& folder, const std::string& tokenizer,
                    Report* report) {
  TokenizerChecks(folder, tokenizer, report).Run();
}

}  // namespace deltaedge
