// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/gguf_config.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"
#include "tools/convert/gguf.h"
#include "tools/convert/hf_config.h"
#include "tools/convert/json_section.h"
#include "tools/convert/printable_name.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTokenTypes[] = "tokenizer.ggml.token_type";
constexpr int kControlToken = 3;

// The keys that begin with `prefix`, without it.
Json KeysUnder(const Json& metadata, absl::string_view prefix) {
  Json under = Json::object();
  for (const auto& [key, value] : metadata.items()) {
    if (absl::StartsWith(key, prefix)) {
      under[key.substr(prefix.size())] = value;
    }
  }
  return under;
}

AttentionConfig ReadAttention(JsonSection* keys) {
  AttentionConfig attention;
  attention.query_heads = keys->Int("attention.head_count");
  attention.kv_heads = keys->Int("attention.head_count_kv");
  attention.head_dim = keys->Int("attention.key_length");
  keys->Expect("attention.value_length", attention.head_dim);
  attention.rotary_dim =
      keys->OptionalInt("rope.dimension_count").value_or(attention.head_dim);
  attention.rope_theta = keys->Number("rope.freq_base");
  keys->Expect("rope.scaling.type", "none");
  // Positions are plain text positions, whose three streams are equal.
  keys->Ignore({"rope.dimension_sections"});
  return attention;
}

GdnConfig ReadGdn(JsonSection* keys) {
  GdnConfig gdn;
  gdn.key_heads = keys->Int("ssm.group_count");
  gdn.value_heads = keys->Int("ssm.time_step_rank");
  gdn.key_dim = keys->Int("ssm.state_size");
  gdn.conv_width = keys->Int("ssm.conv_kernel");
  const int32_t values = keys->Int("ssm.inner_size");
  if (!keys->ok()) return gdn;
  if (gdn.key_heads <= 0 || gdn.value_heads <= 0 ||
      gdn.value_heads % gdn.key_heads != 0) {
    keys->Refuse(
        "ssm.time_step_rank",
        absl::StrCat("it must be a multiple of ", keys->Name("ssm.group_count"),
                     ", which is ", gdn.key_heads));
  } else if (values % gdn.value_heads != 0) {
    keys->Refuse("ssm.inner_size",
                 absl::StrCat("it must be a multiple of ",
                              keys->Name("ssm.time_step_rank"), ", which is ",
                              gdn.value_heads));
  } else {
    gdn.value_dim = values / gdn.value_heads;
  }
  return gdn;
}

// A list of `count` truth values; empty if absent or after an error.
std::vector<bool> ReadFlags(absl::string_view key, size_t count,
                            JsonSection* keys) {
  const Json* const list = keys->Find(key);
  if (list == nullptr) return {};
  std::vector<bool> flags;
  if (list->is_array()) {
    for (const Json& item : *list) {
      if (item.is_boolean()) flags.push_back(item.get<bool>());
    }
  }
  if (!list->is_array() || flags.size() != list->size() ||
      flags.size() != count) {
    keys->Refuse(key, absl::StrCat("a list of ", count,
                                   " truth values is expected, one per layer"));
    return {};
  }
  return flags;
}

// block_count, bounded so that lists of layers can be made.
int32_t ReadLayerCount(JsonSection* keys) {
  const int32_t count = keys->Int("block_count");
  if (keys->ok() && (count < 1 || count > kMaxLayers)) {
    keys->Refuse("block_count", absl::StrCat("allowed are 1 to ", kMaxLayers));
  }
  return keys->ok() ? count : 0;
}

// Sets `config.layers` and `predicting_layers`.
void ReadTargetLayers(JsonSection* keys, HfTarget* target) {
  const int32_t blocks = ReadLayerCount(keys);
  const int32_t predicting =
      keys->OptionalInt("nextn_predict_layers").value_or(0);
  if (keys->ok() && (predicting < 0 || predicting >= blocks)) {
    keys->Refuse("nextn_predict_layers",
                 absl::StrCat("the model has ", blocks, " layers in all"));
  }
  const std::vector<bool> recurrent =
      ReadFlags("attention.recurrent_layers", blocks, keys);
  const int32_t interval =
      keys->OptionalInt("full_attention_interval").value_or(4);
  if (keys->ok() && interval < 1) {
    keys->Refuse("full_attention_interval", "at least 1 is expected");
  }
  if (!keys->ok()) return;
  target->predicting_layers = predicting;
  for (int32_t i = 0; i < blocks - predicting; ++i) {
    const bool full =
        recurrent.empty() ? (i + 1) % interval == 0 : !recurrent[i];
    target->config.layers.push_back(full ? LayerKind::kFullAttention
                                         : LayerKind::kGatedDeltaNet);
  }
}

void ReadFeedForward(const Gguf& file, bool moe, TargetConfig* config,
                     JsonSection* keys) {
  MoeConfig of_moe;
  of_moe.experts = keys->OptionalInt("expert_count").value_or(0);
  if (of_moe.experts < 0 || (of_moe.experts == 0 && moe)) {
    keys->Refuse("expert_count", "at least 1 is expected");
  }
  of_moe.normalise = true;
  keys->Expect("expert_weights_norm", true);
  keys->Expect("expert_gating_func", 1);  // Soft-max.
  size_t sparse = 0;
  for (size_t i = 0; i < config->layers.size(); ++i) {
    of_moe.layers.push_back(
        of_moe.experts > 0 &&
        file.Find(absl::StrCat("blk.", i, ".ffn_gate.weight")) == nullptr);
    sparse += of_moe.layers[i] ? 1 : 0;
  }
  if (sparse < config->layers.size()) {
    config->intermediate_size = keys->Int("feed_forward_length");
  } else {
    keys->Ignore({"feed_forward_length"});
  }
  if (sparse == 0) {
    keys->Ignore({"expert_used_count", "expert_feed_forward_length",
                  "expert_shared_feed_forward_length"});
    return;
  }
  of_moe.experts_per_token = keys->Int("expert_used_count");
  of_moe.expert_size = keys->Int("expert_feed_forward_length");
  of_moe.shared_size = keys->Int("expert_shared_feed_forward_length");
  config->moe = std::move(of_moe);
}

// Where a token of the text `text` that no text contains stands. -1: nowhere.
TokenId FindControlToken(const Json& metadata, absl::string_view text) {
  const auto tokens = metadata.find(kTokens);
  const auto types = metadata.find(kTokenTypes);
  if (tokens == metadata.end() || types == metadata.end() ||
      !tokens->is_array() || !types->is_array()) {
    return -1;
  }
  for (size_t i = 0; i < std::min(tokens->size(), types->size()); ++i) {
    if ((*types)[i] == kControlToken && (*tokens)[i] == Json(text)) {
      return static_cast<TokenId>(i);
    }
  }
  return -1;
}

std::vector<TokenId> ReadEosTokens(const Gguf& file, int32_t vocab_size,
                                   absl::Status* status) {
  JsonSection keys(file.metadata(), "", file.files()[0].path(), status);
  std::vector<TokenId> ids;
  const auto add = [&ids](TokenId id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const absl::string_view name : {"eos", "eot", "eom"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    const auto id = keys.OptionalInt(key);
    if (!id.has_value()) continue;
    if (*id < 0 || *id >= vocab_size) {
      keys.Refuse(key, absl::StrCat("ids are 0 to ", vocab_size - 1));
    }
    add(*id);
  }
  const TokenId end = FindControlToken(file.metadata(), "<|endoftext|>");
  if (end >= 0 && end < vocab_size) add(end);
  return ids;
}

absl::StatusOr<HfTarget> ReadTarget(const Gguf& file, bool moe,
                                    JsonSection* keys, absl::Status* status) {
  const std::string& path = file.files()[0].path();
  HfTarget target;
  TargetConfig& config = target.config;
  const SourceTensor* const embedding = file.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 ||
      embedding->shape[0] > kMaxVocabSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor token_embd.weight is ",
        embedding == nullptr ? "missing" : ShapeText(embedding->shape),
        "; a row for each of at most ", kMaxVocabSize, " ids is expected"));
  }
  config.vocab_size = static_cast<int32_t>(embedding->shape[0]);
  keys->Expect("vocab_size", config.vocab_size);
  config.hidden_size = keys->Int("embedding_length");
  config.max_context = keys->Int("context_length");
  config.rms_norm_eps =
      static_cast<float>(keys->Number("attention.layer_norm_rms_epsilon"));
  config.tied_head = file.Find("output.weight") == nullptr;
  config.gdn = ReadGdn(keys);
  config.attention = ReadAttention(keys);
  keys->Expect("attention.causal", true);
  ReadTargetLayers(keys, &target);
  ReadFeedForward(file, moe, &config, keys);
  target.tied = config.tied_head;
  target.eos_tokens = ReadEosTokens(file, config.vocab_size, status);
  DELTAEDGE_RETURN_IF_ERROR(*status);
  if (absl::Status valid = Validate(config); !valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", valid.message()));
  }
  return target;
}

SlidingMask ReadSlidingMask(const std::vector<DraftLayerConfig>& layers,
                            JsonSection* keys) {
  const auto causal = keys->OptionalBool("attention.causal");
  const bool all_slide =
      std::all_of(layers.begin(), layers.end(),
                  [](const auto& layer) { return layer.sliding_window != 0; });
  if (causal == true && !all_slide) {
    keys->Refuse("attention.causal",
                 "for layers that are not sliding ones, only false and absent "
                 "are supported");
  }
  return causal == false ? SlidingMask::kSymmetric : SlidingMask::kCausal;
}

std::vector<DraftLayerConfig> ReadDraftLayers(JsonSection* keys) {
  std::vector<DraftLayerConfig> layers(ReadLayerCount(keys));
  const auto window = keys->OptionalInt("attention.sliding_window");
  const std::vector<bool> sliding =
      ReadFlags("attention.sliding_window_pattern", layers.size(), keys);
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (!sliding[i]) continue;
    if (window.value_or(0) < 1) {
      keys->Refuse("attention.sliding_window",
                   absl::StrCat("but layer ", i,
                                " is a sliding one and needs at least 1"));
      return {};
    }
    layers[i].sliding_window = *window;
  }
  return layers;
}

absl::StatusOr<HfDraft> ReadDraft(const Gguf& file,
                                  const HfConfigOptions& options,
                                  JsonSection* keys, absl::Status* status) {
  const std::string& path = file.files()[0].path();
  HfDraft draft;
  DraftConfig& config = draft.config;
  JsonSection all(file.metadata(), "", path, status);
  const Json* const tokens = all.Find(kTokens);
  if (tokens == nullptr || !tokens->is_array() ||
      tokens->size() > static_cast<size_t>(kMaxVocabSize)) {
    all.Refuse(kTokens, absl::StrCat("a list of at most ", kMaxVocabSize,
                                     " texts is expected"));
    return *status;
  }
  config.vocab_size = static_cast<int32_t>(tokens->size());
  keys->Expect("vocab_size", config.vocab_size);
  config.hidden_size = keys->Int("embedding_length");
  config.intermediate_size = keys->Int("feed_forward_length");
  config.rms_norm_eps =
      static_cast<float>(keys->Number("attention.layer_norm_rms_epsilon"));
  config.attention = ReadAttention(keys);
  config.layers = ReadDraftLayers(keys);
  config.sliding_mask =
      options.sliding_mask.value_or(ReadSlidingMask(config.layers, keys));
  config.block_size = keys->Int("block_size");
  config.mask_token = all.Int("tokenizer.ggml.mask_token_id");
  const auto taps = keys->OptionalInts("target_layers");
  if (!taps.has_value()) keys->Fail("target_layers", "is missing");
  keys->Ignore({"context_length"});
  DELTAEDGE_RETURN_IF_ERROR(*status);
  for (const int32_t tap : *taps) {
    if (tap < 1 || tap > kMaxLayers) {
      keys->Fail("target_layers",
                 absl::StrCat("holds ", tap, "; 1 to ", kMaxLayers,
                              " are expected, 1 for the first layer's output"));
      return *status;
    }
    config.target_layers.push_back(tap - 1);
  }
  DraftConfig checked = config;
  checked.target_layer_count = kMaxLayers;
  if (absl::Status valid = Validate(checked); !valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", valid.message()));
  }
  return draft;
}

// Adds what keys beside the architecture's may change: how texts become ids, or
// what else belongs to the model.
void AddOtherKeys(const Gguf& file, std::vector<std::string>* unknown) {
  const std::string& path = file.files()[0].path();
  absl::Status status;
  for (const char* prefix : {"tokenizer.", "adapter.", "clip."}) {
    const Json under = KeysUnder(file.metadata(), prefix);
    JsonSection keys(under, prefix, path, &status);
    if (absl::string_view(prefix) == "tokenizer.") {
      // What ReadGgufTokenizer() reads, and what it need not.
      keys.Ignore({"ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type",
                   "ggml.merges", "ggml.normalizer.nfc", "ggml.add_bos_token",
                   "ggml.add_eos_token", "ggml.add_space_prefix", "ggml.scores",
                   "ggml.token_type_count", "chat_template", "chat_templates",
                   "huggingface.json"});
      for (const auto& [key, value] : under.items()) {
        // Which ids have a role.
        if (absl::EndsWith(key, "_token_id") ||
            absl::StartsWith(key, "chat_template.")) {
          keys.Ignore({key});
        }
      }
    }
    for (std::string& key : keys.UnknownKeys()) {
      unknown->push_back(std::move(key));
    }
  }
}

}  // namespace

absl::StatusOr<HfConfig> ReadGgufConfig(const Gguf& file,
                                        const HfConfigOptions& options) {
  const std::string& path = file.files()[0].path();
  absl::Status status;
  JsonSection general(file.metadata(), "", path, &status);
  const std::string architecture = general.Text("general.architecture");
  general.Expect("general.type", "model");
  DELTAEDGE_RETURN_IF_ERROR(status);
  const bool moe = architecture == "qwen35moe";
  const bool target =
      moe || architecture == "qwen35" || architecture == "qwen3next";
  if (!target && architecture != "dflash") {
    return absl::UnimplementedError(absl::StrCat(
        path, ": general.architecture is ", QuotedName(architecture),
        "; supported are qwen35, qwen35moe, qwen3next and dflash"));
  }

  const std::string prefix = architecture + ".";
  const Json under = KeysUnder(file.metadata(), prefix);
  JsonSection keys(under, prefix, path, &status);
  HfConfig config;
  if (target) {
    DELTAEDGE_ASSIGN_OR_RETURN(config.model,
                               ReadTarget(file, moe, &keys, &status));
  } else {
    DELTAEDGE_ASSIGN_OR_RETURN(config.model,
                               ReadDraft(file, options, &keys, &status));
  }
  config.ignored_keys = keys.UnknownKeys(/*false_is_neutral=*/false);
  AddOtherKeys(file, &config.ignored_keys);
  if (!config.ignored_keys.empty() && !options.ignore_unknown_keys) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", absl::StrJoin(config.ignored_keys, ", "),
                     config.ignored_keys.size() == 1 ? " is" : " are",
                     " not known and may change what the model computes; "
                     "ignore_unknown_keys converts all the same"));
  }
  return config;
}

}  // namespace deltaedge
