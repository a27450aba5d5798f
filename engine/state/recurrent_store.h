// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_
#define DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "engine/state/sequence_state.h"
#include "engine/types.h"

namespace deltaedge {

// Columns before a row that its convolution sees.
inline constexpr int32_t kWindowColumns = 3;

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
  Rollback rollback = Rollback::kJournal;
  bool huge_pages = true;  // Asked for, for states.

  // States of a layer: one, or with slots one more than a block has rows.
  int32_t state_columns() const {
    return rollback == Rollback::kSlots ? 1 + block_rows : 1;
  }
  // Of a layer's two journals together. Slots need none.
  int64_t journal_floats() const {
    return rollback == Rollback::kSlots
               ? 0
               : 2 * block_rows * (key_floats + update_floats + decay_floats);
  }
  // Rows of the convolution's ring: a block and the 3 columns before it.
  int32_t ring_rows() const { return block_rows + kWindowColumns; }
  int64_t bytes() const {
    return layers *
           (state_columns() * state_floats + journal_floats() +
            ring_rows() * column_floats) *
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

// The recurrent part of one sequence, beside the cursors of a SequenceState of
// the same block_rows and Rollback. Per GDN layer a ring of raw convolution
// columns, position p at row p mod ring_rows, and
//
//   kJournal: one state S, in column 0, which covers all tokens that were
//   folded
//             in, and two journals: the current one with the rows that are kept
//             but not yet folded, the other for the next block;
//   kSlots:   state_columns() states, of which SequenceState::column() says the
//             one that counts.
class RecurrentStore {
 public:
  // States start at zero. ResourceExhausted: no memory.
  static absl::StatusOr<RecurrentStore> Create(const RecurrentShape& shape);

  const RecurrentShape& shape() const { return shape_; }
  // 0 <= column < state_columns().
  float* state(int32_t layer, int32_t column) {
    return reinterpret_cast<float*>(state_[column].data()) +
           layer * shape_.state_floats;
  }
  const float* state(int32_t layer, int32_t column) const {
    return reinterpret_cast<const float*>(state_[column].data()) +
           layer * shape_.state_floats;
  }
  // `which`: 0 or 1. Null pointers with kSlots.
  JournalRows journal(int32_t layer, int32_t which);
  float* ring(int32_t layer) { return ring_[layer].data(); }

  // The raw column of `position`, which is overwritten ring_rows later.
  float* column(int32_t layer, int64_t position) {
    return ring(layer) + position % shape_.ring_rows() * shape_.column_floats;
  }

  // Copies raw columns [rows, column_floats] of positions position.. into the
  // ring; rows <= ring_rows, x_stride in floats.
  void WriteColumns(int32_t layer, int64_t position, int32_t rows,
                    const float* x, int64_t x_stride);

  // A prompt chunk has written `spare`: its states become ours in `column`,
  // those that were there become spare, and the chunk's last columns join the
  // rings.
  void Adopt(const BlockPlan& plan, int32_t column, SpareStates* spare);

  // The states of column 0, where an empty sequence starts, back to zero.
  // Nothing else needs clearing: nothing is pending, other states are written
  // before they count, and columns of the convolution before position 0 are
  // zero by position.
  void Reset();

 private:
  RecurrentStore() = default;

  RecurrentShape shape_;
  // [state_columns], of all layers each, one behind the other.
  std::vector<AlignedBuffer> state_;
  std::vector<AlignedArray<float>> journal_, ring_;
};

// Where a prompt chunk writes, one for all sequences of an engine: nothing of a
// sequence changes until it is adopted.
class SpareStates {
 public:
  // Room for states and the last 3 columns of every layer. ResourceExhausted.
  static absl::StatusOr<SpareStates> Create(const RecurrentShape& shape);

  float* state(int32_t layer) {
    return reinterpret_cast<float*>(state_.data()) + layer * state_floats_;
  }
  // The last min(3, rows) raw columns of the chunk, oldest first:
  // [3, column_floats].
  float* columns(int32_t layer) { return columns_[layer].data(); }
  int64_t bytes() const;

 private:
  friend class RecurrentStore;
  SpareStates() = default;

  int64_t state_floats_ = 0;
  AlignedBuffer state_;  // Of all layers.
  std::vector<AlignedArray<float>> columns_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_STATE_RECURRENT_STORE_H_
