// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/hf_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/json_section.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;

constexpr char kLinear[] = "linear_attention";
constexpr char kFull[] = "full_attention";
constexpr char kSliding[] = "sliding_attention";

// Models that differ in what their configs say and mean.
enum class Family { kQwen35, kQwen35Moe, kQwen3Next, kDFlash, kLater };

struct Architecture {
  absl::string_view name;
  Family family;
};

constexpr Architecture kArchitectures[] = {
    {"Qwen3_5ForCausalLM", Family::kQwen35},
    {"Qwen3_5ForConditionalGeneration", Family::kQwen35},
    {"Qwen3_5MoeForCausalLM", Family::kQwen35Moe},
    {"Qwen3_5MoeForConditionalGeneration", Family::kQwen35Moe},
    {"Qwen3NextForCausalLM", Family::kQwen3Next},
    {"DFlashDraftModel", Family::kDFlash},
    {"DFlash2DraftModel", Family::kLater},
    {"DSparkDraftModel", Family::kLater},
};

// Values of "model_type" of targets.
struct ModelType {
  absl::string_view name;
  Family family;
};

constexpr ModelType kModelTypes[] = {
    {"qwen3_5", Family::kQwen35},
    {"qwen3_5_text", Family::kQwen35},
    {"qwen3_5_moe", Family::kQwen35Moe},
    {"qwen3_5_moe_text", Family::kQwen35Moe},
    {"qwen3_next", Family::kQwen3Next},
};

// Unset: no target's.
std::optional<Family> FamilyOf(absl::string_view model_type) {
  for (const ModelType& type : kModelTypes) {
    if (type.name == model_type) return type.family;
  }
  return std::nullopt;
}

std::string SupportedArchitectures() {
  std::vector<absl::string_view> names;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.family != Family::kLater) {
      names.push_back(architecture.name);
    }
  }
  return absl::StrJoin(names, ", ");
}

// What transformers writes into every config and what only training, other
// tools or other frameworks read.
void IgnoreCommonKeys(JsonSection* section) {
  section->Ignore({
      "_attn_implementation",
      "_commit_hash",
      "_name_or_path",
      "add_cross_attention",
      "attention_dropout",
      "attn_implementation",
      "auto_map",
      "bos_token_id",
      "chunk_size_feed_forward",
      "cross_attention_hidden_size",
      "decoder_start_token_id",
      "dtype",
      "finetuning_task",
      "forced_bos_token_id",
      "forced_eos_token_id",
      "ignore_keys_at_rope_validation",
      "id2label",
      "initializer_range",
      "is_decoder",
      "is_encoder_decoder",
      "label2id",
      "output_attentions",
      "output_hidden_states",
      "pad_token_id",
      "prefix",
      "pretraining_tp",
      "problem_type",
      "pruned_heads",
      "return_dict",
      "sep_token_id",
      "task_specific_params",
      "tf_legacy_loss",
      "tie_encoder_decoder",
      "tokenizer_class",
      "torch_dtype",
      "torchscript",
      "transformers.js_config",
      "transformers_version",
      "unsloth_fixed",
      "unsloth_fixed_mtp",
      "unsloth_version",
      "use_bfloat16",
      "use_cache",
  });
}

// A value that may stand at two places, which must then agree.
template <class T>
std::optional<T> Agreeing(std::optional<T> a, std::optional<T> b,
                          absl::string_view key, const std::string& other,
                          JsonSection* section) {
  if (a.has_value() && b.has_value() && *a != *b) {
    section->Refuse(key, absl::StrCat(other, " says otherwise"));
  }
  return a.has_value() ? a : b;
}

// Sections of one file: they share a status, and what none of them knows is
// reported together.
class Reader {
 public:
  explicit Reader(absl::string_view file) : file_(file) {}

  JsonSection Section(const Json& object, std::string prefix) {
    return JsonSection(object, std::move(prefix), file_, &status_);
  }
  // Call when all that `section` could hold has been asked for.
  void Done(const JsonSection& section) {
    for (std::string& key : section.UnknownKeys()) {
      unknown_keys_.push_back(std::move(key));
    }
  }

  const std::string& file() const { return file_; }
  const absl::Status& status() const { return status_; }
  std::vector<std::string>& unknown_keys() { return unknown_keys_; }

 private:
  const std::string file_;
  absl::Status status_;
  std::vector<std::string> unknown_keys_;
};

struct Rope {
  double theta = 0;
  std::optional<double> partial_factor;
};

// Positions are plain text positions: the three streams that `mrope_section`
// distributes frequencies to are then equal.
void IgnoreMrope(JsonSection* rope) {
  rope->Ignore({"mrope_section", "mrope_interleaved"});
}

Rope ReadRope(JsonSection* section, Reader* reader) {
  std::optional<double> theta = section->OptionalNumber("rope_theta");
  Rope rope;
  rope.partial_factor = section->OptionalNumber("partial_rotary_factor");
  if (const Json* const inner = section->OptionalObject("rope_parameters")) {
    const std::string prefix = section->Name("rope_parameters.");
    JsonSection parameters = reader->Section(*inner, prefix);
    parameters.Expect("rope_type", "default");
    parameters.Expect("type", "default");
    IgnoreMrope(&parameters);
    theta = Agreeing(theta, parameters.OptionalNumber("rope_theta"),
                     "rope_theta", prefix + "rope_theta", section);
    rope.partial_factor = Agreeing(
        rope.partial_factor, parameters.OptionalNumber("partial_rotary_factor"),
        "partial_rotary_factor", prefix + "partial_rotary_factor", section);
    reader->Done(parameters);
  }
  if (const Json* const inner = section->OptionalObject("rope_scaling")) {
    JsonSection scaling =
        reader->Section(*inner, section->Name("rope_scaling."));
    scaling.Expect("rope_type", "default");
    scaling.Expect("type", "default");
    IgnoreMrope(&scaling);
    reader->Done(scaling);
  }
  if (!theta.has_value()) {
    section->Fail("rope_theta",
                  "is missing, and rope_parameters.rope_theta too");
  }
  rope.theta = theta.value_or(0);
  return rope;
}

// Components of a head of `head_dim` that are rotated.
int32_t RotaryDim(int32_t head_dim, double factor, JsonSection* section) {
  const double rotary_dim = head_dim * factor;
  if (!(factor > 0 && factor <= 1) || rotary_dim != std::floor(rotary_dim) ||
      static_cast<int32_t>(rotary_dim) % 2 != 0) {
    section->Fail("partial_rotary_factor",
                  absl::StrCat("is ", factor, ", of a head_dim of ", head_dim,
                               "; an even number of components must result"));
    return 0;
  }
  return static_cast<int32_t>(rotary_dim);
}

AttentionConfig ReadAttention(std::optional<double> default_rotary_factor,
                              JsonSection* section, Reader* reader) {
  AttentionConfig attention;
  attention.query_heads = section->Int("num_attention_heads");
  attention.kv_heads = section->Int("num_key_value_heads");
  attention.head_dim = section->Int("head_dim");
  const Rope rope = ReadRope(section, reader);
  if (!rope.partial_factor.has_value() && !default_rotary_factor.has_value()) {
    section->Fail("partial_rotary_factor",
                  "is missing, and rope_parameters.partial_rotary_factor too");
  }
  if (!section->ok()) return attention;
  if (attention.kv_heads <= 0 ||
      attention.query_heads % attention.kv_heads != 0) {
    section->Refuse("num_attention_heads",
                    absl::StrCat("it must be a multiple of ",
                                 section->Name("num_key_value_heads"),
                                 ", which is ", attention.kv_heads));
  }
  attention.rope_theta = rope.theta;
  attention.rotary_dim = RotaryDim(
      attention.head_dim,
      rope.partial_factor.value_or(default_rotary_factor.value_or(1)), section);
  return attention;
}

GdnConfig ReadGdn(JsonSection* section) {
  GdnConfig gdn;
  gdn.key_heads = section->Int("linear_num_key_heads");
  gdn.value_heads = section->Int("linear_num_value_heads");
  gdn.key_dim = section->Int("linear_key_head_dim");
  gdn.value_dim = section->Int("linear_value_head_dim");
  gdn.conv_width = section->Int("linear_conv_kernel_dim");
  section->Expect("linear_conv_kernel_dim", 4);
  section->Expect("mamba_ssm_dtype", "float32");
  if (section->ok() &&
      (gdn.key_heads <= 0 || gdn.value_heads % gdn.key_heads != 0)) {
    section->Refuse("linear_num_value_heads",
                    absl::StrCat("it must be a multiple of ",
                                 section->Name("linear_num_key_heads"),
                                 ", which is ", gdn.key_heads));
  }
  return gdn;
}

// The number of layers, bounded so that lists of them can be made.
int32_t ReadLayerCount(JsonSection* section) {
  const int32_t count = section->Int("num_hidden_layers");
  if (section->ok() && (count < 1 || count > kMaxLayers)) {
    section->Refuse("num_hidden_layers",
                    absl::StrCat("allowed are 1 to ", kMaxLayers));
  }
  return section->ok() ? count : 0;
}

// `layer_types`, one name per layer; unset if absent or after an error.
std::optional<std::vector<std::string>> ReadLayerTypes(int32_t layers,
                                                       absl::string_view first,
                                                       absl::string_view second,
                                                       JsonSection* section) {
  auto types = section->OptionalTexts("layer_types");
  if (!types.has_value()) return std::nullopt;
  if (types->size() != static_cast<size_t>(layers)) {
    section->Fail(
        "layer_types",
        absl::StrCat("has ", types->size(), " entries, but ",
                     section->Name("num_hidden_layers"), " is ", layers));
    return std::nullopt;
  }
  for (size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] != first && (*types)[i] != second) {
      section->Fail(
          absl::StrCat("layer_types[", i, "]"),
          absl::StrCat("is ", ShortJson((*types)[i]), "; only \"", first,
                       "\" and \"", second, "\" are supported"));
      return std::nullopt;
    }
  }
  return types;
}

std::vector<LayerKind> ReadTargetLayers(JsonSection* section) {
  const int32_t count = ReadLayerCount(section);
  const auto types = ReadLayerTypes(count, kLinear, kFull, section);
  const auto interval = section->OptionalInt("full_attention_interval");
  if (!section->ok()) return {};
  if (!types.has_value() && !interval.has_value()) {
    section->Fail("layer_types", "is missing, and full_attention_interval too");
    return {};
  }
  if (!types.has_value() && *interval < 1) {
    section->Refuse("full_attention_interval", "at least 1 is expected");
    return {};
  }
  std::vector<LayerKind> layers;
  for (int32_t i = 0; i < count; ++i) {
    const bool full =
        types.has_value() ? (*types)[i] == kFull : (i + 1) % *interval == 0;
    layers.push_back(full ? LayerKind::kFullAttention
                          : LayerKind::kGatedDeltaNet);
  }
  return layers;
}

// "eos_token_id": an id or a list of them. Unset if absent.
std::optional<std::vector<TokenId>> ReadEosTokens(int32_t vocab_size,
                                                  JsonSection* section) {
  constexpr absl::string_view kKey = "eos_token_id";
  const Json* const value = section->Find(kKey);
  if (value == nullptr) return std::nullopt;
  std::vector<TokenId> ids;
  if (value->is_array()) {
    ids = section->OptionalInts(kKey).value_or(ids);
  } else if (const auto id = section->OptionalInt(kKey)) {
    ids.push_back(*id);
  }
  // A vocabulary that is none is reported as such, not by its tokens.
  for (size_t i = 0; vocab_size > 0 && i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    section->Fail(
        value->is_array() ? absl::StrCat(kKey, "[", i, "]") : kKey,
        absl::StrCat("is ", ids[i], "; ids are 0 to ", vocab_size - 1));
    break;
  }
  return ids;
}

// By the keys of transformers, of MLX, and of compressed-tensors.
void RefuseQuantised(JsonSection* section) {
  for (const char* const key :
       {"quantization_config", "quantization", "compression_config"}) {
    if (section->Has(key)) {
      section->Refuse(key, "quantised checkpoints are not supported");
    }
  }
}

// What holds for targets and drafts alike.
void ExpectPlainTransformer(JsonSection* section) {
  section->Expect("hidden_act", "silu");
  section->Expect("attention_bias", false);
  RefuseQuantised(section);
}

void ExpectModelType(Family family, JsonSection* section) {
  const auto type = section->OptionalText("model_type");
  if (!type.has_value() || FamilyOf(*type) == family) return;
  std::vector<std::string> names;
  for (const ModelType& known : kModelTypes) {
    if (known.family == family) {
      names.push_back(absl::StrCat("\"", known.name, "\""));
    }
  }
  section->Refuse("model_type",
                  absl::StrCat("only ", absl::StrJoin(names, " and "),
                               names.size() == 1 ? " is" : " are",
                               " supported with this architecture"));
}

// What follows the mixers: sizes of MLPs and experts, and which layers have
// which. `layers`: how many there are.
void ReadFeedForward(Family family, int32_t layers, TargetConfig* config,
                     JsonSection* section) {
  if (family == Family::kQwen35) {
    section->Expect("num_experts", 0);
    section->Expect("mlp_only_layers", Json::array());
    config->intermediate_size = section->Int("intermediate_size");
    return;
  }
  MoeConfig moe;
  moe.layers.assign(static_cast<size_t>(layers), true);
  moe.normalise = true;
  if (family == Family::kQwen35Moe) {
    // The model's code does not ask these.
    section->Expect("norm_topk_prob", true);
    section->Expect("decoder_sparse_step", 1);
    section->Expect("mlp_only_layers", Json::array());
    moe.experts = section->Int("num_experts");
  } else {
    // Absence means what the model's code takes for a default.
    moe.normalise = section->OptionalBool("norm_topk_prob").value_or(true);
    moe.experts = section->OptionalInt("num_experts").value_or(0);
    if (moe.experts < 0)
      section->Refuse("num_experts", "0 or more is expected");
    const int32_t step =
        section->OptionalInt("decoder_sparse_step").value_or(1);
    if (step < 1) {
      section->Refuse("decoder_sparse_step", "at least 1 is expected");
    }
    for (int32_t i = 0; section->ok() && i < layers; ++i) {
      moe.layers[i] = moe.experts > 0 && (i + 1) % step == 0;
    }
    for (const int32_t layer : section->OptionalInts("mlp_only_layers")
                                   .value_or(std::vector<int32_t>())) {
      if (layer < 0 || layer >= layers) {
        section->Fail("mlp_only_layers",
                      absl::StrCat("holds layer ", layer,
                                   "; the model has 0 to ", layers - 1));
        return;
      }
      moe.layers[layer] = false;
    }
  }
  if (!section->ok()) return;
  const auto sparse = std::count(moe.layers.begin(), moe.layers.end(), true);
  if (sparse < layers) {
    config->intermediate_size = section->Int("intermediate_size");
  } else {
    section->Ignore({"intermediate_size"});
  }
  if (sparse == 0) {
    section->Ignore({"moe_intermediate_size", "num_experts_per_tok",
                     "shared_expert_intermediate_size"});
    return;
  }
  moe.experts_per_token = section->Int("num_experts_per_tok");
  moe.expert_size = section->Int("moe_intermediate_size");
  moe.shared_size = section->Int("shared_expert_intermediate_size");
  config->moe = std::move(moe);
}

absl::StatusOr<HfTarget> ReadTarget(const Json& root, Family family,
                                    Reader* reader) {
  JsonSection top = reader->Section(root, "");
  const Json* const inner = top.OptionalObject("text_config");
  std::optional<JsonSection> nested;
  if (inner != nullptr) nested.emplace(reader->Section(*inner, "text_config."));
  JsonSection& text = nested.has_value() ? *nested : top;

  HfTarget target;
  TargetConfig& config = target.config;
  top.Ignore({"architectures", "model_type"});
  ExpectModelType(family, &text);
  ExpectPlainTransformer(&text);
  text.Expect("attn_output_gate", true);
  text.Expect("output_gate_type", "sigmoid");

  config.vocab_size = text.Int("vocab_size");
  config.hidden_size = text.Int("hidden_size");
  config.max_context = text.Int("max_position_embeddings");
  config.rms_norm_eps = static_cast<float>(text.Number("rms_norm_eps"));
  config.gdn = ReadGdn(&text);
  config.attention = ReadAttention(std::nullopt, &text, reader);
  config.layers = ReadTargetLayers(&text);
  ReadFeedForward(family, static_cast<int32_t>(config.layers.size()), &config,
                  &text);

  target.tied = text.OptionalBool("tie_word_embeddings");
  std::optional<std::vector<TokenId>> eos =
      ReadEosTokens(config.vocab_size, &text);
  if (nested.has_value()) {
    target.tied = Agreeing(top.OptionalBool("tie_word_embeddings"), target.tied,
                           "tie_word_embeddings",
                           "text_config.tie_word_embeddings", &top);
    const auto top_eos = ReadEosTokens(config.vocab_size, &top);
    if (!eos.has_value()) eos = top_eos;
    RefuseQuantised(&top);
    IgnoreCommonKeys(&top);
  }
  config.tied_head = target.tied.value_or(false);
  target.eos_tokens = eos.value_or(std::vector<TokenId>());

  top.Ignore({"image_token_id", "video_token_id", "vision_config",
              "vision_end_token_id", "vision_start_token_id"});
  text.Ignore({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
               "output_router_logits", "router_aux_loss_coef"});
  IgnoreCommonKeys(&text);
  reader->Done(top);
  if (nested.has_value()) reader->Done(text);
  DELTAEDGE_RETURN_IF_ERROR(reader->status());
  if (absl::Status valid = Validate(config); !valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->file(), ": ", valid.message()));
  }
  return target;
}

// The rule for drafts that do not list the layers they read: as many as the
// draft has layers, spread evenly over the target's (of N: 1 to N-3).
std::vector<int32_t> DefaultTargetLayers(int32_t draft_layers,
                                         int32_t target_layers) {
  if (draft_layers == 1) return {target_layers / 2};
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < draft_layers; ++i) {
    // Ties to even, as Python rounds.
    layers.push_back(static_cast<int32_t>(
        std::nearbyint(1.0 + static_cast<double>(i) * (target_layers - 4) /
                                 (draft_layers - 1))));
  }
  return layers;
}

// Window of each layer, 0 for those that see everything.
std::vector<DraftLayerConfig> ReadDraftLayers(JsonSection* section) {
  const int32_t count = ReadLayerCount(section);
  const auto types = ReadLayerTypes(count, kSliding, kFull, section);
  const auto window = section->OptionalInt("sliding_window");
  const auto use_window = section->OptionalBool("use_sliding_window");
  // Read where there are no layer types: later layers are sliding ones then.
  const auto first_sliding = section->OptionalInt("max_window_layers");
  if (!section->ok()) return {};
  std::vector<DraftLayerConfig> layers(count);
  for (int32_t i = 0; i < count; ++i) {
    if (types.has_value()) {
      if ((*types)[i] != kSliding) continue;
    } else if (!use_window.value_or(false) || !window.has_value() ||
               i < first_sliding.value_or(count)) {
      continue;
    }
    if (use_window == false) {
      section->Refuse("use_sliding_window",
                      absl::StrCat("but layer ", i, " is a sliding one"));
    } else if (!window.has_value() || *window < 1) {
      section->Refuse("sliding_window",
                      absl::StrCat("but layer ", i,
                                   " is a sliding one and needs at least 1"));
    }
    if (!section->ok()) return {};
    layers[i].sliding_window = *window;
  }
  return layers;
}

// Said of all layers: those that see everything become sliding ones, whose
// window is never too short.
SlidingMask ReadSlidingMask(std::vector<DraftLayerConfig>* layers,
                            JsonSection* top, JsonSection* dflash) {
  std::optional<bool> causal = top->OptionalBool("is_causal");
  causal = Agreeing(causal, dflash->OptionalBool("is_causal"), "is_causal",
                    dflash->Name("is_causal"), top);
  causal = Agreeing(causal, dflash->OptionalBool("causal"), "is_causal",
                    dflash->Name("causal"), top);
  for (DraftLayerConfig& layer : *layers) {
    if (causal == true && layer.sliding_window == 0) {
      layer.sliding_window = kMaxPositions;
    }
  }
  return causal == false ? SlidingMask::kSymmetric : SlidingMask::kCausal;
}

absl::StatusOr<HfDraft> ReadDraft(const Json& root,
                                  const HfConfigOptions& options,
                                  Reader* reader) {
  JsonSection top = reader->Section(root, "");
  static const Json* const kNone = new Json(Json::object());
  const Json* const inner = top.OptionalObject("dflash_config");
  if (inner == nullptr) top.Fail("dflash_config", "is missing");
  JsonSection dflash =
      reader->Section(inner == nullptr ? *kNone : *inner, "dflash_config.");

  HfDraft draft;
  DraftConfig& config = draft.config;
  top.Ignore({"architectures"});
  top.Expect("model_type", "qwen3");
  ExpectPlainTransformer(&top);
  dflash.Expect("shift_label", false);
  dflash.Expect("sample_from_anchor", false);
  dflash.Expect("use_qk_norm", true);
  dflash.Ignore({"mask_token"});  // The text of mask_token_id.

  config.vocab_size = top.Int("vocab_size");
  top.Expect("draft_vocab_size", config.vocab_size);
  config.hidden_size = top.Int("hidden_size");
  config.intermediate_size = top.Int("intermediate_size");
  config.rms_norm_eps = static_cast<float>(top.Number("rms_norm_eps"));
  config.attention = ReadAttention(/*default_rotary_factor=*/1.0, &top, reader);
  config.layers = ReadDraftLayers(&top);
  config.sliding_mask = ReadSlidingMask(&config.layers, &top, &dflash);
  if (options.sliding_mask.has_value()) {
    config.sliding_mask = *options.sliding_mask;
  }

  const std::optional<int32_t> block_size =
      Agreeing(top.OptionalInt("block_size"), dflash.OptionalInt("block_size"),
               "block_size", "dflash_config.block_size", &top);
  if (!block_size.has_value()) {
    top.Fail("block_size", "is missing, and dflash_config.block_size too");
  }
  config.block_size = block_size.value_or(0);

  config.mask_token = dflash.Int("mask_token_id");
  if (dflash.ok() && config.vocab_size > 0 &&
      (config.mask_token < 0 || config.mask_token >= config.vocab_size)) {
    dflash.Refuse("mask_token_id",
                  absl::StrCat("ids are 0 to ", config.vocab_size - 1));
  }

  const auto target_layer_count = top.OptionalInt("num_target_layers");
  if (target_layer_count.has_value() &&
      (*target_layer_count < 1 || *target_layer_count > kMaxLayers)) {
    top.Refuse("num_target_layers",
               absl::StrCat("allowed are 1 to ", kMaxLayers));
  }
  config.target_layer_count = target_layer_count.value_or(0);
  auto target_layers = dflash.OptionalInts("target_layer_ids");
  if (!target_layers.has_value() && !target_layer_count.has_value()) {
    dflash.Fail("target_layer_ids", "is missing, and num_target_layers too");
  }
  DELTAEDGE_RETURN_IF_ERROR(reader->status());
  config.target_layers =
      target_layers.has_value()
          ? *std::move(target_layers)
          : DefaultTargetLayers(static_cast<int32_t>(config.layers.size()),
                                *target_layer_count);
  const int32_t most_layers = target_layer_count.value_or(kMaxLayers);
  for (const int32_t layer : config.target_layers) {
    if (layer < 0 || layer >= most_layers) {
      dflash.Fail("target_layer_ids",
                  absl::StrCat("holds layer ", layer, "; the target has 0 to ",
                               most_layers - 1));
    }
  }

  top.Ignore(
      {"eos_token_id", "max_position_embeddings", "tie_word_embeddings"});
  IgnoreCommonKeys(&top);
  reader->Done(top);
  reader->Done(dflash);
  DELTAEDGE_RETURN_IF_ERROR(reader->status());
  DraftConfig checked = config;
  if (checked.target_layer_count == 0) checked.target_layer_count = most_layers;
  if (absl::Status valid = Validate(checked); !valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->file(), ": ", valid.message()));
  }
  return draft;
}

// Decides by "architectures", or without it by what else tells.
absl::StatusOr<Family> Recognise(const Json& root, Reader* reader) {
  JsonSection top = reader->Section(root, "");
  const auto names = top.OptionalTexts("architectures");
  DELTAEDGE_RETURN_IF_ERROR(reader->status());
  if (!names.has_value() || names->empty()) {
    const std::string type = top.OptionalText("model_type").value_or("");
    if (const auto family = FamilyOf(type)) return *family;
    if (top.Has("dflash_config")) return Family::kDFlash;
    top.Fail("architectures", absl::StrCat("is missing; supported are ",
                                           SupportedArchitectures()));
    return reader->status();
  }
  if (names->size() > 1) {
    top.Refuse("architectures", "exactly one is expected");
    return reader->status();
  }
  const std::string& name = names->front();
  for (const Architecture& architecture : kArchitectures) {
    if (name != architecture.name) continue;
    if (architecture.family != Family::kLater) return architecture.family;
    return absl::UnimplementedError(
        absl::StrCat(reader->file(), ": architectures is [\"", name,
                     "\"], which is not supported yet; supported are ",
                     SupportedArchitectures()));
  }
  top.Refuse("architectures",
             absl::StrCat("supported are ", SupportedArchitectures()));
  return reader->status();
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view text,
                                       absl::string_view file,
                                       const HfConfigOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Json root, ParseJson(text, file));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": is ", ShortJson(root), ", not an object"));
  }
  Reader reader(file);
  DELTAEDGE_ASSIGN_OR_RETURN(const Family family, Recognise(root, &reader));
  HfConfig config;
  if (family == Family::kDFlash) {
    DELTAEDGE_ASSIGN_OR_RETURN(config.model, ReadDraft(root, options, &reader));
  } else {
    DELTAEDGE_ASSIGN_OR_RETURN(config.model, ReadTarget(root, family, &reader));
  }
  config.ignored_keys = std::move(reader.unknown_keys());
  if (!config.ignored_keys.empty() && !options.ignore_unknown_keys) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", absl::StrJoin(config.ignored_keys, ", "),
                     config.ignored_keys.size() == 1 ? " is" : " are",
                     " not known and may change what the model computes; "
                     "ignore_unknown_keys converts all the same"));
  }
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& folder,
                                      const HfConfigOptions& options) {
  const std::string path = absl::StrCat(folder, "/config.json");
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, kMaxConfigBytes));
  DELTAEDGE_ASSIGN_OR_RETURN(HfConfig config,
                             ParseHfConfig(text, path, options));
  HfTarget* const target = std::get_if<HfTarget>(&config.model);
  if (target == nullptr) return config;

  const std::string generation_path =
      absl::StrCat(folder, "/generation_config.json");
  const absl::StatusOr<Json> generation =
      ReadJsonFile(generation_path, kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return config;
  DELTAEDGE_RETURN_IF_ERROR(generation.status());
  if (!generation->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(generation_path, ": is not an object"));
  }
  Reader reader(generation_path);
  JsonSection section = reader.Section(*generation, "");
  auto eos = ReadEosTokens(target->config.vocab_size, &section);
  DELTAEDGE_RETURN_IF_ERROR(reader.status());
  if (eos.has_value()) target->eos_tokens = *std::move(eos);
  return config;
}

}  // namespace deltaedge
