// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/gguf_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/byte_alphabet.h"
#include "tools/convert/chat_template.h"
#include "tools/convert/gguf.h"
#include "tools/convert/json.h"
#include "tools/convert/json_section.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr char kModel[] = "tokenizer.ggml.model";
constexpr char kPre[] = "tokenizer.ggml.pre";
constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kNfc[] = "tokenizer.ggml.normalizer.nfc";
constexpr char kTemplate[] = "tokenizer.chat_template";

// Values of tokenizer.ggml.token_type.
enum TokenType { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct PreTokenizer {
  absl::string_view name;
  absl::string_view regex;
};

constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen2",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen35",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
     "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

class TokenizerReader {
 public:
  explicit TokenizerReader(const Gguf& file)
      : path_(file.files()[0].path()),
        keys_(file.metadata(), "", path_, &status_) {}

  absl::StatusOr<std::optional<TokenizerTables>> Read() {
    const std::string model = keys_.OptionalText(kModel).value_or("none");
    DELTAEDGE_RETURN_IF_ERROR(status_);
    if (model == "none" || model == "no_vocab") return std::nullopt;
    if (model != "gpt2") return Unsupported(kModel, "\"gpt2\"");
    DELTAEDGE_RETURN_IF_ERROR(ReadPreTokenizer());
    for (const char* key :
         {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
          "tokenizer.ggml.add_space_prefix"}) {
      if (keys_.OptionalBool(key).value_or(false)) {
        return Unsupported(key, "false");
      }
    }
    tables_.nfc = keys_.OptionalBool(kNfc).value_or(true);
    DELTAEDGE_RETURN_IF_ERROR(status_);
    DELTAEDGE_RETURN_IF_ERROR(ReadTokens());
    DELTAEDGE_RETURN_IF_ERROR(ReadMerges());
    return std::move(tables_);
  }

 private:
  absl::Status Unsupported(const char* key, absl::string_view supported) {
    return absl::UnimplementedError(absl::StrCat(path_, ": ", key, " is ",
                                                 ShortJson(*keys_.Find(key)),
                                                 "; supported: ", supported));
  }
  absl::Status Wrong(absl::string_view key, size_t i, absl::string_view wrong) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, "[", i, "] ", wrong));
  }

  // A list of any length; null after an error.
  const Json* List(const char* key) {
    const Json* const list = keys_.Find(key);
    if (list == nullptr) {
      keys_.Fail(key, "is missing");
    } else if (!list->is_array()) {
      keys_.Refuse(key, "a list is expected");
    }
    return status_.ok() ? list : nullptr;
  }

  absl::Status ReadPreTokenizer() {
    const std::string name = keys_.Text(kPre);
    DELTAEDGE_RETURN_IF_ERROR(status_);
    for (const PreTokenizer& known : kPreTokenizers) {
      if (known.name == name) {
        tables_.pretokenizer = std::string(known.regex);
        return absl::OkStatus();
      }
    }
    return Unsupported(kPre, "\"qwen2\", \"qwen35\"");
  }

  absl::Status ReadTokens() {
    const Json* const tokens = List(kTokens);
    const Json* const types = List(kTypes);
    DELTAEDGE_RETURN_IF_ERROR(status_);
    if (tokens->size() != types->size() ||
        tokens->size() > static_cast<size_t>(kMaxVocabSize)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": ", kTokens, " has ", tokens->size(), " entries and ",
          kTypes, " ", types->size(), "; as many, and at most ", kMaxVocabSize,
          ", are expected"));
    }
    tables_.vocab_size = static_cast<int32_t>(tokens->size());
    tables_.token_bytes.resize(tokens->size());
    size_t used = 0;
    for (size_t i = 0; i < tokens->size(); ++i) {
      const Json& type = (*types)[i];
      if (type == kUnused) continue;
      used = i + 1;
      DELTAEDGE_RETURN_IF_ERROR(AddToken(i, (*tokens)[i], type));
    }
    tables_.token_bytes.resize(used);
    return absl::OkStatus();
  }

  absl::Status AddToken(size_t i, const Json& token, const Json& type) {
    const auto* const text = token.get_ptr<const std::string*>();
    if (text == nullptr || text->empty()) {
      return Wrong(kTokens, i,
                   absl::StrCat("is ", ShortJson(token),
                                "; a text that is not empty is expected"));
    }
    const auto id = static_cast<TokenId>(i);
    if (type == kNormal) {
      if (!alphabet_.Decode(*text, &tables_.token_bytes[i])) {
        return Wrong(kTokens, i,
                     absl::StrCat("is ", ShortJson(token),
                                  ", which is not written in the byte "
                                  "alphabet"));
      }
      if (!ids_.emplace(*text, id).second) {
        return Wrong(kTokens, i,
                     absl::StrCat("is ", ShortJson(token),
                                  ", the text of token ", ids_[*text], " too"));
      }
      return absl::OkStatus();
    }
    if (!(type == kControl || type == kUserDefined)) {
      return Wrong(
          kTypes, i,
          absl::StrCat("is ", ShortJson(type), "; supported are ", kNormal,
                       ", ", kControl, ", ", kUserDefined, " and ", kUnused));
    }
    const auto [same, first] = added_ids_.emplace(*text, id);
    if (!first) {
      return Wrong(kTokens, i,
                   absl::StrCat("is ", ShortJson(token), ", the text of token ",
                                same->second, " too"));
    }
    AddedToken added;
    added.id = id;
    added.text = *text;
    added.special = type == kControl;
    tables_.token_bytes[i] = added.text;
    tables_.added.push_back(std::move(added));
    return absl::OkStatus();
  }

  absl::Status ReadMerges() {
    const Json* const merges = List(kMerges);
    DELTAEDGE_RETURN_IF_ERROR(status_);
    const auto id_of = [this](absl::string_view token) {
      const auto found = ids_.find(token);
      return found == ids_.end() ? -1 : found->second;
    };
    tables_.merges.reserve(merges->size());
    for (size_t i = 0; i < merges->size(); ++i) {
      const auto* const pair = (*merges)[i].get_ptr<const std::string*>();
      const size_t blank =
          pair == nullptr ? std::string::npos : pair->find(' ');
      if (blank == std::string::npos) {
        return Wrong(kMerges, i,
                     absl::StrCat("is ", ShortJson((*merges)[i]),
                                  "; two tokens with a blank between them are "
                                  "expected"));
      }
      const absl::string_view left = absl::string_view(*pair).substr(0, blank);
      const absl::string_view right =
          absl::string_view(*pair).substr(blank + 1);
      const TokenizerTables::Merge merge{id_of(left), id_of(right),
                                         id_of(absl::StrCat(left, right))};
      if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
        return Wrong(kMerges, i,
                     absl::StrCat("is ", ShortJson((*merges)[i]),
                                  ", but its parts and what they give are not "
                                  "all tokens"));
      }
      tables_.merges.push_back(merge);
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  absl::Status status_;
  JsonSection keys_;
  const ByteAlphabet alphabet_;
  TokenizerTables tables_;
  absl::flat_hash_map<std::string, TokenId> ids_;  // Of tokens of the merges.
  absl::flat_hash_map<std::string, TokenId> added_ids_;
};

// The texts of tokens that a template may print, by name.
Json TokenVariables(const Json& metadata, const TokenizerTables& tables) {
  Json variables = Json::object();
  const std::pair<const char*, const char*> kNames[] = {
      {"bos_token", "bos"},
      {"eos_token", "eos"},
      {"pad_token", "padding"},
      {"unk_token", "unknown"}};
  for (const auto& [variable, name] : kNames) {
    const auto id =
        metadata.find(absl::StrCat("tokenizer.ggml.", name, "_token_id"));
    if (id == metadata.end() || !id->is_number_unsigned()) continue;
    if (id->get<uint64_t>() >= tables.token_bytes.size()) continue;
    variables[variable] = tables.token_bytes[id->get<size_t>()];
  }
  return variables;
}

}  // namespace

absl::StatusOr<std::optional<TokenizerTables>> ReadGgufTokenizer(
    const Gguf& file) {
  return TokenizerReader(file).Read();
}

absl::StatusOr<std::optional<ChatTable>> ReadGgufChatTable(
    const Gguf& file, const TokenizerTables& tables,
    absl::Span<const TokenId> stop_tokens) {
  const std::string& path = file.files()[0].path();
  absl::Status status;
  JsonSection keys(file.metadata(), "", path, &status);
  const std::optional<std::string> source = keys.OptionalText(kTemplate);
  DELTAEDGE_RETURN_IF_ERROR(status);
  if (!source.has_value()) return std::nullopt;
  absl::StatusOr<ChatTable> table = RecogniseChatTemplate(
      *source, TokenVariables(file.metadata(), tables), tables);
  if (!table.ok()) {
    return absl::Status(
        table.status().code(),
        absl::StrCat(path, ": ", kTemplate, ": ", table.status().message()));
  }
  std::vector<TokenId> stops(stop_tokens.begin(), stop_tokens.end());
  for (const TokenId id : table->stop_tokens) {
    if (std::find(stops.begin(), stops.end(), id) == stops.end()) {
      stops.push_back(id);
    }
  }
  table->stop_tokens = std::move(stops);
  return *std::move(table);
}

}  // namespace deltaedge
