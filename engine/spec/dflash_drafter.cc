// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/dflash_drafter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"

namespace deltaedge {

namespace {

int64_t TapFloats(const DraftConfig& config) {
  return static_cast<int64_t>(config.target_layers.size()) * config.hidden_size;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DFlashDrafter>> DFlashDrafter::Create(
    DraftModel* model, int64_t capacity) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      KvStore kv, KvStore::Create(DraftKvShape(model->config(), capacity)));
  DELTAEDGE_ASSIGN_OR_RETURN(
      auto taps, AlignedArray<float>::Allocate(
                     kTapRows * TapFloats(model->config()), "tapped rows"));
  return std::unique_ptr<DFlashDrafter>(
      new DFlashDrafter(model, capacity, std::move(kv), std::move(taps)));
}

int64_t DFlashDrafter::Bytes(const DraftConfig& config, int64_t capacity) {
  return DraftKvShape(config, capacity).bytes() +
         kTapRows * TapFloats(config) * static_cast<int64_t>(sizeof(float));
}

DFlashDrafter::DFlashDrafter(DraftModel* model, int64_t capacity, KvStore kv,
                             AlignedArray<float> taps)
    : model_(model),
      capacity_(capacity),
      kv_(std::move(kv)),
      taps_(std::move(taps)) {}

int64_t DFlashDrafter::tap_floats() const {
  return TapFloats(model_->config());
}

absl::Status DFlashDrafter::InjectTo(int64_t end,
                                     const std::atomic<bool>* cancel) {
  // What was injected for tokens that the sequence no longer has is void.
  length_ = std::min(length_, end);
  while (length_ < end) {
    const int64_t first = length_ % kTapRows;
    const int32_t rows = static_cast<int32_t>(
        std::min<int64_t>(end - length_, kTapRows - first));
    DELTAEDGE_RETURN_IF_ERROR(
        model_->Inject(taps_.data() + first * tap_floats(), length_, rows,
                       capacity_, &kv_, cancel));
    length_ += rows;
  }
  return absl::OkStatus();
}

absl::Status DFlashDrafter::Propose(absl::Span<const TokenId> sequence,
                                    int32_t max_drafts,
                                    const std::atomic<bool>* cancel,
                                    std::vector<TokenId>* drafts) {
  const int64_t position = static_cast<int64_t>(sequence.size()) - 1;
  DELTAEDGE_RETURN_IF_ERROR(InjectTo(position, cancel));
  drafts->resize(std::min(max_drafts, model_->config().block_size - 1));
  return model_->Draft(sequence.back(), position,
                       static_cast<int32_t>(drafts->size()), capacity_, &kv_,
                       cancel, nullptr, drafts->data());
}

absl::Status DFlashDrafter::ObserveBlock(const BlockPlan& plan,
                                         const float* taps,
                                         const std::atomic<bool>* cancel) {
  if (plan.position + plan.rows - std::min(length_, plan.position) > kTapRows) {
    DELTAEDGE_RETURN_IF_ERROR(InjectTo(plan.position, cancel));
  }
  for (int32_t t = 0; t < plan.rows; ++t) {
    std::memcpy(taps_.data() + ((plan.position + t) % kTapRows) * tap_floats(),
                taps + t * tap_floats(), tap_floats() * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status DFlashDrafter::ObservePrefill(const BlockPlan& plan,
                                           const float* taps,
                                           const std::atomic<bool>* cancel) {
  DELTAEDGE_RETURN_IF_ERROR(InjectTo(plan.position, cancel));
  DELTAEDGE_RETURN_IF_ERROR(
      model_->Inject(taps, plan.position, plan.rows, capacity_, &kv_, cancel));
  length_ = plan.position + plan.rows;
  return absl::OkStatus();
}

}  // namespace deltaedge
