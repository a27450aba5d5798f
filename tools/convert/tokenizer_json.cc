// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tokenizer_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/byte_alphabet.h"
#include "tools/convert/json.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxIds = int64_t{1} << 24;
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;

// A value of the file and the way to it ("model.vocab").
struct Node {
  const Json* json;
  std::string path;
};

// The value for a message.
std::string Written(const Json& json) {
  if (json.is_structured()) {
    return absl::StrCat(json.is_array() ? "an array of " : "an object of ",
                        json.size());
  }
  return ShortJson(json);
}

absl::Status Unsupported(const Node& node, absl::string_view allowed) {
  return absl::UnimplementedError(absl::StrCat(
      node.path, " is ", Written(*node.json), "; supported: ", allowed));
}

absl::Status Wrong(const Node& node, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      node.path, " is ", Written(*node.json), "; it must be ", wanted));
}

absl::StatusOr<Node> Get(const Node& object, const char* key) {
  const auto found = object.json->find(key);
  if (found == object.json->end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        object.path.empty() ? "" : object.path + ".", key, " is missing"));
  }
  return Node{&*found,
              object.path.empty() ? key : absl::StrCat(object.path, ".", key)};
}

Node Item(const Node& array, size_t i) {
  return {&(*array.json)[i], absl::StrCat(array.path, "[", i, "]")};
}

absl::StatusOr<std::string> GetString(const Node& object, const char* key) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Node node, Get(object, key));
  if (!node.json->is_string()) return Wrong(node, "a string");
  return node.json->get_ref<const std::string&>();
}

absl::StatusOr<bool> GetBool(const Node& object, const char* key) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Node node, Get(object, key));
  if (!node.json->is_boolean()) return Wrong(node, "true or false");
  return node.json->get<bool>();
}

// A key that may be absent but not set to true.
absl::Status RefuseTrue(const Node& object, const char* key) {
  if (!object.json->contains(key)) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const bool value, GetBool(object, key));
  if (!value) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const Node node, Get(object, key));
  return Unsupported(node, "false");
}

// A key that may be absent, null or, if a string, empty.
absl::Status RefuseSet(const Node& object, const char* key) {
  const auto found = object.json->find(key);
  if (found == object.json->end() || found->is_null()) return absl::OkStatus();
  if (found->is_string() && found->get_ref<const std::string&>().empty()) {
    return absl::OkStatus();
  }
  return Unsupported(
      {&*found,
       absl::StrCat(object.path.empty() ? "" : object.path + ".", key)},
      "null");
}

absl::Status RefuseOtherKeys(const Node& object,
                             std::initializer_list<absl::string_view> known) {
  for (auto it = object.json->begin(); it != object.json->end(); ++it) {
    if (std::find(known.begin(), known.end(), it.key()) == known.end()) {
      return absl::UnimplementedError(absl::StrCat(
          object.path.empty() ? "" : object.path + ".", it.key(), " (",
          Written(*it), ") is not a key that this converter knows"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckObject(const Node& node) {
  return node.json->is_object() ? absl::OkStatus() : Wrong(node, "an object");
}

// The object's "type".
absl::StatusOr<std::string> GetType(const Node& node) {
  DELTAEDGE_RETURN_IF_ERROR(CheckObject(node));
  return GetString(node, "type");
}

absl::Status RefuseType(const Node& node, absl::string_view allowed) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Node type, Get(node, "type"));
  return Unsupported(type, allowed);
}

absl::StatusOr<TokenId> GetId(const Node& node) {
  if (!node.json->is_number_integer() || node.json->get<int64_t>() < 0 ||
      node.json->get<int64_t>() >= kMaxIds ||
      (node.json->is_number_unsigned() &&
       node.json->get<uint64_t>() >= static_cast<uint64_t>(kMaxIds))) {
    return Wrong(node, absl::StrCat("an id from 0 to ", kMaxIds - 1));
  }
  return static_cast<TokenId>(node.json->get<int64_t>());
}

using Vocabulary = absl::flat_hash_map<std::string, TokenId>;

// Fills token_bytes; `ids` gets the tokens as the file writes them.
absl::Status ReadVocabulary(const Node& vocab, TokenizerTables* tables,
                            Vocabulary* ids) {
  DELTAEDGE_RETURN_IF_ERROR(CheckObject(vocab));
  const ByteAlphabet alphabet;
  ids->reserve(vocab.json->size());
  for (auto it = vocab.json->begin(); it != vocab.json->end(); ++it) {
    const Node node{
        &*it, absl::StrCat(vocab.path, "[", Written(Json(it.key())), "]")};
    DELTAEDGE_ASSIGN_OR_RETURN(const TokenId id, GetId(node));
    std::string bytes;
    if (it.key().empty() || !alphabet.Decode(it.key(), &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.path, " is not written in the byte alphabet"));
    }
    if (tables->token_bytes.size() <= static_cast<size_t>(id)) {
      tables->token_bytes.resize(id + 1);
    }
    if (!tables->token_bytes[id].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.path, " is ", id, ", the id of another token"));
    }
    tables->token_bytes[id] = std::move(bytes);
    ids->emplace(it.key(), id);
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const Node& merges, const Vocabulary& ids,
                        TokenizerTables* tables) {
  if (!merges.json->is_array()) return Wrong(merges, "an array");
  const auto id_of = [&ids](const std::string& token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  tables->merges.reserve(merges.json->size());
  for (size_t i = 0; i < merges.json->size(); ++i) {
    const Node node = Item(merges, i);
    std::string left, right;
    if (node.json->is_string()) {
      const std::string& pair = node.json->get_ref<const std::string&>();
      const size_t blank = pair.find(' ');
      if (blank == std::string::npos ||
          pair.find(' ', blank + 1) != std::string::npos) {
        return Wrong(node, "two tokens with a blank between them");
      }
      left = pair.substr(0, blank);
      right = pair.substr(blank + 1);
    } else if (node.json->is_array() && node.json->size() == 2 &&
               (*node.json)[0].is_string() && (*node.json)[1].is_string()) {
      left = (*node.json)[0].get_ref<const std::string&>();
      right = (*node.json)[1].get_ref<const std::string&>();
    } else {
      return Wrong(node, "two tokens");
    }
    const TokenizerTables::Merge merge{id_of(left), id_of(right),
                                       id_of(left + right)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.path, ": ",
                       Written(Json(merge.left < 0    ? left
                                    : merge.right < 0 ? right
                                                      : left + right)),
                       " is not in model.vocab"));
    }
    tables->merges.push_back(merge);
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Node& model, TokenizerTables* tables,
                       Vocabulary* ids) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string type, GetType(model));
  if (type != "BPE") return RefuseType(model, "\"BPE\"");
  DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(
      model, {"type", "dropout", "unk_token", "continuing_subword_prefix",
              "end_of_word_suffix", "fuse_unk", "byte_fallback",
              "ignore_merges", "vocab", "merges"}));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix",
                          "end_of_word_suffix"}) {
    DELTAEDGE_RETURN_IF_ERROR(RefuseSet(model, key));
  }
  DELTAEDGE_RETURN_IF_ERROR(RefuseTrue(model, "fuse_unk"));
  DELTAEDGE_RETURN_IF_ERROR(RefuseTrue(model, "byte_fallback"));
  if (model.json->contains("ignore_merges")) {
    DELTAEDGE_ASSIGN_OR_RETURN(tables->ignore_merges,
                               GetBool(model, "ignore_merges"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const Node vocab, Get(model, "vocab"));
  DELTAEDGE_RETURN_IF_ERROR(ReadVocabulary(vocab, tables, ids));
  DELTAEDGE_ASSIGN_OR_RETURN(const Node merges, Get(model, "merges"));
  return ReadMerges(merges, *ids, tables);
}

absl::Status ReadNormalizer(const Node& normalizer, TokenizerTables* tables) {
  if (normalizer.json->is_null()) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string type, GetType(normalizer));
  if (type == "NFC") {
    DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(normalizer, {"type"}));
    tables->nfc = true;
    return absl::OkStatus();
  }
  if (type != "Sequence")
    return RefuseType(normalizer, "\"NFC\", \"Sequence\"");
  DELTAEDGE_RETURN_IF_ERROR(
      RefuseOtherKeys(normalizer, {"type", "normalizers"}));
  DELTAEDGE_ASSIGN_OR_RETURN(const Node list, Get(normalizer, "normalizers"));
  if (!list.json->is_array()) return Wrong(list, "an array");
  for (size_t i = 0; i < list.json->size(); ++i) {
    const Node item = Item(list, i);
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string item_type, GetType(item));
    if (item_type != "NFC") return RefuseType(item, "\"NFC\"");
    DELTAEDGE_RETURN_IF_ERROR(ReadNormalizer(item, tables));
  }
  return absl::OkStatus();
}

absl::Status ReadSplit(const Node& split, TokenizerTables* tables) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string type, GetType(split));
  if (type != "Split") return RefuseType(split, "\"Split\"");
  DELTAEDGE_RETURN_IF_ERROR(
      RefuseOtherKeys(split, {"type", "pattern", "behavior", "invert"}));
  DELTAEDGE_ASSIGN_OR_RETURN(const Node pattern, Get(split, "pattern"));
  DELTAEDGE_RETURN_IF_ERROR(CheckObject(pattern));
  DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(pattern, {"Regex"}));
  DELTAEDGE_ASSIGN_OR_RETURN(tables->pretokenizer, GetString(pattern, "Regex"));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string behavior,
                             GetString(split, "behavior"));
  if (behavior != "Isolated") {
    DELTAEDGE_ASSIGN_OR_RETURN(const Node node, Get(split, "behavior"));
    return Unsupported(node, "\"Isolated\"");
  }
  return RefuseTrue(split, "invert");
}

// Offsets are no concern of ours, so trim_offsets may be anything.
absl::Status CheckByteLevel(const Node& node, bool as_pre_tokenizer) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string type, GetType(node));
  if (type != "ByteLevel") return RefuseType(node, "\"ByteLevel\"");
  DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(
      node, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  if (!as_pre_tokenizer) return absl::OkStatus();
  for (const char* key : {"add_prefix_space", "use_regex"}) {
    // Both are true where they are not said.
    DELTAEDGE_RETURN_IF_ERROR(Get(node, key).status());
    DELTAEDGE_RETURN_IF_ERROR(RefuseTrue(node, key));
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Node& node, TokenizerTables* tables) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string type, GetType(node));
  if (type != "Sequence") return RefuseType(node, "\"Sequence\"");
  DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(node, {"type", "pretokenizers"}));
  DELTAEDGE_ASSIGN_OR_RETURN(const Node list, Get(node, "pretokenizers"));
  if (!list.json->is_array() || list.json->size() != 2) {
    return Wrong(list, "an array of two: Split and ByteLevel");
  }
  DELTAEDGE_RETURN_IF_ERROR(ReadSplit(Item(list, 0), tables));
  return CheckByteLevel(Item(list, 1), /*as_pre_tokenizer=*/true);
}

absl::Status ReadAddedTokens(const Node& list, const Vocabulary& ids,
                             TokenizerTables* tables) {
  if (!list.json->is_array()) return Wrong(list, "an array");
  std::vector<bool> in_vocabulary(tables->token_bytes.size());
  for (const auto& [text, id] : ids) in_vocabulary[id] = true;
  for (size_t i = 0; i < list.json->size(); ++i) {
    const Node node = Item(list, i);
    DELTAEDGE_RETURN_IF_ERROR(CheckObject(node));
    DELTAEDGE_RETURN_IF_ERROR(
        RefuseOtherKeys(node, {"id", "content", "single_word", "lstrip",
                               "rstrip", "normalized", "special"}));
    AddedToken token;
    DELTAEDGE_ASSIGN_OR_RETURN(const Node id, Get(node, "id"));
    DELTAEDGE_ASSIGN_OR_RETURN(token.id, GetId(id));
    DELTAEDGE_ASSIGN_OR_RETURN(token.text, GetString(node, "content"));
    if (token.text.empty()) {
      DELTAEDGE_ASSIGN_OR_RETURN(const Node content, Get(node, "content"));
      return Wrong(content, "not empty");
    }
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      DELTAEDGE_RETURN_IF_ERROR(RefuseTrue(node, key));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(token.normalized, GetBool(node, "normalized"));
    DELTAEDGE_ASSIGN_OR_RETURN(token.special, GetBool(node, "special"));

    if (tables->token_bytes.size() <= static_cast<size_t>(token.id)) {
      tables->token_bytes.resize(token.id + 1);
      in_vocabulary.resize(token.id + 1);
    }
    std::string& bytes = tables->token_bytes[token.id];
    const auto same_text = ids.find(token.text);
    const bool clash =
        in_vocabulary[token.id]
            ? same_text == ids.end() || same_text->second != token.id
            : !bytes.empty() || same_text != ids.end();
    if (clash) {
      return absl::InvalidArgumentError(absl::StrCat(
          node.path, ": ", Written(Json(token.text)), " with id ", token.id,
          " clashes with another token of that text or id"));
    }
    bytes = token.text;
    tables->added.push_back(std::move(token));
  }
  std::sort(
      tables->added.begin(), tables->added.end(),
      [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return absl::OkStatus();
}

absl::StatusOr<TokenizerTables> ReadTables(const Json& json) {
  const Node root{&json, ""};
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the file is not a JSON object");
  }
  DELTAEDGE_RETURN_IF_ERROR(RefuseOtherKeys(
      root, {"version", "truncation", "padding", "added_tokens", "normalizer",
             "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (json.contains("version")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Node version, Get(root, "version"));
    if (*version.json != "1.0") return Unsupported(version, "\"1.0\"");
  }
  DELTAEDGE_RETURN_IF_ERROR(RefuseSet(root, "truncation"));
  DELTAEDGE_RETURN_IF_ERROR(RefuseSet(root, "padding"));

  TokenizerTables tables;
  Vocabulary ids;
  DELTAEDGE_ASSIGN_OR_RETURN(const Node model, Get(root, "model"));
  DELTAEDGE_RETURN_IF_ERROR(ReadModel(model, &tables, &ids));
  if (json.contains("normalizer")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Node normalizer, Get(root, "normalizer"));
    DELTAEDGE_RETURN_IF_ERROR(ReadNormalizer(normalizer, &tables));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const Node pre, Get(root, "pre_tokenizer"));
  DELTAEDGE_RETURN_IF_ERROR(ReadPreTokenizer(pre, &tables));
  if (json.contains("post_processor") && !json["post_processor"].is_null()) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Node post, Get(root, "post_processor"));
    DELTAEDGE_RETURN_IF_ERROR(CheckByteLevel(post, /*as_pre_tokenizer=*/false));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const Node decoder, Get(root, "decoder"));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckByteLevel(decoder, /*as_pre_tokenizer=*/false));
  if (json.contains("added_tokens")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Node added, Get(root, "added_tokens"));
    DELTAEDGE_RETURN_IF_ERROR(ReadAddedTokens(added, ids, &tables));
  }
  if (tables.token_bytes.empty()) {
    return absl::InvalidArgumentError("model.vocab is empty");
  }
  tables.vocab_size = static_cast<int32_t>(tables.token_bytes.size());
  return tables;
}

}  // namespace

absl::StatusOr<TokenizerTables> ParseTokenizerJson(absl::string_view json,
                                                   absl::string_view name) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Json parsed, ParseJson(json, name));
  absl::StatusOr<TokenizerTables> tables = ReadTables(parsed);
  if (!tables.ok()) {
    return absl::Status(tables.status().code(),
                        absl::StrCat(name, ": ", tables.status().message()));
  }
  return tables;
}

absl::StatusOr<TokenizerTables> ReadTokenizerJson(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, kMaxFileBytes));
  return ParseTokenizerJson(text, path);
}

}  // namespace deltaedge
