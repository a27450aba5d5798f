// SPDX-License-Identifier: Apache-2.0

#include "engine/state/sequence_state.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace deltaedge {

SequenceState::SequenceState(int64_t capacity, int32_t block_rows,
                             int32_t gdn_layers, Rollback rollback)
    : capacity_(capacity),
      block_rows_(block_rows),
      rollback_(rollback),
      pending_(gdn_layers, 0) {}

absl::StatusOr<BlockPlan> SequenceState::Plan(int32_t rows) const {
  if (rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pass of ", rows, " rows; at least 1 is needed"));
  }
  if (rows > capacity_ - length_) {
    return absl::OutOfRangeError(
        absl::StrCat(rows, " more tokens do not fit: the state covers ",
                     length_, " of at most ", capacity_));
  }
  return BlockPlan{length_, rows};
}

void SequenceState::Begin(const BlockPlan&) { has_block_ = false; }

void SequenceState::PublishBlock(const BlockPlan& plan) {
  assert(plan.rows <= block_rows_);
  block_ = plan;
  block_column_ = column_;
  has_block_ = true;
  journal_ = 1 - journal_;
  std::fill(pending_.begin(), pending_.end(), 0);
}

void SequenceState::PublishPrefill(const BlockPlan& plan) {
  has_block_ = false;
  length_ = plan.position + plan.rows;
  std::fill(pending_.begin(), pending_.end(), 0);
}

absl::Status SequenceState::Keep(int32_t rows) {
  if (!has_block_) {
    return absl::FailedPreconditionError(
        "no block whose rows could be kept: none was published, or a later "
        "pass has begun");
  }
  if (rows < 0 || rows > block_.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows to keep: ", rows, "; the block has ", block_.rows));
  }
  length_ = block_.position + rows;
  if (rollback_ == Rollback::kSlots) {
    column_ = ColumnAfter(block_column_, rows);
  } else {
    std::fill(pending_.begin(), pending_.end(), rows);
  }
  return absl::OkStatus();
}

void SequenceState::Place(int64_t length) {
  assert(length >= 0 && length <= capacity_);
  length_ = length;
  has_block_ = false;
  column_ = 0;
  std::fill(pending_.begin(), pending_.end(), 0);
}

}  // namespace deltaedge
