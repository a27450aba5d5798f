// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/hub_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "nlohmann/json.hpp"
#include "tools/convert/byte_alphabet.h"
#include "tools/convert/tensor_map.h"
#include "tools/convert/tensor_source.h"
#include "tools/make_random/make_random.h"
#include "tools/make_random/random_tensor.h"
#include "tools/make_random/safetensors_writer.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr int64_t kPieceElements = 1 << 18;

// ByteChat() as a template.
constexpr char kByteTemplate[] =
    R"({%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- elif enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
)";

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// A folder that takes its place when Publish() succeeds, and is removed with
// all that is in it otherwise.
class NewFolder {
 public:
  explicit NewFolder(std::string path)
      : path_(WithoutTrailingSlashes(std::move(path))),
        temporary_(absl::StrCat(path_, ".partial-", getpid())) {}
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  }

  absl::Status Make() {
    std::error_code error;
    // Also a link that leads nowhere.
    if (std::filesystem::exists(
            std::filesystem::symlink_status(path_, error))) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": is there already"));
    }
    if (!std::filesystem::create_directory(temporary_, error)) {
      return absl::ErrnoToStatus(error ? error.value() : EEXIST,
                                 absl::StrCat(temporary_, ": cannot be made"));
    }
    return absl::OkStatus();
  }

  const std::string& path() const { return path_; }
  // Where to write.
  const std::string& folder() const { return temporary_; }

  absl::Status Write(const std::string& name, const Json& json) const {
    const std::string path = absl::StrCat(temporary_, "/", name);
    std::ofstream file(path, std::ios::binary);
    file << json.dump(2) << "\n";
    file.close();
    if (file) return absl::OkStatus();
    return absl::ErrnoToStatus(errno,
                               absl::StrCat(path, ": cannot be written"));
  }

  absl::Status Publish() const {
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (!error) return absl::OkStatus();
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat(path_, ": cannot be made"));
  }

 private:
  const std::string path_;
  const std::string temporary_;
};

// Tensors that are only listed, to be asked where their numbers would go.
class ListedTensors : public TensorSource {
 public:
  explicit ListedTensors(const std::vector<HubTensor>& tensors)
      : TensorSource("the config") {
    for (const HubTensor& tensor : tensors) {
      SourceTensor& entry = entries_[tensor.name];
      entry.dtype = "F32";
      entry.is_float = true;
      entry.shape = tensor.shape;
      entry.elements = 1;
      for (const int64_t extent : tensor.shape) entry.elements *= extent;
    }
  }

  absl::Status ReadFloats(const SourceTensor&, int64_t,
                          absl::Span<float>) const override {
    return absl::UnimplementedError("these tensors hold nothing");
  }
};

// Elements [first, first + elements) of a tensor of a checkpoint: those of a
// model file's tensor from `from` on.
struct Piece {
  int64_t first = 0;
  int64_t elements = 0;
  const TensorSpec* spec = nullptr;
  int64_t from = 0;
};

// The pieces of each tensor of a checkpoint, in order: what conversion does
// with it, turned round.
absl::btree_map<std::string, std::vector<Piece>> PiecesOf(
    const TensorMap& map) {
  absl::btree_map<std::string, std::vector<Piece>> pieces;
  for (const MappedTensor& tensor : map.tensors) {
    int64_t from = 0;
    for (const SourcePart& part : tensor.parts) {
      pieces[part.name].push_back(
          {part.first, part.elements, &tensor.spec, from});
      from += part.elements;
    }
  }
  for (auto& [name, list] : pieces) {
    std::sort(list.begin(), list.end(),
              [](const Piece& a, const Piece& b) { return a.first < b.first; });
  }
  return pieces;
}

absl::Status WriteTensors(std::vector<HubTensor> tensors, const TensorMap& map,
                          ModelKind kind, const RandomModelOptions& options,
                          const HubFolderOptions& hub,
                          const NewFolder& folder) {
  const auto pieces = PiecesOf(map);
  std::vector<SafetensorsSpec> specs;
  for (HubTensor& tensor : tensors) {
    const RandomTensor numbers(*pieces.at(tensor.name)[0].spec, kind,
                               options.numbers);
    specs.push_back(
        {std::move(tensor.name), std::move(tensor.shape), numbers.bf16()});
  }
  std::stable_partition(specs.begin(), specs.end(),
                        [](const SafetensorsSpec& spec) { return !spec.bf16; });
  SafetensorsWriter writer(folder.folder(), specs, hub.max_shard_bytes);
  for (const SafetensorsSpec& spec : specs) {
    for (const Piece& piece : pieces.at(spec.name)) {
      const RandomTensor numbers(*piece.spec, kind, options.numbers);
      for (int64_t done = 0; done < piece.elements; done += kPieceElements) {
        if (options.stop != nullptr && options.stop->load()) {
          return absl::CancelledError(
              absl::StrCat(folder.path(), ": stopped at tensor ", spec.name));
        }
        DELTAEDGE_RETURN_IF_ERROR(writer.Append(
            numbers.Source(piece.from + done,
                           std::min(kPieceElements, piece.elements - done))));
      }
    }
  }
  return writer.Finish();
}

// The number that people would write for `value`.
double Shortest(float value) {
  double number = value;
  static_cast<void>(absl::SimpleAtod(absl::StrCat(value), &number));
  return number;
}

Json AttentionKeys(const AttentionConfig& attention) {
  return {{"num_attention_heads", attention.query_heads},
          {"num_key_value_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"hidden_act", "silu"},
          {"attention_bias", false}};
}

double RotaryFactor(const AttentionConfig& attention) {
  return static_cast<double>(attention.rotary_dim) / attention.head_dim;
}

Json TargetJson(const TargetConfig& config, const RandomModelOptions& options,
                HubLayout layout) {
  const bool next = layout == HubLayout::kQwen3Next;
  const bool moe = config.moe.experts > 0;
  Json json = AttentionKeys(config.attention);
  json["architectures"] = {next  ? "Qwen3NextForCausalLM"
                           : moe ? "Qwen3_5MoeForCausalLM"
                                 : "Qwen3_5ForCausalLM"};
  json["model_type"] = next  ? "qwen3_next"
                       : moe ? "qwen3_5_moe_text"
                             : "qwen3_5_text";
  json["dtype"] = options.numbers.bf16 ? "bfloat16" : "float32";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.layers.size();
  json["max_position_embeddings"] = config.max_context;
  json["rms_norm_eps"] = Shortest(config.rms_norm_eps);
  json["tie_word_embeddings"] = config.tied_head;
  json["linear_num_key_heads"] = config.gdn.key_heads;
  json["linear_num_value_heads"] = config.gdn.value_heads;
  json["linear_key_head_dim"] = config.gdn.key_dim;
  json["linear_value_head_dim"] = config.gdn.value_dim;
  json["linear_conv_kernel_dim"] = config.gdn.conv_width;
  for (const LayerKind kind : config.layers) {
    json["layer_types"].push_back(kind == LayerKind::kFullAttention
                                      ? "full_attention"
                                      : "linear_attention");
  }
  if (!options.stop_tokens.empty()) {
    json["eos_token_id"] = options.stop_tokens;
  }
  const double factor = RotaryFactor(config.attention);
  if (next) {
    json["rope_theta"] = config.attention.rope_theta;
    json["partial_rotary_factor"] = factor;
  } else {
    // Of the frequencies, as the published models divide them.
    const int32_t pairs = config.attention.rotary_dim / 2;
    const int32_t width = pairs / 3, height = (pairs - width) / 2;
    json["mamba_ssm_dtype"] = "float32";
    json["rope_parameters"] = {
        {"rope_type", "default"},
        {"rope_theta", config.attention.rope_theta},
        {"partial_rotary_factor", factor},
        {"mrope_interleaved", true},
        {"mrope_section", {pairs - width - height, height, width}}};
  }
  if (config.intermediate_size > 0) {
    json["intermediate_size"] = config.intermediate_size;
  }
  if (moe) {
    json["num_experts"] = config.moe.experts;
    json["num_experts_per_tok"] = config.moe.experts_per_token;
    json["moe_intermediate_size"] = config.moe.expert_size;
    json["shared_expert_intermediate_size"] = config.moe.shared_size;
    json["norm_topk_prob"] = config.moe.normalise;
  }
  if (next) {
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    for (size_t i = 0; moe && i < config.layers.size(); ++i) {
      if (!config.moe.layers[i]) json["mlp_only_layers"].push_back(i);
    }
    if (!moe) json["num_experts"] = 0;
  }
  return json;
}

// Whether the config says something that the layout cannot.
absl::Status CheckLayout(const TargetConfig& config, HubLayout layout) {
  if (layout == HubLayout::kQwen3Next || config.moe.experts == 0) {
    return absl::OkStatus();
  }
  const auto& layers = config.moe.layers;
  if (config.moe.normalise &&
      std::find(layers.begin(), layers.end(), false) == layers.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "only the layout of Qwen3-Next has layers without experts beside those "
      "with, or weights of experts that do not add up to 1");
}

absl::StatusOr<Json> DraftJson(const DraftConfig& config,
                               const RandomModelOptions& options) {
  Json json = AttentionKeys(config.attention);
  json["architectures"] = {"DFlashDraftModel"};
  json["model_type"] = "qwen3";
  json["dtype"] = options.numbers.bf16 ? "bfloat16" : "float32";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.layers.size();
  json["rms_norm_eps"] = Shortest(config.rms_norm_eps);
  json["rope_theta"] = config.attention.rope_theta;
  if (config.attention.rotary_dim != config.attention.head_dim) {
    json["partial_rotary_factor"] = RotaryFactor(config.attention);
  }
  json["block_size"] = config.block_size;
  json["num_target_layers"] = config.target_layer_count;
  json["dflash_config"] = {{"mask_token_id", config.mask_token},
                           {"target_layer_ids", config.target_layers}};
  int32_t window = 0;
  for (const DraftLayerConfig& layer : config.layers) {
    const bool slides = layer.sliding_window > 0;
    json["layer_types"].push_back(slides ? "sliding_attention"
                                         : "full_attention");
    if (slides && window > 0 && window != layer.sliding_window) {
      return absl::InvalidArgumentError(
          absl::StrCat("the draft has windows of ", window, " and of ",
                       layer.sliding_window, "; a config.json has one"));
    }
    if (slides) window = layer.sliding_window;
  }
  json["use_sliding_window"] = window > 0;
  if (window > 0) json["sliding_window"] = window;
  if (config.sliding_mask == SlidingMask::kSymmetric) {
    json["is_causal"] = false;
  }
  return json;
}

Json TokenizerJson(const TokenizerTables& tables) {
  const ByteAlphabet alphabet;
  Json vocab = Json::object(), added = Json::array();
  for (int id = 0; id < 256; ++id) {
    vocab[alphabet.Encode(tables.token_bytes[id])] = id;
  }
  for (const AddedToken& token : tables.added) {
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", tables.pretokenizer}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

absl::Status WriteTokenizer(int32_t vocab_size, const NewFolder& folder) {
  const TokenizerTables tables = ByteTokenizer(vocab_size);
  DELTAEDGE_RETURN_IF_ERROR(
      folder.Write("tokenizer.json", TokenizerJson(tables)));
  DELTAEDGE_RETURN_IF_ERROR(
      folder.Write("tokenizer_config.json",
                   {{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"eos_token", tables.token_bytes[kByteTurnEnd]},
                    {"pad_token", tables.token_bytes[kByteEndOfText]},
                    {"chat_template", kByteTemplate}}));
  return folder.Write("generation_config.json",
                      {{"eos_token_id", ByteChat().stop_tokens}});
}

absl::Status CheckFloats(const RandomModelOptions& options) {
  const WeightRecipe& recipe = options.recipe;
  for (const auto& type : {recipe.head, recipe.gdn, recipe.experts}) {
    if (type.value_or(WeightType::kF32) != WeightType::kF32) {
      return absl::InvalidArgumentError(
          "weights are f32 or bf16 in a checkpoint");
    }
  }
  return recipe.weights == WeightType::kF32
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "weights are f32 or bf16 in a checkpoint");
}

}  // namespace

absl::Status MakeRandomTargetFolder(const TargetConfig& config,
                                    const std::string& output,
                                    const RandomModelOptions& options,
                                    const HubFolderOptions& hub) {
  DELTAEDGE_RETURN_IF_ERROR(Validate(config));
  DELTAEDGE_RETURN_IF_ERROR(CheckFloats(options));
  DELTAEDGE_RETURN_IF_ERROR(CheckLayout(config, hub.layout));
  NewFolder folder(output);
  DELTAEDGE_RETURN_IF_ERROR(folder.Make());
  DELTAEDGE_RETURN_IF_ERROR(
      folder.Write("config.json", TargetJson(config, options, hub.layout)));
  if (options.byte_tokenizer && config.vocab_size >= kByteTokens) {
    DELTAEDGE_RETURN_IF_ERROR(WriteTokenizer(config.vocab_size, folder));
  }
  std::vector<HubTensor> tensors = HubTensors(config, hub.layout);
  const ListedTensors listed(tensors);
  TargetConfig mapped = config;
  DELTAEDGE_ASSIGN_OR_RETURN(const TensorMap map,
                             MapTarget(listed, config.tied_head, &mapped));
  DELTAEDGE_RETURN_IF_ERROR(WriteTensors(
      std::move(tensors), map, ModelKind::kTarget, options, hub, folder));
  return folder.Publish();
}

absl::Status MakeRandomDraftFolder(const DraftConfig& config,
                                   const std::string& output,
                                   const RandomModelOptions& options,
                                   const HubFolderOptions& hub) {
  DELTAEDGE_RETURN_IF_ERROR(Validate(config));
  DELTAEDGE_RETURN_IF_ERROR(CheckFloats(options));
  DELTAEDGE_ASSIGN_OR_RETURN(const Json json, DraftJson(config, options));
  NewFolder folder(output);
  DELTAEDGE_RETURN_IF_ERROR(folder.Make());
  DELTAEDGE_RETURN_IF_ERROR(folder.Write("config.json", json));
  std::vector<HubTensor> tensors = HubTensors(config);
  const ListedTensors listed(tensors);
  DELTAEDGE_ASSIGN_OR_RETURN(const TensorMap map, MapDraft(listed, config));
  DELTAEDGE_RETURN_IF_ERROR(WriteTensors(
      std::move(tensors), map, ModelKind::kDraft, options, hub, folder));
  return folder.Publish();
}

}  // namespace deltaedge
