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
#include "engine/sampling/sampler.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/state/recurrent_store.h"
#include "engine/stats.h"
#include "engine/types.h"
#include "kernels/logits/argmax.h"

namespace deltaedge {

// What a step brought to one sequence.
struct StepResult {
  DraftChoice choice;    // How much was to be drafted, and why.
  int32_t drafted = 0;   // Drafts that were verified.
  int32_t accepted = 0;  // Of those, drafts that the target agreed with.
  // The tokens that follow the sequence: the accepted drafts, then one of the
  // target's own. If scores are not numbers, those before them; the next step
  // reports that. Never empty.
  std::vector<TokenId> tokens;
  // Of a step that several sequences share, each one's part: by drafts asked
  // for, and by rows.
  absl::Duration draft_time, verify_time, accept_time;
};

// One sequence's part in a step: a block, or a chunk of a prompt. Borrowed for
// the call.
struct StepItem {
  // The sequence [n], of which state->cursor covers the first n-1 tokens: the
  // block is the last one and at most max_drafts guesses of what follows.
  absl::Span<const TokenId> sequence;
  int32_t max_drafts = 0;
  // If not empty, at most max_chunk() tokens to append to what the state
  // covers, and the above is not looked at: a chunk.
  absl::Span<const TokenId> chunk;

  TargetSequence* state = nullptr;
  BlockDrafter* drafter = nullptr;
  Sampler* sampler = nullptr;  // For a block.
  // Tokens behind which nothing is wanted. A row for one would only tell what
  // follows it, so that drafts are cut before the first.
  absl::Span<const TokenId> stop_tokens;
  const std::atomic<bool>* cancel = nullptr;  // May be null.

  StepResult* result = nullptr;
  // For the scores of all rows, [1 + max_drafts, vocab_size] or those of the
  // chunk; result->tokens[i] was picked from row i. Null: not wanted.
  float* logits = nullptr;

  // Set by Step(). Cancelled, Internal, OutOfRange (capacity), InvalidArgument
  // (a draft outside the vocabulary), ResourceExhausted: nothing of this
  // sequence has changed.
  absl::Status status;
};

// One step of speculative decoding: plan, draft, verify, accept, publish.
// Serves any number of sequences, alone or together, and owns the buffers that
// only a running step needs.
//
// Every call runs under the engine's floating-point mode, whatever the
// caller's.
//
// Thread-compatible. The models and the pool must outlive it.
class Stepper {
 public:
  // Rows of blocks that share one pass over the weights. More give several
  // passes. Their scores, vocab_size floats a row, are kept only where somebody
  // wants them: not for greedy picks.
  static constexpr int32_t kMaxSharedRows = 64;

  // `taps`: floats of a tapped row, 0 without a draft model. `max_block`: rows
  // of the longest block. `huge_pages`: as the sequences'. ResourceExhausted:
  // no memory.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(
      TargetModel* target, int64_t tap_floats, int32_t max_block,
      bool huge_pages = true);

  // Runs all of `items`, of different sequences, in as few passes as the
  // buffers allow; drafts and blocks of a pass share each weight that is read,
  // and so does one chunk. A block has as many rows as the drafter has guesses,
  // and one; on success it is published with nothing of it kept: call Keep(j)
  // once j of its tokens have been delivered. A chunk belongs to its sequence
  // at once, with the bits that its tokens would have had if decoded. Every
  // item's outcome is the one that it would have had alone. Allocates only
  // until its buffers, and those of the results, have grown to what is needed.
  void Step(absl::Span<StepItem> items);
  // One alone; returns its status.
  absl::Status Step(StepItem item) {
    Step(absl::MakeSpan(&item, 1));
    return item.status;
  }

  int32_t max_chunk() const { return target_->max_rows(); }
  int32_t max_block() const { return max_block_; }
  int64_t scratch_bytes() const;

 private:
  // An item that runs in the current pass.
  struct Member {
    StepItem* item = nullptr;
    int32_t asked = 0;  // Drafts that the drafter was asked for.
    std::vector<TokenId> drafts;
    std::vector<TokenId> block;
    TargetPass pass;
  };

  Stepper(TargetModel* target, int64_t tap_floats, int32_t max_block,
          SpareStates spare)
      : target_(target),
        tap_floats_(tap_floats),
        max_block_(max_block),
        spare_(std::move(spare)) {}

  int32_t MaxDrafts(const StepItem& item) const;
  // Room for the scores of `rows` rows, if there is memory for it.
  void Grow(int32_t rows);
  void StepTogether(absl::Span<StepItem> items);
  // The parts of a pass, each for all of running_; a failure goes to the item.
  // What memory did not suffice for together is tried one by one.
  void Draft();
  void Verify();
  absl::Status Finish(Member* member);

  TargetModel* const target_;
  const int64_t tap_floats_;
  const int32_t max_block_;
  SpareStates spare_;
  AlignedArray<float> logits_;  // [score_rows_, vocab_size], where needed
  int32_t score_rows_ = 0;
  AlignedArray<float> taps_;  // [max_rows, tap_floats]
  std::vector<ArgMax> best_;  // Of the rows of all blocks of a pass.
  // Of the current pass; kept from one to the next, with what they hold, so
  // that a step allocates nothing.
  std::vector<Member> members_;
  std::vector<Member*> running_;  // Those that have not failed.
  std::vector<DFlashDrafter::Request> requests_;
  std::vector<Member*> asking_;  // [requests_.size()]
  std::vector<const std::atomic<bool>*> flags_;
  std::vector<TargetPass> passes_;
  CostCurve verifying_;  // Steps with one sequence in them, by rows.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_STEPPER_H_
