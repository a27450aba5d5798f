// SPDX-License-Identifier: Apache-2.0

#include "tools/inspect/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "nlohmann/json.hpp"
#include "schema/header.h"
#include "tools/convert/random_access_file.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {
namespace {

// In the order in which things are said.
using Json = nlohmann::ordered_json;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

// --- What the file says ------------------------------------------------------

absl::StatusOr<Json> HeaderJson(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(const RandomAccessFile file,
                             RandomAccessFile::Open(path));
  uint8_t bytes[schema::kHeaderBytes];
  DELTAEDGE_RETURN_IF_ERROR(file.Read(0, sizeof(bytes), bytes));
  schema::FileHeader header;
  if (schema::ParseHeader(bytes, &header) != schema::HeaderResult::kOk) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': the header changed while it was read"));
  }
  return Json{{"file_bytes", file.size_bytes()},
              {"version", header.version},
              {"index_bytes", header.index_bytes},
              {"first_segment", header.first_segment},
              {"segment_bytes", header.segment_bytes},
              {"checksum", absl::StrFormat("%08x", header.index_checksum)}};
}

Json AttentionJson(const AttentionConfig& attention) {
  return {{"query_heads", attention.query_heads},
          {"kv_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"rotary_dim", attention.rotary_dim},
          {"rope_theta", attention.rope_theta}};
}

Json ConfigJson(const TargetConfig& config) {
  Json layers = Json::array();
  for (const LayerKind kind : config.layers) {
    layers.push_back(kind == LayerKind::kGatedDeltaNet ? "gated_delta"
                                                       : "attention");
  }
  Json json = {{"vocab_size", config.vocab_size},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"max_context", config.max_context},
               {"rms_norm_eps", config.rms_norm_eps},
               {"tied_head", config.tied_head},
               {"gdn",
                {{"key_heads", config.gdn.key_heads},
                 {"value_heads", config.gdn.value_heads},
                 {"key_dim", config.gdn.key_dim},
                 {"value_dim", config.gdn.value_dim},
                 {"conv_width", config.gdn.conv_width}}},
               {"attention", AttentionJson(config.attention)},
               {"layers", layers}};
  if (config.moe.experts == 0) return json;
  const MoeConfig& moe = config.moe;
  Json kinds = Json::array();
  for (const bool sparse : moe.layers) {
    kinds.push_back(sparse ? "experts" : "dense");
  }
  json["moe"] = {{"experts", moe.experts},
                 {"experts_per_token", moe.experts_per_token},
                 {"expert_size", moe.expert_size},
                 {"shared_size", moe.shared_size},
                 {"normalise", moe.normalise},
                 {"layers", kinds}};
  return json;
}

Json ConfigJson(const DraftConfig& config) {
  Json windows = Json::array();
  for (const DraftLayerConfig& layer : config.layers) {
    windows.push_back(layer.sliding_window);
  }
  return {
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"block_size", config.block_size},
      {"mask_token", config.mask_token},
      {"rms_norm_eps", config.rms_norm_eps},
      {"attention", AttentionJson(config.attention)},
      {"sliding_mask",
       config.sliding_mask == SlidingMask::kCausal ? "causal" : "symmetric"},
      {"sliding_windows", windows},
      {"target_layers", config.target_layers},
      {"target_layer_count", config.target_layer_count}};
}

Json TokenizerJson(const TokenizerTables& tables) {
  const auto special =
      std::count_if(tables.added.begin(), tables.added.end(),
                    [](const AddedToken& token) { return token.special; });
  return {
      {"tokens", tables.token_bytes.size()},  {"merges", tables.merges.size()},
      {"added_tokens", tables.added.size()},  {"special_tokens", special},
      {"pretokenizer", tables.pretokenizer},  {"nfc", tables.nfc},
      {"ignore_merges", tables.ignore_merges}};
}

Json ChatJson(const ChatTable& chat) {
  Json json = {
      {"turn_start", chat.turn_start},
      {"roles", {chat.system_name, chat.user_name, chat.assistant_name}},
      {"name_end", chat.name_end},
      {"turn_end", chat.turn_end},
      {"reply_open",
       {{"unset", chat.reply_open_unset},
        {"off", chat.reply_open_off},
        {"on", chat.reply_open_on}}},
      {"default_system", nullptr},
      {"trim_texts", chat.trim_texts},
      {"system_anywhere", chat.system_anywhere},
      {"stop_tokens", chat.stop_tokens}};
  if (chat.default_system.has_value()) {
    json["default_system"] = *chat.default_system;
  }
  return json;
}

// By part and type, as the converter counts them.
std::vector<StoredWeights> Stored(const ModelFile& file) {
  std::vector<TensorSpec> specs = file.kind() == ModelKind::kTarget
                                      ? TensorSpecs(file.target_config())
                                      : TensorSpecs(file.draft_config());
  absl::flat_hash_map<absl::string_view, WeightType> types;
  for (const TensorEntry& tensor : file.tensors()) {
    types.emplace(tensor.name, tensor.type);
  }
  for (TensorSpec& spec : specs) spec.type = types.at(spec.name);
  return CountWeights(specs);
}

int64_t Elements(const std::vector<int32_t>& shape) {
  int64_t elements = 1;
  for (const int32_t extent : shape) elements *= extent;
  return elements;
}

absl::StatusOr<Json> FileJson(const ModelFile& file, bool verified) {
  DELTAEDGE_ASSIGN_OR_RETURN(Json header, HeaderJson(file.path()));
  const bool is_target = file.kind() == ModelKind::kTarget;
  Json json = {{"path", file.path()},
               {"kind", ModelKindName(file.kind())},
               {"name", is_target ? file.target_config().name
                                  : file.draft_config().name},
               {"converter", file.converter()},
               {"fingerprint", Hex(file.fingerprint())}};
  if (!is_target) json["target_fingerprint"] = Hex(file.target_fingerprint());
  json["checksums"] = verified ? "right" : "not compared";
  json["header"] = std::move(header);
  json["config"] = is_target ? ConfigJson(file.target_config())
                             : ConfigJson(file.draft_config());
  if (is_target) {
    json["tokenizer"] = nullptr;
    json["chat"] = nullptr;
    if (file.tokenizer().has_value()) {
      json["tokenizer"] = TokenizerJson(*file.tokenizer());
    }
    if (file.chat().has_value()) json["chat"] = ChatJson(*file.chat());
    json["stop_tokens"] = file.stop_tokens();
  }
  int64_t parameters = 0;
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors()) {
    parameters += Elements(tensor.shape);
    tensors.push_back({{"name", tensor.name},
                       {"type", WeightTypeName(tensor.type)},
                       {"shape", tensor.shape},
                       {"offset_bytes", tensor.offset_bytes},
                       {"size_bytes", tensor.size_bytes},
                       {"checksum", absl::StrFormat("%08x", tensor.checksum)}});
  }
  json["parameters"] = parameters;
  json["weight_bytes"] = file.weight_bytes();
  json["weights"] = Json::array();
  for (const StoredWeights& stored : Stored(file)) {
    json["weights"].push_back({{"part", TensorRoleName(stored.role)},
                               {"type", WeightTypeName(stored.type)},
                               {"tensors", stored.tensors},
                               {"bytes", stored.bytes}});
  }
  json["tensors"] = std::move(tensors);
  return json;
}

// --- What a tensor holds -----------------------------------------------------

class Statistics {
 public:
  void Add(float value) {
    ++count_;
    if (std::isnan(value)) {
      ++nans_;
    } else if (std::isinf(value)) {
      ++infinities_;
    } else {
      ++finite_;
      zeros_ += value == 0;
      min_ = std::min(min_, value);
      max_ = std::max(max_, value);
      sum_ += value;
      squares_ += double{value} * value;
    }
  }

  Json ToJson() const {
    Json json = {
        {"count", count_}, {"zeros", zeros_}, {"infinities", infinities_},
        {"nans", nans_},   {"min", nullptr},  {"max", nullptr},
        {"mean", nullptr}, {"rms", nullptr}};
    if (finite_ == 0) return json;
    const auto finite = static_cast<double>(finite_);
    json["min"] = min_;
    json["max"] = max_;
    json["mean"] = sum_ / finite;
    json["rms"] = std::sqrt(squares_ / finite);
    return json;
  }

 private:
  int64_t count_ = 0, finite_ = 0, zeros_ = 0, infinities_ = 0, nans_ = 0;
  float min_ = std::numeric_limits<float>::infinity();
  float max_ = -std::numeric_limits<float>::infinity();
  double sum_ = 0, squares_ = 0;
};

// Of a model's own weights, copies of views.
template <class Config, class Weights>
std::optional<Json> TensorStatistics(const Config& config, Weights weights,
                                     absl::string_view name) {
  for (const TensorSlot& slot : TensorSlots(config, &weights)) {
    if (slot.name != name) continue;
    Statistics statistics;
    if (slot.vector != nullptr) {
      const float* const values = *slot.vector;
      std::for_each(values, values + Elements(slot.shape),
                    [&](float value) { statistics.Add(value); });
    } else {
      std::vector<float> row(static_cast<size_t>(slot.matrix->cols));
      for (int64_t i = 0; i < slot.matrix->rows; ++i) {
        DequantiseRow(*slot.matrix, i, row.data());
        for (const float value : row) statistics.Add(value);
      }
    }
    return statistics.ToJson();
  }
  return std::nullopt;
}

absl::Status NoSuchTensor(const ModelFile& file, absl::string_view name) {
  constexpr size_t kShown = 10;
  std::vector<absl::string_view> near;
  for (const TensorEntry& tensor : file.tensors()) {
    if (near.size() < kShown && absl::StrContains(tensor.name, name)) {
      near.push_back(tensor.name);
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "'", file.path(), "' has no tensor '", absl::Utf8SafeCHexEscape(name),
      "'",
      near.empty() ? "; without --tensor all are listed"
                   : absl::StrCat("; there are ", absl::StrJoin(near, ", "))));
}

absl::StatusOr<Json> TensorJson(const ModelFile& file,
                                const std::string& name) {
  const std::optional<Json> statistics =
      file.kind() == ModelKind::kTarget
          ? TensorStatistics(file.target_config(), file.target_weights(), name)
          : TensorStatistics(file.draft_config(), file.draft_weights(), name);
  if (!statistics.has_value()) return NoSuchTensor(file, name);
  const TensorEntry& tensor = *std::find_if(
      file.tensors().begin(), file.tensors().end(),
      [&](const TensorEntry& entry) { return entry.name == name; });
  return Json{{"path", file.path()},
              {"tensor", name},
              {"type", WeightTypeName(tensor.type)},
              {"shape", tensor.shape},
              {"size_bytes", tensor.size_bytes},
              {"statistics", *statistics}};
}

// --- For people --------------------------------------------------------------

std::string ValueText(const Json& value) {
  if (value.is_string()) {
    return absl::Utf8SafeCHexEscape(value.get_ref<const std::string&>());
  }
  if (value.is_null()) return "none";
  if (value.is_number_float()) {
    return absl::StrFormat("%.7g", value.get<double>());
  }
  if (!value.is_array()) return value.dump();
  std::vector<std::string> texts;
  for (const Json& entry : value) texts.push_back(ValueText(entry));
  // "3 x gated_delta, attention": layers repeat.
  std::string text;
  for (size_t i = 0, end; i < texts.size(); i = end) {
    for (end = i + 1; end < texts.size() && texts[end] == texts[i];) ++end;
    absl::StrAppend(&text, i == 0 ? "" : ", ");
    if (end - i > 2) {
      absl::StrAppend(&text, end - i, " x ", texts[i]);
    } else {
      absl::StrAppend(
          &text,
          absl::StrJoin(texts.begin() + static_cast<ptrdiff_t>(i),
                        texts.begin() + static_cast<ptrdiff_t>(end), ", "));
    }
  }
  return text.empty() ? "none" : text;
}

bool IsTable(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_object();
}

// Rows of objects of one kind, columns as wide as they need to be, numbers at
// the right.
void AppendTable(const Json& rows, std::string* out) {
  std::vector<std::vector<std::string>> columns;
  std::vector<bool> numbers;
  for (const auto& [key, value] : rows[0].items()) {
    columns.push_back({key});
    numbers.push_back(value.is_number());
  }
  for (const Json& row : rows) {
    size_t column = 0;
    for (const auto& [key, value] : row.items()) {
      columns[column++].push_back(
          key == "shape" ? ShapeText(value.get<std::vector<int32_t>>())
                         : ValueText(value));
    }
  }
  std::vector<int> widths;
  for (const auto& column : columns) {
    size_t width = 0;
    for (const std::string& cell : column) width = std::max(width, cell.size());
    widths.push_back(static_cast<int>(width));
  }
  for (size_t row = 0; row < columns[0].size(); ++row) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      absl::StrAppend(
          &line, "  ",
          numbers[i] ? absl::StrFormat("%*s", widths[i], columns[i][row])
                     : absl::StrFormat("%-*s", widths[i], columns[i][row]));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(out, line, "\n");
  }
}

void AppendObject(const Json& object, int indent, std::string* out) {
  constexpr int kNameWidth = 20;
  const std::string margin(static_cast<size_t>(indent), ' ');
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      absl::StrAppend(out, margin, key, "\n");
      AppendObject(value, indent + 2, out);
    } else if (IsTable(value)) {
      absl::StrAppend(out, margin, key, "\n");
      AppendTable(value, out);
    } else {
      absl::StrAppend(
          out, margin,
          absl::StrFormat("%-*s %s", kNameWidth - indent, key,
                          key == "shape"
                              ? ShapeText(value.get<std::vector<int32_t>>())
                              : ValueText(value)),
          "\n");
    }
  }
}

}  // namespace

absl::StatusOr<std::string> Inspect(const InspectOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelFile> file,
      ModelFile::Open(options.path, options.verify
                                        ? ModelFile::Verify::kChecksums
                                        : ModelFile::Verify::kStructure));
  DELTAEDGE_ASSIGN_OR_RETURN(const Json json,
                             options.tensor.empty()
                                 ? FileJson(*file, options.verify)
                                 : TensorJson(*file, options.tensor));
  if (options.json) {
    // Names and chat texts are bytes of the file, and need not be UTF-8.
    return absl::StrCat(json.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false,
                                  Json::error_handler_t::replace),
                        "\n");
  }
  std::string text;
  AppendObject(json, /*indent=*/0, &text);
  return text;
}

}  // namespace deltaedge
