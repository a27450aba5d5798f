// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_TARGET_SEQUENCE_H_
#define DELTAEDGE_ENGINE_GRAPH_TARGET_SEQUENCE_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/state/kv_store.h"
#include "engine/state/recurrent_store.h"
#include "engine/state/sequence_state.h"
#include "engine/types.h"
#include "kernels/attn/attention.h"
#include "pthreadpool.h"

namespace deltaedge {

// What a target model remembers of one sequence.
struct TargetSequence {
  SequenceState cursor;
  KvStore kv;                // Layer j: the j-th attention layer.
  RecurrentStore recurrent;  // Layer j: the j-th GDN layer.
};

// Sizes of the stores for sequences of at most `capacity` tokens and blocks of
// at most `block_rows` rows.
KvShape TargetKvShape(const TargetConfig& config, int64_t capacity);
RecurrentShape TargetRecurrentShape(const TargetConfig& config,
                                    int32_t block_rows,
                                    Rollback rollback = Rollback::kJournal,
                                    bool huge_pages = true);

// An empty sequence. ResourceExhausted: no memory.
absl::StatusOr<TargetSequence> MakeTargetSequence(
    const TargetConfig& config, int64_t capacity, int32_t block_rows,
    Rollback rollback = Rollback::kJournal, bool huge_pages = true);

// Keys and values of the `layer`-th attention layer.
KvView TargetKv(const AttentionConfig& attention, TargetSequence* sequence,
                int32_t layer);

// Writes the state of the `layer`-th GDN layer as of `cursor` to `state`
// [RecurrentShape::state_floats], 64-byte aligned: rows that are kept and not
// yet folded count. `from` is only read. The caller holds the pool.
void CopyRecurrentState(const TargetConfig& config, TargetSequence* from,
                        const SequenceState& cursor, int32_t layer,
                        float* state, pthreadpool_t pool);

// Makes `to` hold what `from` holds as of `cursor`, which is from->cursor or a
// copy of it that was told to keep another number of the last block's rows.
// `from` is only read. Capacity, block rows and rollback of the two may differ;
// to->cursor.capacity() must be at least cursor.length(). Cannot fail. The
// caller holds the pool.
void CopyTargetSequence(const TargetConfig& config, TargetSequence* from,
                        const SequenceState& cursor, TargetSequence* to,
                        pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_TARGET_SEQUENCE_H_
