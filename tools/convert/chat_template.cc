// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/chat_template.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/chat_layout.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/jinja.h"
#include "tools/convert/json.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 24;

// ---- Probes -----------------------------------------------------------------

struct Probe {
  std::string name;
  std::vector<ChatMessage> messages;
  Thinking thinking = Thinking::kUnset;
  bool open_reply = true;
};

// What a template or a table makes of a probe.
struct Rendering {
  bool refused = false;  // `text` is why.
  std::string text;

  // Why is nobody's promise.
  bool operator==(const Rendering& other) const {
    return refused == other.refused && (refused || text == other.text);
  }
};

std::vector<Probe> MakeProbes() {
  constexpr Role kSystem = Role::kSystem, kUser = Role::kUser,
                 kAssistant = Role::kAssistant;
  const std::string blanks = "\n\t  first line \n\n second line\t \n \n";
  const std::string wide = "\xC2\xA0\xE3\x80\x80wide\xE2\x80\xA8";  // U+2028
  const std::string odd =
      "\xC3\x9Cn\xC3\xAF \xF0\x9F\x98\x80 {{ x }} {% if %} <b> & \\n \"q\" 'q'";
  const std::vector<std::pair<std::string, std::vector<ChatMessage>>>
      conversations = {
          {"user", {{kUser, "Hello"}}},
          {"system, user", {{kSystem, "Be brief."}, {kUser, "Hello"}}},
          {"user, assistant, user",
           {{kUser, "One?"}, {kAssistant, "Two."}, {kUser, "Three?"}}},
          {"system and five turns",
           {{kSystem, "Be brief."},
            {kUser, "One?"},
            {kAssistant, "Two."},
            {kUser, "Three?"},
            {kAssistant, "Four."},
            {kUser, "Five?"}}},
          {"assistant, user", {{kAssistant, "Welcome."}, {kUser, "Hello"}}},
          {"user, user", {{kUser, "Hello"}, {kUser, "Are you there?"}}},
          {"user, system, user",
           {{kUser, "Hello"}, {kSystem, "Be brief."}, {kUser, "Well?"}}},
          {"empty texts",
           {{kSystem, ""}, {kUser, ""}, {kAssistant, ""}, {kUser, ""}}},
          {"blanks around texts",
           {{kSystem, blanks},
            {kUser, blanks},
            {kAssistant, blanks},
            {kUser, blanks}}},
          {"wide blanks around texts",
           {{kSystem, wide}, {kUser, wide}, {kAssistant, wide}, {kUser, wide}}},
          {"odd characters",
           {{kSystem, odd}, {kUser, odd}, {kAssistant, odd}, {kUser, odd}}},
      };
  std::vector<Probe> probes;
  for (const auto& [name, messages] : conversations) {
    for (bool open_reply : {true, false}) {
      for (const auto& [thinking, word] :
           {std::make_pair(Thinking::kUnset, "unset"),
            std::make_pair(Thinking::kOff, "off"),
            std::make_pair(Thinking::kOn, "on")}) {
        probes.push_back(
            {absl::StrCat(name, " (thinking ", word,
                          open_reply ? ", reply opened)" : ", no reply)"),
             messages, thinking, open_reply});
      }
    }
  }
  return probes;
}

const char* RoleName(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
  }
  return "";
}

absl::StatusOr<Rendering> RenderTemplate(const JinjaTemplate& jinja,
                                         const Json& variables,
                                         const Probe& probe) {
  Json all = variables;
  Json messages = Json::array();
  for (const ChatMessage& message : probe.messages) {
    messages.push_back(
        {{"role", RoleName(message.role)}, {"content", message.text}});
  }
  all["messages"] = std::move(messages);
  all["add_generation_prompt"] = probe.open_reply;
  all["tools"] = nullptr;
  all["documents"] = nullptr;
  if (probe.thinking != Thinking::kUnset) {
    all["enable_thinking"] = probe.thinking == Thinking::kOn;
  }
  absl::StatusOr<std::string> text = jinja.Render(all);
  if (absl::IsAborted(text.status())) {
    return Rendering{true, std::string(text.status().message())};
  }
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("with the conversation \"", probe.name,
                                     "\": ", text.status().message()));
  }
  return Rendering{false, *std::move(text)};
}

Rendering RenderTable(const ChatTable& table, const Probe& probe) {
  // A model without the switch takes any setting of it and does the same.
  const bool has_switch = table.reply_open_off != table.reply_open_on ||
                          table.reply_open_off != table.reply_open_unset;
  const absl::StatusOr<std::vector<ChatPiece>> pieces =
      LayOutChat(table, probe.messages,
                 {/*at_start=*/true, probe.open_reply,
                  has_switch ? probe.thinking : Thinking::kUnset});
  if (!pieces.ok()) {
    return {true, std::string(pieces.status().message())};
  }
  Rendering rendering;
  for (const ChatPiece& piece : *pieces) rendering.text += piece.text;
  return rendering;
}

// ---- Tables -----------------------------------------------------------------

// All tables that are known, the plainest first.
std::vector<ChatTable> MakeCandidates() {
  const std::vector<std::string> openings = {"", "<think>\n",
                                             "<think>\n\n</think>\n\n"};
  const std::vector<std::optional<std::string>> systems = {
      std::nullopt,
      "You are a helpful assistant.",
      "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
  };
  ChatTable chatml;
  chatml.turn_start = "<|im_start|>";
  chatml.name_end = "\n";
  chatml.turn_end = "<|im_end|>\n";

  std::vector<ChatTable> candidates;
  for (const std::optional<std::string>& system : systems) {
    for (bool trim : {false, true}) {
      for (bool anywhere : {true, false}) {
        for (const std::string& unset : openings) {
          for (const std::string& off : openings) {
            for (const std::string& on : openings) {
              ChatTable table = chatml;
              table.default_system = system;
              table.trim_texts = trim;
              table.system_anywhere = anywhere;
              table.reply_open_unset = unset;
              table.reply_open_off = off;
              table.reply_open_on = on;
              candidates.push_back(std::move(table));
            }
          }
        }
      }
    }
  }
  return candidates;
}

std::string Quoted(absl::string_view text) {
  return ShortJson(Json(std::string(text)));
}

std::string TableName(const ChatTable& table) {
  return absl::StrCat(
      "ChatML", table.trim_texts ? ", texts trimmed" : "",
      table.default_system.has_value()
          ? absl::StrCat(", standing system message ",
                         Quoted(*table.default_system))
          : "",
      table.system_anywhere ? "" : ", system message only at the beginning",
      ", reply opened by ", Quoted(table.reply_open_unset), ", ",
      Quoted(table.reply_open_off), " with thinking off, ",
      Quoted(table.reply_open_on), " with thinking on");
}

// The part of a rendering that shows where it leaves the other.
std::string Shown(const Rendering& rendering, const Rendering& other) {
  if (rendering.refused) {
    return absl::StrCat("refuses (", Quoted(rendering.text), ")");
  }
  if (other.refused) return absl::StrCat("gives ", Quoted(rendering.text));
  constexpr size_t kContext = 20;
  const auto [here, there] =
      std::mismatch(rendering.text.begin(), rendering.text.end(),
                    other.text.begin(), other.text.end());
  const size_t at = here - rendering.text.begin();
  const size_t from = at < kContext ? 0 : at - kContext;
  return absl::StrCat("gives, from byte ", from, ", ",
                      Quoted(absl::string_view(rendering.text).substr(from)));
}

// Fills what the table knows by id: every added token that a marker spells.
absl::Status AddTokens(const TokenizerTables& tables, ChatTable* table) {
  const std::vector<const std::string*> markers = {
      &table->turn_start,       &table->turn_end,       &table->name_end,
      &table->system_name,      &table->user_name,      &table->assistant_name,
      &table->reply_open_unset, &table->reply_open_off, &table->reply_open_on};
  for (const AddedToken& token : tables.added) {
    for (const std::string* marker : markers) {
      if (!absl::StrContains(*marker, token.text)) continue;
      table->control_tokens.push_back({token.id, token.text});
      break;
    }
  }
  for (const std::string* marker : {&table->turn_start, &table->turn_end}) {
    const auto token = std::find_if(
        tables.added.begin(), tables.added.end(),
        [marker](const AddedToken& added) {
          return added.special && absl::StartsWith(*marker, added.text);
        });
    if (token == tables.added.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the chat template writes ", Quoted(*marker),
          ", but the tokenizer has no special token that begins it"));
    }
    if (marker == &table->turn_end) table->stop_tokens.push_back(token->id);
  }
  return absl::OkStatus();
}

// ---- Files ------------------------------------------------------------------

// Null: no such file. An object otherwise.
absl::StatusOr<Json> ReadOptionalJson(const std::string& path) {
  absl::StatusOr<Json> json = ReadJsonFile(path, kMaxFileBytes);
  if (absl::IsNotFound(json.status())) return Json();
  if (json.ok() && !json->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a JSON object"));
  }
  return json;
}

struct Template {
  std::string file, source;
};

// "chat_template" may be a list of named templates; the one named "default" is
// meant when nothing else is said.
absl::StatusOr<std::optional<Template>> FindInJson(const std::string& path,
                                                   const Json& json) {
  const auto found = json.find("chat_template");
  if (!json.is_object() || found == json.end() || found->is_null()) {
    return std::nullopt;
  }
  if (found->is_string()) {
    return Template{path, found->get_ref<const std::string&>()};
  }
  if (found->is_array()) {
    for (const Json& entry : *found) {
      const bool is_default =
          entry.is_object() && entry.value("name", Json()) == "default";
      if (is_default && entry.value("template", Json()).is_string()) {
        return Template{path, entry["template"].get_ref<const std::string&>()};
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": chat_template is ", ShortJson(*found),
                   "; it must be a string, or a list of named templates with "
                   "one named \"default\""));
}

// Names of tokens that a template may print. Older files wrap the text.
Json TokenVariables(const Json& config) {
  Json variables = Json::object();
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const auto found = config.find(key);
    if (!config.is_object() || found == config.end()) continue;
    if (found->is_string()) variables[key] = *found;
    if (found->is_object() && found->value("content", Json()).is_string()) {
      variables[key] = (*found)["content"];
    }
  }
  return variables;
}

absl::Status AppendIds(const std::string& path, const Json& value,
                       const TokenizerTables& tables,
                       std::vector<TokenId>* ids) {
  const Json list = value.is_array() ? value : Json::array({value});
  const int64_t limit = std::max<int64_t>(
      tables.vocab_size, static_cast<int64_t>(tables.token_bytes.size()));
  for (const Json& item : list) {
    const bool is_id = item.is_number_unsigned() &&
                       item.get<uint64_t>() < static_cast<uint64_t>(limit);
    if (!is_id) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": eos_token_id holds ", ShortJson(item),
                       "; it must hold ids below ", limit));
    }
    const TokenId id = item.get<TokenId>();
    if (std::find(ids->begin(), ids->end(), id) == ids->end()) {
      ids->push_back(id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTable> RecogniseChatTemplate(absl::string_view source,
                                                const Json& variables,
                                                const TokenizerTables& tables) {
  DELTAEDGE_ASSIGN_OR_RETURN(const JinjaTemplate jinja,
                             JinjaTemplate::Parse(source));
  const std::vector<Probe> probes = MakeProbes();
  std::vector<Rendering> wanted;
  for (const Probe& probe : probes) {
    DELTAEDGE_ASSIGN_OR_RETURN(Rendering rendering,
                               RenderTemplate(jinja, variables, probe));
    wanted.push_back(std::move(rendering));
  }

  const std::vector<ChatTable> candidates = MakeCandidates();
  size_t most = 0;
  const ChatTable* nearest = &candidates[0];
  for (const ChatTable& candidate : candidates) {
    size_t agreeing = 0;
    for (size_t i = 0; i < probes.size(); ++i) {
      agreeing += RenderTable(candidate, probes[i]) == wanted[i] ? 1 : 0;
    }
    if (agreeing > most) {
      most = agreeing;
      nearest = &candidate;
    }
    if (agreeing == probes.size()) break;
  }
  if (most == probes.size()) {
    ChatTable table = *nearest;
    DELTAEDGE_RETURN_IF_ERROR(AddTokens(tables, &table));
    return table;
  }
  for (size_t i = 0; i < probes.size(); ++i) {
    const Rendering ours = RenderTable(*nearest, probes[i]);
    if (ours == wanted[i]) continue;
    return absl::UnimplementedError(absl::StrCat(
        "the chat template is none that this converter knows. The nearest (",
        most, " of ", probes.size(), " probes) is ", TableName(*nearest),
        "; with the conversation \"", probes[i].name, "\" the template ",
        Shown(wanted[i], ours), ", and that ", Shown(ours, wanted[i])));
  }
  return absl::InternalError("no probe differs");
}

absl::StatusOr<std::vector<TokenId>> ReadStopTokens(
    const std::string& directory, const TokenizerTables& tables) {
  std::vector<TokenId> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    DELTAEDGE_ASSIGN_OR_RETURN(const Json json, ReadOptionalJson(path));
    if (json.is_null()) continue;
    Json value = json.value("eos_token_id", Json());
    const Json text_config = json.value("text_config", Json());
    if (value.is_null() && text_config.is_object()) {
      value = text_config.value("eos_token_id", Json());
    }
    if (value.is_null()) continue;
    DELTAEDGE_RETURN_IF_ERROR(AppendIds(path, value, tables, &ids));
  }
  return ids;
}

absl::StatusOr<std::optional<ChatTable>> ReadChatTable(
    const std::string& directory, const TokenizerTables& tables) {
  const std::string config_path =
      absl::StrCat(directory, "/tokenizer_config.json");
  DELTAEDGE_ASSIGN_OR_RETURN(const Json config, ReadOptionalJson(config_path));

  std::optional<Template> found;
  const std::string jinja_path =
      absl::StrCat(directory, "/chat_template.jinja");
  absl::StatusOr<std::string> jinja = ReadSmallFile(jinja_path, kMaxFileBytes);
  if (jinja.ok()) {
    found = Template{jinja_path, *std::move(jinja)};
  } else if (!absl::IsNotFound(jinja.status())) {
    return jinja.status();
  }
  if (!found.has_value()) {
    DELTAEDGE_ASSIGN_OR_RETURN(found, FindInJson(config_path, config));
  }
  if (!found.has_value()) {
    const std::string path = absl::StrCat(directory, "/chat_template.json");
    DELTAEDGE_ASSIGN_OR_RETURN(const Json json, ReadOptionalJson(path));
    DELTAEDGE_ASSIGN_OR_RETURN(found, FindInJson(path, json));
  }
  if (!found.has_value()) return std::nullopt;

  absl::StatusOr<ChatTable> table =
      RecogniseChatTemplate(found->source, TokenVariables(config), tables);
  if (!table.ok()) {
    return absl::Status(
        table.status().code(),
        absl::StrCat(found->file, ": ", table.status().message()));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(std::vector<TokenId> stops,
                             ReadStopTokens(directory, tables));
  for (TokenId id : table->stop_tokens) {
    if (std::find(stops.begin(), stops.end(), id) == stops.end()) {
      stops.push_back(id);
    }
  }
  table->stop_tokens = std::move(stops);
  return *std::move(table);
}

}  // namespace deltaedge
