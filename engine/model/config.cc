// SPDX-License-Identifier: Apache-2.0

#include "engine/model/config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"

namespace deltaedge {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", value, ", allowed are ", least, " to ", most));
}

absl::Status CheckMultiple(absl::string_view field, int64_t value,
                           absl::string_view divisor_field, int64_t divisor) {
  if (value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", allowed are multiples of ",
                   divisor_field, ", which is ", divisor));
}

absl::Status CheckPositive(absl::string_view field, double value, double most) {
  if (std::isfinite(value) && value > 0 && value <= most) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", value, ", allowed are numbers above 0, up to ", most));
}

absl::Status CheckName(absl::string_view name) {
  if (name.size() <= kMaxModelNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "name has ", name.size(), " bytes, allowed are ", kMaxModelNameBytes));
}

absl::Status Validate(const GdnConfig& gdn) {
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("gdn.key_heads", gdn.key_heads, 1, kMaxHeads));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("gdn.value_heads", gdn.value_heads, 1, kMaxHeads));
  DELTAEDGE_RETURN_IF_ERROR(CheckMultiple("gdn.value_heads", gdn.value_heads,
                                          "gdn.key_heads", gdn.key_heads));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("gdn.key_dim", gdn.key_dim, 1, kMaxKeyDim));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("gdn.value_dim", gdn.value_dim, 1, kMaxHeadDim));
  return CheckRange("gdn.conv_width", gdn.conv_width, 4, 4);
}

absl::Status Validate(const AttentionConfig& attention) {
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("attention.query_heads", attention.query_heads, 1, kMaxHeads));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("attention.kv_heads", attention.kv_heads, 1, kMaxHeads));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckMultiple("attention.query_heads", attention.query_heads,
                    "attention.kv_heads", attention.kv_heads));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("attention.head_dim", attention.head_dim, 1, kMaxHeadDim));
  if (attention.head_dim % 4 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.head_dim is ", attention.head_dim,
                     ", allowed are multiples of 4"));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(
      "attention.rotary_dim", attention.rotary_dim, 2, attention.head_dim));
  if (attention.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.rotary_dim is ", attention.rotary_dim,
                     ", allowed are even numbers"));
  }
  return CheckPositive("attention.rope_theta", attention.rope_theta, 1e12);
}

// Of a target whose layers are known to be some.
absl::Status ValidateFeedForward(const TargetConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0 && moe.layers.empty()) {
    return CheckRange("intermediate_size", config.intermediate_size, 1,
                      kMaxWidth);
  }
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("moe.experts", moe.experts, 1, kMaxExperts));
  DELTAEDGE_RETURN_IF_ERROR(CheckRange("moe.experts_per_token",
                                       moe.experts_per_token, 1, moe.experts));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("moe.expert_size", moe.expert_size, 1, kMaxExpertSize));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("moe.shared_size", moe.shared_size, 1, kMaxWidth));
  if (moe.layers.size() != config.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "moe.layers has ", moe.layers.size(), " entries, allowed are ",
        config.layers.size(), ", one per layer"));
  }
  const auto sparse = std::count(moe.layers.begin(), moe.layers.end(), true);
  if (sparse == 0) {
    return absl::InvalidArgumentError("moe.layers has no layer with experts");
  }
  const bool all = sparse == static_cast<ptrdiff_t>(moe.layers.size());
  return CheckRange("intermediate_size", config.intermediate_size, all ? 0 : 1,
                    all ? 0 : kMaxWidth);
}

absl::Status CheckSameAsTarget(absl::string_view field, int64_t draft,
                               int64_t target) {
  if (draft == target) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the draft's ", field, " is ", draft, ", its target's is ", target));
}

}  // namespace

absl::Status Validate(const TargetConfig& config) {
  DELTAEDGE_RETURN_IF_ERROR(CheckName(config.name));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("vocab_size", config.vocab_size, 1, kMaxVocabSize));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("hidden_size", config.hidden_size, 1, kMaxWidth));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("max_context", config.max_context, 1, kMaxPositions));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckPositive("rms_norm_eps", config.rms_norm_eps, 1));
  DELTAEDGE_RETURN_IF_ERROR(Validate(config.gdn));
  DELTAEDGE_RETURN_IF_ERROR(Validate(config.attention));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("number of layers", static_cast<int64_t>(config.layers.size()),
                 1, kMaxLayers));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    switch (config.layers[i]) {
      case LayerKind::kGatedDeltaNet:
      case LayerKind::kFullAttention:
        continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("layers[", i, "] is of the unknown kind ",
                     static_cast<int>(config.layers[i])));
  }
  return ValidateFeedForward(config);
}

absl::Status Validate(const DraftConfig& config) {
  DELTAEDGE_RETURN_IF_ERROR(CheckName(config.name));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("vocab_size", config.vocab_size, 1, kMaxVocabSize));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("hidden_size", config.hidden_size, 1, kMaxWidth));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("intermediate_size", config.intermediate_size, 1, kMaxWidth));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("block_size", config.block_size, 2, kMaxBlockRows));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("mask_token", config.mask_token, 0, config.vocab_size - 1));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckPositive("rms_norm_eps", config.rms_norm_eps, 1));
  DELTAEDGE_RETURN_IF_ERROR(Validate(config.attention));
  switch (config.sliding_mask) {
    case SlidingMask::kCausal:
    case SlidingMask::kSymmetric:
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("sliding_mask is of the unknown kind ",
                       static_cast<int>(config.sliding_mask)));
  }
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("number of layers", static_cast<int64_t>(config.layers.size()),
                 1, kMaxLayers));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    DELTAEDGE_RETURN_IF_ERROR(
        CheckRange(absl::StrCat("layers[", i, "].sliding_window"),
                   config.layers[i].sliding_window, 0, kMaxPositions));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(
      "target_layer_count", config.target_layer_count, 1, kMaxLayers));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("number of target_layers",
                 static_cast<int64_t>(config.target_layers.size()), 1,
                 config.target_layer_count));
  std::vector<bool> seen(config.target_layer_count);
  for (size_t i = 0; i < config.target_layers.size(); ++i) {
    const int32_t layer = config.target_layers[i];
    DELTAEDGE_RETURN_IF_ERROR(CheckRange(absl::StrCat("target_layers[", i, "]"),
                                         layer, 0,
                                         config.target_layer_count - 1));
    if (seen[layer]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "target_layers[", i, "] is ", layer, ", which is there twice"));
    }
    seen[layer] = true;
  }
  return absl::OkStatus();
}

absl::Status ValidatePair(const TargetConfig& target,
                          const DraftConfig& draft) {
  DELTAEDGE_RETURN_IF_ERROR(
      CheckSameAsTarget("vocab_size", draft.vocab_size, target.vocab_size));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckSameAsTarget("hidden_size", draft.hidden_size, target.hidden_size));
  return CheckSameAsTarget("target_layer_count", draft.target_layer_count,
                           static_cast<int64_t>(target.layers.size()));
}

}  // namespace deltaedge
