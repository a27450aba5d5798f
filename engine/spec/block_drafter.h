// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_BLOCK_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_BLOCK_DRAFTER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/spec/draft_planner.h"
#include "engine/state/sequence_state.h"
#include "engine/stats.h"
#include "engine/types.h"

namespace deltaedge {

class DFlashDrafter;
struct DFlashContext;

// What guesses the tokens of a block, for one sequence. The Stepper asks it
// before every block and shows it what the target computed. Whatever it
// answers, the output of a session is the same; only the speed differs.
//
// Thread-compatible.
class BlockDrafter {
 public:
  virtual ~BlockDrafter() = default;

  // Who drafts the next block, if it is one that shares the draft model with
  // others, so that many can draft in one pass; else null.
  virtual DFlashDrafter* dflash() { return nullptr; }

  // What the draft model remembers of the sequence; null: no draft model.
  virtual DFlashContext* context() { return nullptr; }

  // Whether Observe...() need the target's tapped rows.
  virtual bool wants_taps() const = 0;

  // How much to draft for the next block, at most `max_drafts`: what Propose()
  // will be asked for, unless it is 0. By default all there is room for.
  // `verifying`: what steps take, by rows.
  virtual DraftChoice Plan(absl::Span<const TokenId> /*sequence*/,
                           int32_t max_drafts, const CostCurve& /*verifying*/) {
    DraftChoice choice;
    choice.drafts = max_drafts;
    if (max_drafts > 0) choice.reason = DraftReason::kPinned;
    return choice;
  }

  // The block that was planned had `drafted` drafts, `accepted` of which
  // agreed; proposing them took `draft_time`, 0 if that is not known.
  virtual void Learn(int32_t /*drafted*/, int32_t /*accepted*/,
                     absl::Duration /*draft_time*/) {}

  // Puts at most `max_drafts` >= 1 guesses of what follows `sequence` into
  // `drafts` (empty on entry); the target's state covers all of `sequence` but
  // its last token, the anchor. Fewer, or none, is a fine answer.
  // Cancelled: `cancel` was set. Ids are checked by the caller.
  virtual absl::Status Propose(absl::Span<const TokenId> sequence,
                               int32_t max_drafts, CancelFlags cancel,
                               std::vector<TokenId>* drafts) = 0;

  // By how much the score of each draft of the last proposal exceeded that of
  // the drafter's second choice: how sure it was. Empty: it does not say.
  virtual absl::Span<const float> margins() const { return {}; }

  // What was proposed for the block that was planned, before it is verified:
  // `drafts` are what is left of it when this returns. May drop some and
  // replace others, but add none. By default they stay.
  virtual void Review(absl::Span<const TokenId> /*sequence*/,
                      const CostCurve& /*verifying*/,
                      std::vector<TokenId>* /*drafts*/) {}

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

// Drafts nothing: plain decoding is a block of one row. Base of those who look
// at tokens only.
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
