// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_ADAPTIVE_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_ADAPTIVE_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/model/config.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/spec/lookup_drafter.h"
#include "engine/stats.h"
#include "engine/types.h"

namespace deltaedge {

// Chooses before every block who drafts and how much: a main source (the draft
// model, or an application's drafter), the look-up where it finds something,
// or nobody, whichever promises the most tokens per second (draft_planner.h).
class AdaptiveDrafter : public BlockDrafter {
 public:
  // `main` may be null: only the look-up. `main_source` is for stats. What the
  // engine knows of either source must outlive it.
  AdaptiveDrafter(std::unique_ptr<BlockDrafter> main, DraftSource main_source,
                  DraftHistory* main_history,
                  std::unique_ptr<LookupDrafter> lookup,
                  DraftHistory* lookup_history)
      : main_(std::move(main)),
        main_source_(main_source),
        lookup_(std::move(lookup)),
        main_planner_(main_history),
        lookup_planner_(lookup_history) {
    found_.reserve(kMaxBlockRows);
  }

  DFlashDrafter* dflash() override {
    return choice_.source == main_source_ && main_ != nullptr ? main_->dflash()
                                                              : nullptr;
  }
  DFlashContext* context() override {
    return main_ == nullptr ? nullptr : main_->context();
  }
  bool wants_taps() const override {
    return main_ != nullptr && main_->wants_taps();
  }

  DraftChoice Plan(absl::Span<const TokenId> sequence, int32_t max_drafts,
                   const CostCurve& verifying) override;
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override;
  void Review(absl::Span<const TokenId> sequence, const CostCurve& verifying,
              std::vector<TokenId>* drafts) override;
  void Learn(int32_t drafted, int32_t accepted,
             absl::Duration draft_time) override;

  absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                            CancelFlags cancel) override;
  absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                              CancelFlags cancel) override;
  void Reset() override;

 private:
  // Of the drafts of the last Review(); empty if nobody says.
  absl::Span<const float> LastMargins() const {
    return planner_ == &main_planner_ ? main_->margins().subspan(0, offered_)
                                      : absl::Span<const float>();
  }

  const std::unique_ptr<BlockDrafter> main_;
  const DraftSource main_source_;
  const std::unique_ptr<LookupDrafter> lookup_;
  DraftPlanner main_planner_, lookup_planner_;

  bool first_ = true;   // Whether the next block is the first behind a prompt.
  DraftChoice choice_;  // Of the last Plan(),
  DraftPlanner* planner_ = nullptr;  // who made it; null: there was none;
  std::vector<TokenId> found_;       // and what the look-up found then.
  int32_t offered_ = 0;              // Drafts of the last Review().
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_ADAPTIVE_DRAFTER_H_
