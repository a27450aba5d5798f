// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/stepper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/fp_mode.h"
#include "engine/base/status_macros.h"
#include "engine/sampling/acceptance.h"

namespace deltaedge {

namespace {

class Stopwatch {
 public:
  // Time since the last call, or since construction.
  absl::Duration Lap() {
    const auto now = std::chrono::steady_clock::now();
    const absl::Duration lap = absl::FromChrono(now - last_);
    last_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(TargetModel* target,
                                                         int64_t tap_floats,
                                                         int32_t max_block,
                                                         pthreadpool_t pool) {
  const TargetConfig& config = target->config();
  DELTAEDGE_ASSIGN_OR_RETURN(
      SpareStates spare,
      SpareStates::Create(TargetRecurrentShape(config, /*block_rows=*/1)));
  std::unique_ptr<Stepper> stepper(
      new Stepper(target, max_block, pool, std::move(spare)));
  DELTAEDGE_ASSIGN_OR_RETURN(
      stepper->logits_, AlignedArray<float>::Allocate(
                            int64_t{max_block} * config.vocab_size, "scores"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      stepper->taps_, AlignedArray<float>::Allocate(
                          target->max_rows() * tap_floats, "tapped rows"));
  stepper->picks_.resize(max_block);
  return stepper;
}

int64_t Stepper::scratch_bytes() const {
  return (logits_.size() + taps_.size()) * static_cast<int64_t>(sizeof(float)) +
         spare_.bytes();
}

absl::Status Stepper::Step(absl::Span<const TokenId> sequence,
                           int32_t max_drafts, TargetSequence* state,
                           BlockDrafter* drafter,
                           const std::atomic<bool>* cancel,
                           StepResult* result) {
  const ScopedFpMode fp_mode;
  const int32_t vocab_size = target_->config().vocab_size;
  const int64_t free_rows = state->cursor.capacity() - state->cursor.length();
  max_drafts = static_cast<int32_t>(
      std::min<int64_t>({max_drafts, max_block_ - 1,
                         state->cursor.block_rows() - 1, free_rows - 1}));
  Stopwatch watch;
  drafts_.clear();
  if (max_drafts > 0) {
    DELTAEDGE_RETURN_IF_ERROR(
        drafter->Propose(sequence, max_drafts, cancel, &drafts_));
    if (static_cast<int32_t>(drafts_.size()) > max_drafts) {
      drafts_.resize(max_drafts);
    }
  }
  for (const TokenId draft : drafts_) {
    if (draft < 0 || draft >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the drafter proposed token ", draft, "; ids are 0 to ",
                       vocab_size - 1));
    }
  }
  result->draft_time = watch.Lap();

  block_.assign(1, sequence.back());
  block_.insert(block_.end(), drafts_.begin(), drafts_.end());
  TargetPass pass;
  pass.tokens = block_;
  DELTAEDGE_ASSIGN_OR_RETURN(
      pass.plan, state->cursor.Plan(static_cast<int32_t>(block_.size())));
  pass.sequence = state;
  pass.logits = logits_.data();
  pass.taps = drafter->wants_taps() ? taps_.data() : nullptr;
  pass.cancel = cancel;
  state->cursor.Begin(pass.plan);
  DELTAEDGE_RETURN_IF_ERROR(target_->Run(pass));
  result->verify_time = watch.Lap();
  DELTAEDGE_RETURN_IF_ERROR(
      drafter->ObserveBlock(pass.plan, pass.taps, cancel));

  ArgMaxRows(pass.plan.rows, vocab_size, logits_.data(), vocab_size,
             picks_.data(), pool_);
  Acceptance acceptance =
      AcceptDrafts(absl::MakeConstSpan(picks_.data(), pass.plan.rows), drafts_);
  if (acceptance.tokens.empty()) {
    return absl::InternalError(absl::StrCat(
        "the model's scores at position ", pass.plan.position + 1,
        " are not finite numbers; the weights or the state are broken"));
  }
  state->cursor.PublishBlock(pass.plan);
  result->drafted = static_cast<int32_t>(drafts_.size());
  result->accepted = acceptance.accepted;
  result->tokens = std::move(acceptance.tokens);
  result->logits = logits_.data();
  result->accept_time = watch.Lap();
  return absl::OkStatus();
}

absl::Status Stepper::Prefill(absl::Span<const TokenId> tokens,
                              TargetSequence* state, BlockDrafter* drafter,
                              const std::atomic<bool>* cancel, float* logits) {
  const ScopedFpMode fp_mode;
  TargetPass pass;
  pass.tokens = tokens;
  DELTAEDGE_ASSIGN_OR_RETURN(
      pass.plan, state->cursor.Plan(static_cast<int32_t>(tokens.size())));
  pass.sequence = state;
  pass.spare = &spare_;
  pass.logits = logits;
  pass.taps = drafter->wants_taps() ? taps_.data() : nullptr;
  pass.cancel = cancel;
  state->cursor.Begin(pass.plan);
  DELTAEDGE_RETURN_IF_ERROR(target_->Run(pass));
  DELTAEDGE_RETURN_IF_ERROR(
      drafter->ObservePrefill(pass.plan, pass.taps, cancel));
  state->recurrent.Adopt(pass.plan, state->cursor.column(), &spare_);
  state->cursor.PublishPrefill(pass.plan);
  return absl::OkStatus();
}

}  // namespace deltaedge
