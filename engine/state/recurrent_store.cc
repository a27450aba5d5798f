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

}  // namespace

absl::StatusOr<RecurrentStore> RecurrentStore::Create(
    const RecurrentShape& shape) {
  RecurrentStore store;
  store.shape_ = shape;
  DELTAEDGE_ASSIGN_OR_RETURN(
      store.state_, AllocateArrays(shape.layers * shape.state_columns(),
                                   shape.state_floats, "recurrent states"));
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
  for (int32_t i = 0; i < shape_.layers; ++i) {
    std::swap(state_[StateIndex(i, column)], spare->state_[i]);
    WriteColumns(i, plan.position + plan.rows - tail, tail, spare->columns(i),
                 shape_.column_floats);
  }
}

void RecurrentStore::Reset() {
  for (int32_t i = 0; i < shape_.layers; ++i) {
    std::memset(state(i, 0), 0, shape_.state_floats * sizeof(float));
  }
}

absl::StatusOr<SpareStates> SpareStates::Create(const RecurrentShape& shape) {
  SpareStates spare;
  DELTAEDGE_ASSIGN_OR_RETURN(
      spare.state_,
      AllocateArrays(shape.layers, shape.state_floats, "spare states"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      spare.columns_,
      AllocateArrays(shape.layers, kWindowColumns * shape.column_floats,
                     "spare columns"));
  return spare;
}

int64_t SpareStates::bytes() const {
  int64_t floats = 0;
  for (const auto& a : state_) floats += a.size();
  for (const auto& a : columns_) floats += a.size();
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace deltaedge
