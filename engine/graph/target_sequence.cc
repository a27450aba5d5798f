// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/target_sequence.h"

#include <algorithm>

#include "kernels/attn/attention.h"
#include "kernels/gdn/gdn_block.h"

namespace deltaedge {

namespace {

int32_t CountLayers(const TargetConfig& config, LayerKind kind) {
  return static_cast<int32_t>(
      std::count(config.layers.begin(), config.layers.end(), kind));
}

}  // namespace

KvShape TargetKvShape(const TargetConfig& config, int64_t capacity) {
  const AttentionConfig& attention = config.attention;
  KvShape shape;
  shape.layers = CountLayers(config, LayerKind::kFullAttention);
  shape.key_floats =
      KvKeyFloats(attention.kv_heads, attention.head_dim, capacity);
  shape.value_floats =
      KvValueFloats(attention.kv_heads, attention.head_dim, capacity);
  return shape;
}

RecurrentShape TargetRecurrentShape(const TargetConfig& config,
                                    int32_t block_rows) {
  const GdnConfig& gdn = config.gdn;
  RecurrentShape shape;
  shape.layers = CountLayers(config, LayerKind::kGatedDeltaNet);
  shape.block_rows = block_rows;
  if (shape.layers == 0) return shape;
  shape.state_floats = GdnStateFloats(
      {gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim});
  shape.key_floats = gdn.keys();
  shape.update_floats = gdn.values();
  shape.decay_floats = gdn.value_heads;
  shape.column_floats = gdn.conv_channels();
  return shape;
}

absl::StatusOr<TargetSequence> MakeTargetSequence(const TargetConfig& config,
                                                  int64_t capacity,
                                                  int32_t block_rows) {
  DELTAEDGE_ASSIGN_OR_RETURN(KvStore kv,
                             KvStore::Create(TargetKvShape(config, capacity)));
  const RecurrentShape shape = TargetRecurrentShape(config, block_rows);
  DELTAEDGE_ASSIGN_OR_RETURN(RecurrentStore recurrent,
                             RecurrentStore::Create(shape));
  return TargetSequence{SequenceState(capacity, block_rows, shape.layers),
                        std::move(kv), std::move(recurrent)};
}

}  // namespace deltaedge
