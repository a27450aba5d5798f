// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/target_sequence.h"

#include <algorithm>

#include "engine/base/fp_mode.h"
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
                                    int32_t block_rows, Rollback rollback,
                                    bool huge_pages) {
  const GdnConfig& gdn = config.gdn;
  RecurrentShape shape;
  shape.rollback = rollback;
  shape.huge_pages = huge_pages;
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
                                                  int32_t block_rows,
                                                  Rollback rollback,
                                                  bool huge_pages) {
  DELTAEDGE_ASSIGN_OR_RETURN(KvStore kv,
                             KvStore::Create(TargetKvShape(config, capacity)));
  const RecurrentShape shape =
      TargetRecurrentShape(config, block_rows, rollback, huge_pages);
  DELTAEDGE_ASSIGN_OR_RETURN(RecurrentStore recurrent,
                             RecurrentStore::Create(shape));
  return TargetSequence{
      SequenceState(capacity, block_rows, shape.layers, rollback),
      std::move(kv), std::move(recurrent)};
}

KvView TargetKv(const AttentionConfig& attention, TargetSequence* sequence,
                int32_t layer) {
  return {sequence->kv.keys(layer), sequence->kv.values(layer),
          attention.kv_heads, attention.head_dim, sequence->cursor.capacity()};
}

void CopyRecurrentState(const TargetConfig& config, TargetSequence* from,
                        const SequenceState& cursor, int32_t layer,
                        float* state, pthreadpool_t pool) {
  const ScopedFpMode fp_mode;
  const GdnConfig& gdn = config.gdn;
  GdnSequence part = {};
  part.state = from->recurrent.state(layer, cursor.column());
  part.fold_rows = cursor.pending(layer);
  if (part.fold_rows > 0) {
    const JournalRows journal =
        from->recurrent.journal(layer, cursor.journal());
    part.fold.k = journal.k;
    part.fold.u = journal.u;
    part.fold.gamma = journal.gamma;
  }
  part.last = state;
  const int32_t no_rows[2] = {0, 0};
  GdnBlock block = {};
  block.shape = {gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim};
  block.sequences = 1;
  block.row_begin = no_rows;
  block.q_stride = block.k_stride = gdn.keys();
  block.v_stride = block.out_stride = gdn.values();
  block.sequence = &part;
  GdnForward(block, pool);
}

void CopyTargetSequence(const TargetConfig& config, TargetSequence* from,
                        const SequenceState& cursor, TargetSequence* to,
                        pthreadpool_t pool) {
  const int64_t length = cursor.length();
  to->cursor.Place(length);
  for (int32_t i = 0; i < from->kv.shape().layers; ++i) {
    KvCopy(TargetKv(config.attention, from, i), length,
           TargetKv(config.attention, to, i));
  }
  const RecurrentShape& shape = from->recurrent.shape();
  for (int32_t i = 0; i < shape.layers; ++i) {
    CopyRecurrentState(config, from, cursor, i,
                       to->recurrent.state(i, to->cursor.column()), pool);
    for (int64_t p = std::max<int64_t>(0, length - kWindowColumns); p < length;
         ++p) {
      to->recurrent.WriteColumns(i, p, 1, from->recurrent.column(i, p),
                                 shape.column_floats);
    }
  }
}

}  // namespace deltaedge
