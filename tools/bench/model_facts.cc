// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/model_facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {

std::string WeightsText(const ModelFile& target) {
  const TargetWeights& weights = target.target_weights();
  const WeightType type = weights.layers[0].mlp.gate.type;
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
  return text;
}

TokenBytes TokenBytesOf(const ModelFile& target) {
  const TargetConfig& config = target.target_config();
  TokenBytes bytes;
  bytes.weights = target.weight_bytes();
  if (!config.tied_head) {
    const MatrixView& embedding = target.target_weights().embedding;
    bytes.weights -=
        TensorBytes(embedding.type, {embedding.rows, embedding.cols})
            .value_or(0);
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
