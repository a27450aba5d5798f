// SPDX-License-Identifier: Apache-2.0

#include "engine/state/recurrent_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"

namespace deltaedge {

namespace {

absl::StatusOr<std::vector<AlignedArray<float>>> AllocateArrays(
    int32_t count, int64_t floats, const char* what) {
  std::vector<AlignedArray<float>> result;
  for (int32_t i = 0; i < count; ++i) {
    DELTAEDGE_ASSIGN_OR_RETURN(auto array,
                               AlignedArray<float>::Allocate(floats, what));
    result.push_back(std::move(array));
  }
  return result;
}

// A step reads and writes all of it: in small pages that takes a quarter
// longer.
absl::StatusOr<AlignedBuffer> AllocateStates(const RecurrentShape& shape,
                                             const char* what) {
  const int64_t size_bytes =
      shape.layers * shape.state_floats * static_cast<int64_t>(sizeof(float));
  return shape.huge_pages ? AlignedBuffer::AllocateHugePages(size_bytes, what)
                          : AlignedBuffer::Allocate(size_bytes, what);
}

}  // namespace

absl::StatusOr<RecurrentStore> RecurrentStore::Create(
    const RecurrentShape& shape) {
  RecurrentStore store;
  store.shape_ = shape;
  for (int32_t i = 0; i < shape.state_columns(); ++i) {
    DELTAEDGE_ASSIGN_OR_RETURN(auto states,
                               AllocateStates(shape, "recurrent states"));
    store.state_.push_back(std::move(states));
  }
  if (shape.rollback == Rollback::kJournal) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        store.journal_,
        AllocateArrays(shape.layers, shape.journal_floats(), "journals"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      store.ring_,
      AllocateArrays(shape.layers, shape.ring_rows() * shape.column_floats,
                     "convolution windows"));
  return store;
}

JournalRows RecurrentStore::journal(int32_t layer, int32_t which) {
  JournalRows journal;
  if (shape_.rollback == Rollback::kSlots) return journal;
  const int64_t rows = shape_.block_rows;
  journal.k = journal_[layer].data() + which * (shape_.journal_floats() / 2);
  journal.u = journal.k + rows * shape_.key_floats;
  journal.gamma = journal.u + rows * shape_.update_floats;
  return journal;
}

void RecurrentStore::WriteColumns(int32_t layer, int64_t position, int32_t rows,
                                  const float* x, int64_t x_stride) {
  const int64_t columns = shape_.column_floats;
  for (int32_t t = 0; t < rows; ++t) {
    std::memcpy(column(layer, position + t), x + t * x_stride,
                columns * sizeof(float));
  }
}

void RecurrentStore::Adopt(const BlockPlan& plan, int32_t column,
                           SpareStates* spare) {
  const int32_t tail = std::min(plan.rows, kWindowColumns);
  std::swap(state_[column], spare->state_);
  for (int32_t i = 0; i < shape_.layers; ++i) {
    WriteColumns(i, plan.position + plan.rows - tail, tail, spare->columns(i),
                 shape_.column_floats);
  }
}

void RecurrentStore::Reset() {
  std::memset(state_[0].data(), 0, state_[0].size_bytes());
}

absl::StatusOr<SpareStates> SpareStates::Create(const RecurrentShape& shape) {
  SpareStates spare;
  spare.state_floats_ = shape.state_floats;
  DELTAEDGE_ASSIGN_OR_RETURN(spare.state_,
                             AllocateStates(shape, "spare states"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      spare.columns_,
      AllocateArrays(shape.layers, kWindowColumns * shape.column_floats,
                     "spare columns"));
  return spare;
}

int64_t SpareStates::bytes() const {
  int64_t bytes = state_.size_bytes();
  for (const auto& a : columns_) bytes += a.size_bytes();
  return bytes;
}

}  // namespace deltaedge
