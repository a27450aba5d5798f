// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_BLOCK_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_BLOCK_DRAFTER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/state/sequence_state.h"
#include "engine/types.h"

namespace deltaedge {

class DFlashDrafter;

// What guesses the tokens of a block, for one sequence. The Stepper asks it
// before every block and shows it what the target computed. Whatever it
// answers, the output of a session is the same; only the speed differs.
//
// Thread-compatible.
class BlockDrafter {
 public:
  virtual ~BlockDrafter() = default;

  // This drafter, if it is one that shares the draft model with others, so that
  // many can draft in one pass; else null.
  virtual DFlashDrafter* dflash() { return nullptr; }

  // Whether Observe...() need the target's tapped rows.
  virtual bool wants_taps() const = 0;

  // Puts at most `max_drafts` >= 1 guesses of what follows `sequence` into
  // `drafts` (empty on entry); the target's state covers all of `sequence` but
  // its last token, the anchor. Fewer, or none, is a fine answer.
  // Cancelled: `cancel` was set. Ids are checked by the caller.
  virtual absl::Status Propose(absl::Span<const TokenId> sequence,
                               int32_t max_drafts, CancelFlags cancel,
                               std::vector<TokenId>* drafts) = 0;

  // The target has run the block `plan`; how many of its rows will stay is not
  // known yet. Called before the block is published. taps: [rows, taps * H].
  virtual absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                                    CancelFlags cancel) = 0;

  // The target has run the prompt chunk `plan`, all of which will stay unless
  // this call fails. Called before the chunk is published.
  virtual absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                                      CancelFlags cancel) = 0;

  // The sequence is empty again.
  virtual void Reset() = 0;
};

// Drafts nothing: plain decoding is a block of one row.
class NullDrafter : public BlockDrafter {
 public:
  bool wants_taps() const override { return false; }
  absl::Status Propose(absl::Span<const TokenId>, int32_t, CancelFlags,
                       std::vector<TokenId>*) override {
    return absl::OkStatus();
  }
  absl::Status ObserveBlock(const BlockPlan&, const float*,
                            CancelFlags) override {
    return absl::OkStatus();
  }
  absl::Status ObservePrefill(const BlockPlan&, const float*,
                              CancelFlags) override {
    return absl::OkStatus();
  }
  void Reset() override {}
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_BLOCK_DRAFTER_H_
