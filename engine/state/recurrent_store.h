// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_
#define DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "engine/state/sequence_state.h"

namespace deltaedge {

// Sizes of a RecurrentStore, per GDN layer. The layout of a state is the delta
// rule kernel's; this floor only knows how many floats it takes.
struct RecurrentShape {
  int32_t layers = 0;
  int64_t state_floats = 0;   // S
  int64_t key_floats = 0;     // Journal, per row: Hk * Dk
  int64_t update_floats = 0;  // Journal, per row: Hv * Dv
  int64_t decay_floats = 0;   // Journal, per row: Hv
  int64_t column_floats = 0;  // One raw column of the convolution.
  int32_t block_rows = 1;     // T_max

  // Rows of the convolution's ring: a block and the 3 columns before it.
  int32_t ring_rows() const { return block_rows + 3; }
  int64_t bytes() const {
    const int64_t journal =
        2 * block_rows * (key_floats + update_floats + decay_floats);
    return layers * (state_floats + journal + ring_rows() * column_floats) *
           static_cast<int64_t>(sizeof(float));
  }
};

// What a block leaves behind so that any prefix of it can be folded into the
// state later (docs/speculation.md): borrowed pointers into a RecurrentStore.
struct JournalRows {
  float* k = nullptr;      // [T_max, Hk * Dk]
  float* u = nullptr;      // [T_max, Hv * Dv]
  float* gamma = nullptr;  // [T_max, Hv]
};

class SpareStates;

// The recurrent part of one sequence. Per GDN layer: one state S, which covers
// all tokens that were folded in; two journals, the current one with the rows
// that are kept but not yet folded, the other for the next block; and a ring of
// raw convolution columns, position p at row p mod ring_rows.
class RecurrentStore {
 public:
  // States start at zero. ResourceExhausted: no memory.
  static absl::StatusOr<RecurrentStore> Create(const RecurrentShape& shape);

  const RecurrentShape& shape() const { return shape_; }
  float* state(int32_t layer) { return state_[layer].data(); }
  const float* state(int32_t layer) const { return state_[layer].data(); }
  JournalRows journal(int32_t layer, int32_t which);
  float* ring(int32_t layer) { return ring_[layer].data(); }

  // Copies raw columns [rows, column_floats] of positions position.. into the
  // ring; rows <= ring_rows, x_stride in floats.
  void WriteColumns(int32_t layer, int64_t position, int32_t rows,
                    const float* x, int64_t x_stride);

  // A prompt chunk has written `spare`: its states become ours, ours become
  // spare, and the chunk's last columns join the rings.
  void Adopt(const BlockPlan& plan, SpareStates* spare);

  // States back to zero. Journals and rings need no clearing: nothing is
  // pending in an empty sequence, and columns before position 0 are zero by
  // position.
  void Reset();

 private:
  RecurrentStore() = default;

  RecurrentShape shape_;
  std::vector<AlignedArray<float>> state_, journal_, ring_;
};

// Where a prompt chunk writes, one for all sequences of an engine: nothing of a
// sequence changes until it is adopted.
class SpareStates {
 public:
  // Room for states and the last 3 columns of every layer. ResourceExhausted.
  static absl::StatusOr<SpareStates> Create(const RecurrentShape& shape);

  float* state(int32_t layer) { return state_[layer].data(); }
  // The last min(3, rows) raw columns of the chunk, oldest first:
  // [3, column_floats].
  float* columns(int32_t layer) { return columns_[layer].data(); }
  int64_t bytes() const;

 private:
  friend class RecurrentStore;
  SpareStates() = default;

  std::vector<AlignedArray<float>> state_, columns_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_
