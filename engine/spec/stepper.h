// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_STEPPER_H_
#define DELTAEDGE_ENGINE_SPEC_STEPPER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/graph/target_model.h"
#include "engine/spec/block_drafter.h"
#include "engine/state/recurrent_store.h"
#include "engine/types.h"
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"

namespace deltaedge {

// What one step brought.
struct StepResult {
  int32_t drafted = 0;   // Drafts that were verified.
  int32_t accepted = 0;  // Of those, drafts that the target agreed with.
  // The tokens that follow the sequence: the accepted drafts, then one of the
  // target's own (which is missing only if its scores are not numbers; the next
  // step reports that). Never empty.
  std::vector<TokenId> tokens;
  // Scores from which tokens[i] was picked: row i, vocab_size floats each.
  // Valid until the next call of the Stepper.
  const float* logits = nullptr;
  absl::Duration draft_time, verify_time, accept_time;
};

// One step of speculative decoding: plan, draft, verify, accept, publish.
// Serves any number of sequences, one at a time, and owns the buffers that only
// a running step needs.
//
// Every call runs under the engine's floating-point mode, whatever the
// caller's.
//
// Thread-compatible. The models and the pool must outlive it.
class Stepper {
 public:
  // `taps`: floats of a tapped row, 0 without a draft model. `max_block`: rows
  // of the longest block. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(TargetModel* target,
                                                         int64_t tap_floats,
                                                         int32_t max_block,
                                                         pthreadpool_t pool);

  // Runs one block after `sequence` [n], of which state->cursor covers the
  // first n-1 tokens; the block has 1 + (at most max_drafts) rows, fewer where
  // the drafter has less to say. On success the block is published with nothing
  // of it kept: call Keep(j) once j of the tokens have been delivered.
  // Cancelled, Internal, OutOfRange (capacity), InvalidArgument (a draft
  // outside the vocabulary): nothing of the sequence has changed.
  absl::Status Step(absl::Span<const TokenId> sequence, int32_t max_drafts,
                    TargetSequence* state, BlockDrafter* drafter,
                    const std::atomic<bool>* cancel, StepResult* result);

  // Appends `tokens` (at most max_chunk()) to what the state covers, with the
  // same bits as if they had been decoded. Errors as Step(). `logits`: null, or
  // [tokens, vocab_size].
  absl::Status Prefill(absl::Span<const TokenId> tokens, TargetSequence* state,
                       BlockDrafter* drafter, const std::atomic<bool>* cancel,
                       float* logits = nullptr);

  int32_t max_chunk() const { return target_->max_rows(); }
  int32_t max_block() const { return max_block_; }
  int64_t scratch_bytes() const;

 private:
  Stepper(TargetModel* target, int32_t max_block, pthreadpool_t pool,
          SpareStates spare)
      : target_(target),
        pool_(pool),
        max_block_(max_block),
        spare_(std::move(spare)) {}

  TargetModel* const target_;
  const pthreadpool_t pool_;
  const int32_t max_block_;
  SpareStates spare_;
  AlignedArray<float> logits_;  // [max_block, vocab_size]
  AlignedArray<float> taps_;    // [max_rows, tap_floats]
  std::vector<ArgMax> picks_;   // [max_block]
  std::vector<TokenId> drafts_, block_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_STEPPER_H_
