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
                                    int32_t block_rows);

// An empty sequence. ResourceExhausted: no memory.
absl::StatusOr<TargetSequence> MakeTargetSequence(const TargetConfig& config,
                                                  int64_t capacity,
                                                  int32_t block_rows);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_TARGET_SEQUENCE_H_
