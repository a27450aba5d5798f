// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_DRAFTER_WRAPPER_H_
#define DELTAEDGE_ENGINE_SPEC_DRAFTER_WRAPPER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/state/sequence_state.h"
#include "engine/stats.h"
#include "engine/types.h"

namespace deltaedge {

// For benchmarks and tests: a hand in the drafters of sessions.

// Another drafter, under whatever a derived class changes.
class ForwardingDrafter : public BlockDrafter {
 public:
  explicit ForwardingDrafter(std::unique_ptr<BlockDrafter> drafter)
      : drafter_(std::move(drafter)) {}

  DFlashDrafter* dflash() override { return drafter_->dflash(); }
  DFlashContext* context() override { return drafter_->context(); }
  bool wants_taps() const override { return drafter_->wants_taps(); }
  DraftChoice Plan(absl::Span<const TokenId> sequence, int32_t max_drafts,
                   const CostCurve& verifying) override {
    return drafter_->Plan(sequence, max_drafts, verifying);
  }
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override {
    return drafter_->Propose(sequence, max_drafts, cancel, drafts);
  }
  absl::Span<const float> margins() const override {
    return drafter_->margins();
  }
  void Review(absl::Span<const TokenId> sequence, const CostCurve& verifying,
              std::vector<TokenId>* drafts) override {
    drafter_->Review(sequence, verifying, drafts);
  }
  void Learn(int32_t drafted, int32_t accepted,
             absl::Duration draft_time) override {
    drafter_->Learn(drafted, accepted, draft_time);
  }
  absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                            CancelFlags cancel) override {
    return drafter_->ObserveBlock(plan, taps, cancel);
  }
  absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                              CancelFlags cancel) override {
    return drafter_->ObservePrefill(plan, taps, cancel);
  }
  void Reset() override { drafter_->Reset(); }

 private:
  const std::unique_ptr<BlockDrafter> drafter_;
};

// While it lives, every session that is made, in the whole process, drafts with
// what `wrap` makes of its drafter. At most one at a time; not at the same time
// as Engine::NewSession() on another thread.
class ScopedDrafterWrapper {
 public:
  using Wrap = std::function<std::unique_ptr<BlockDrafter>(
      std::unique_ptr<BlockDrafter>)>;

  explicit ScopedDrafterWrapper(Wrap wrap);
  ~ScopedDrafterWrapper();
  ScopedDrafterWrapper(const ScopedDrafterWrapper&) = delete;
  ScopedDrafterWrapper& operator=(const ScopedDrafterWrapper&) = delete;

  // What a session drafts with: `drafter`, or what the one alive makes of it.
  static std::unique_ptr<BlockDrafter> Apply(
      std::unique_ptr<BlockDrafter> drafter);

 private:
  const Wrap wrap_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_DRAFTER_WRAPPER_H_
