// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/model_facts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {

namespace {

int64_t BytesOf(const MatrixView& matrix) {
  return TensorBytes(matrix.type, {matrix.rows, matrix.cols}).value_or(0);
}

}  // namespace

std::string WeightsText(const ModelFile& target) {
  const TargetWeights& weights = target.target_weights();
  const TargetLayerWeights& first = weights.layers[0];
  const bool experts = target.target_config().has_experts(0);
  const WeightType type =
      experts ? first.moe.shared.gate.type : first.mlp.gate.type;
  std::string text(WeightTypeName(type));
  if (weights.head.type != type) {
    absl::StrAppend(&text, ",head=", WeightTypeName(weights.head.type));
  }
  for (const TargetLayerWeights& layer : weights.layers) {
    const MatrixView& gdn = layer.gdn.in_qkv;
    if (gdn.data == nullptr || gdn.type == type) continue;
    absl::StrAppend(&text, ",gdn=", WeightTypeName(gdn.type));
    break;
  }
  if (experts && first.moe.gate_up.type != type) {
    absl::StrAppend(&text, ",experts=", WeightTypeName(first.moe.gate_up.type));
  }
  return text;
}

TokenBytes TokenBytesOf(const ModelFile& target) {
  const TargetConfig& config = target.target_config();
  TokenBytes bytes;
  bytes.weights = target.weight_bytes();
  if (!config.tied_head) {
    bytes.weights -= BytesOf(target.target_weights().embedding);
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.has_experts(i)) continue;
    const MoeWeights& moe = target.target_weights().layers[i].moe;
    const int64_t one =
        (BytesOf(moe.gate_up) + BytesOf(moe.down)) / config.moe.experts;
    bytes.weights -= one * (config.moe.experts - config.moe.experts_per_token);
  }
  const RecurrentShape states = TargetRecurrentShape(config, /*block_rows=*/1);
  bytes.states = int64_t{2} * states.layers * states.state_floats *
                 static_cast<int64_t>(sizeof(float));
  const int64_t attention_layers = std::count(
      config.layers.begin(), config.layers.end(), LayerKind::kFullAttention);
  bytes.kv_of_position = attention_layers * 2 * config.attention.keys() *
                         static_cast<int64_t>(sizeof(float));
  return bytes;
}

}  // namespace deltaedge
