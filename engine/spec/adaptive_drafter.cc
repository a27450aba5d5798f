// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/adaptive_drafter.h"

#include <algorithm>

namespace deltaedge {

DraftChoice AdaptiveDrafter::Plan(absl::Span<const TokenId> sequence,
                                  int32_t max_drafts,
                                  const CostCurve& verifying) {
  choice_ = {};
  planner_ = nullptr;
  offered_ = 0;
  found_.clear();
  if (max_drafts <= 0) return choice_;
  DraftPlanner::Choice best;
  if (main_ != nullptr) {
    best = main_planner_.Choose(max_drafts, first_, verifying);
    choice_.source = main_source_;
    planner_ = &main_planner_;
  }
  // What is tried in order to learn from it is tried.
  const bool decided = best.reason == DraftReason::kProbe ||
                       best.reason == DraftReason::kMeasure;
  if (!decided) {
    lookup_->Propose(sequence, max_drafts, CancelFlags(), &found_)
        .IgnoreError();
    if (!found_.empty()) {
      const DraftPlanner::Choice found = lookup_planner_.Choose(
          static_cast<int32_t>(found_.size()), first_, verifying);
      if (main_ == nullptr || found.Beats(best)) {
        best = found;
        choice_.source = DraftSource::kLookup;
        planner_ = &lookup_planner_;
      }
    }
  }
  if (best.drafts == 0) choice_.source = DraftSource::kNone;
  choice_.reason = best.reason;
  choice_.drafts = best.drafts;
  choice_.tokens = best.tokens;
  choice_.time = absl::Seconds(best.seconds);
  if (verifying.Seen(1)) {
    choice_.plain_time = absl::Seconds(verifying.Seconds(1));
  }
  return choice_;
}

absl::Status AdaptiveDrafter::Propose(absl::Span<const TokenId> sequence,
                                      int32_t max_drafts, CancelFlags cancel,
                                      std::vector<TokenId>* drafts) {
  if (choice_.source != DraftSource::kLookup) {
    return main_->Propose(sequence, max_drafts, cancel, drafts);
  }
  drafts->assign(found_.begin(), found_.begin() + max_drafts);
  return absl::OkStatus();
}

void AdaptiveDrafter::Review(absl::Span<const TokenId>,
                             const CostCurve& verifying,
                             std::vector<TokenId>* drafts) {
  offered_ = static_cast<int32_t>(drafts->size());
  drafts->resize(planner_->Trim(LastMargins(), offered_, verifying));
}

void AdaptiveDrafter::Learn(int32_t drafted, int32_t accepted,
                            absl::Duration draft_time) {
  first_ = false;
  if (planner_ == nullptr) return;
  if (planner_ == &main_planner_ && choice_.drafts > 0) {
    main_planner_.Drafted(choice_.drafts, draft_time);
  }
  planner_->Observe(drafted, accepted, LastMargins());
}

absl::Status AdaptiveDrafter::ObserveBlock(const BlockPlan& plan,
                                           const float* taps,
                                           CancelFlags cancel) {
  return main_ == nullptr ? absl::OkStatus()
                          : main_->ObserveBlock(plan, taps, cancel);
}

absl::Status AdaptiveDrafter::ObservePrefill(const BlockPlan& plan,
                                             const float* taps,
                                             CancelFlags cancel) {
  first_ = true;
  return main_ == nullptr ? absl::OkStatus()
                          : main_->ObservePrefill(plan, taps, cancel);
}

void AdaptiveDrafter::Reset() {
  lookup_->Reset();
  first_ = true;
  choice_ = {};
  if (main_ != nullptr) main_->Reset();
}

}  // namespace deltaedge
