// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATE_SEQUENCE_STATE_H_
#define DELTAEDGE_ENGINE_STATE_SEQUENCE_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/types.h"

namespace deltaedge {

// Where one pass over the models goes, for every kind of layer at once.
struct BlockPlan {
  int64_t position = 0;  // Of the first row.
  int32_t rows = 0;
};

// The cursors of one sequence: how many tokens its state covers, and what of
// the last block may still be taken back. Integers only: the numbers themselves
// lie in KvStore and RecurrentStore, beside one another by position, so that
// moving a cursor is the whole of a rollback.
//
// A pass goes through these in order:
//
//   auto plan = state.Plan(rows);          // pure
//   state.Begin(*plan);                    // the block before is final now
//   ... every layer writes, FoldDone(i) after GDN layer i's fold ...
//   state.PublishBlock(*plan);             // it exists; nothing of it is kept
//   state.Keep(rows_kept);                 // 0 .. rows, repeatable
//
// or, for a prompt, PublishPrefill(*plan) in place of the last two: all of it
// belongs to the sequence at once. A pass that is abandoned after Begin() needs
// no call: length() and the pending rows are still those of before, and layers
// whose fold had finished have nothing pending any more.
//
// Where the recurrent states lie depends on the Rollback. With kJournal there
// is one column of them, and the rows that are kept wait in a journal until the
// next pass folds them in. With kSlots there are C = 1 + block_rows() columns,
// used as a ring: a block that starts from column r leaves the state after its
// row t in column (r + 1 + t) mod C, never in r itself, and keeping j rows
// makes (r + j) mod C the column to start from. Nothing is ever pending.
//
// Thread-compatible.
class SequenceState {
 public:
  // `capacity`: positions that fit. `block_rows`: rows of the longest block
  // (T_max). `gdn_layers`: layers with a recurrent state.
  SequenceState(int64_t capacity, int32_t block_rows, int32_t gdn_layers,
                Rollback rollback = Rollback::kJournal);

  // Where the next `rows` rows would go. Changes nothing.
  // InvalidArgument: rows < 1. OutOfRange: beyond the capacity.
  absl::StatusOr<BlockPlan> Plan(int32_t rows) const;

  // A pass over `plan` starts. From here on Keep() has no block to speak of.
  void Begin(const BlockPlan& plan);

  // All layers have written `plan`, a block of at most block_rows(). Its
  // journals are now the current ones. Nothing of it is kept yet.
  void PublishBlock(const BlockPlan& plan);

  // All layers have written `plan` into spare states, which have been swapped
  // into column().
  void PublishPrefill(const BlockPlan& plan);

  // The first `rows` rows of the published block belong to the sequence, the
  // anchor being row 0. Absolute, not relative: may be called again with
  // another number until a later pass has begun, even one that was abandoned.
  // FailedPrecondition: no block that could be kept. InvalidArgument: rows < 0
  // or more than the block has. On error nothing changes.
  absl::Status Keep(int32_t rows);

  // The sequence covers `length` tokens, 0 .. capacity(), whose states somebody
  // has put into column 0; no block, nothing pending. For copies of sequences,
  // which have nothing to take back.
  void Place(int64_t length);

  // Back to the empty sequence: Place(0).
  void Reset() { Place(0); }

  // Tokens that the state covers.
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  int32_t block_rows() const { return block_rows_; }
  Rollback rollback() const { return rollback_; }
  // Whether Keep() may be called, and on how many rows.
  bool has_block() const { return has_block_; }
  int32_t published_rows() const { return has_block_ ? block_.rows : 0; }

  // The column of the states from which the next pass starts: with pending rows
  // folded in, they cover length() tokens. kJournal: 0.
  int32_t column() const { return column_; }
  // kSlots: the column that row `row` of the next block writes, 0 <= row <
  // block_rows(). Of one block they are all different, and none is column().
  int32_t BlockColumn(int32_t row) const {
    return ColumnAfter(column_, 1 + row);
  }

  // Rows of the current journal that GDN layer `layer` still has to fold into
  // its state. Layers differ only after an abandoned pass. kSlots: 0.
  int32_t pending(int32_t layer) const { return pending_[layer]; }
  // GDN layer `layer` has folded its pending rows for good.
  void FoldDone(int32_t layer) { pending_[layer] = 0; }
  // Which of the two journals holds the pending rows; the other one is written
  // by the next block.
  int32_t journal() const { return journal_; }

 private:
  int32_t ColumnAfter(int32_t column, int32_t rows) const {
    return (column + rows) % (1 + block_rows_);
  }

  int64_t capacity_;
  int32_t block_rows_;
  Rollback rollback_;
  int64_t length_ = 0;
  bool has_block_ = false;
  BlockPlan block_;
  int32_t block_column_ = 0;  // The published block started from it.
  int32_t column_ = 0;
  int32_t journal_ = 0;
  std::vector<int32_t> pending_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_STATE_SEQUENCE_STATE_H_
