// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_
#define DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/model/config.h"
#include "engine/stats.h"

namespace deltaedge {

// How many tokens to draft. Drafts never change what comes out, so all of this
// is about time: with p[i] the chance that the i-th draft agrees, given that
// those before it did, a block of K drafts brings
//
//   E(K) = 1 + p[1] + p[1] p[2] + ... + p[1] ... p[K]
//
// tokens in drafting.Seconds(K) + verifying.Seconds(1 + K). The planner takes
// the K with the most tokens per second, 0 (plain decoding) among them. What a
// step of so many rows takes is a matter of the engine, what drafting takes one
// of the source of drafts.

// What something takes, by a number of rows or tokens, learnt as it happens. A
// curve is kept as it is seen, and not smoothed: products go in tiles of rows,
// so one row more may cost nothing, or half as much again.
//
// Thread-compatible.
class CostCurve {
 public:
  // It took `time` for `n`. Nonsense is ignored.
  void Add(int32_t n, absl::Duration time);

  // What it would take for `n`, 0 to kMaxBlockRows. What was never seen lies a
  // little below the line between what was, or is as cheap as the nearest: an
  // estimate that errs on this side gets tried, and is right from then on.
  // 0: nothing was seen.
  double Seconds(int32_t n) const;
  bool Seen(int32_t n) const { return seconds_[n] > 0; }

 private:
  std::array<double, kMaxBlockRows + 1> seconds_ = {};  // 0: never seen.
};

// What drafts are worth in one sequence: one for a session and source of
// drafts. A value; copies go on by themselves.
//
// Thread-compatible.
class DraftPlanner {
 public:
  struct Choice {
    int32_t drafts = 0;
    DraftReason reason = DraftReason::kNoRoom;
    double tokens = 1.0;   // Expected of the step.
    double seconds = 0.0;  // Expected for the step; 0: not known.

    // Whether it brings more tokens per second.
    bool Beats(const Choice& other) const {
      return tokens * other.seconds > other.tokens * seconds;
    }
  };

  // For the next block, at most `max_drafts` < kMaxBlockRows.
  // `verifying`: by rows.
  Choice Choose(int32_t max_drafts, const CostCurve& verifying);

  // Proposing `drafts` tokens took `time`. Never called: it is free.
  void Drafted(int32_t drafts, absl::Duration time) {
    drafting_.Add(drafts, time);
  }

  // How many of drafts that are there already to verify: the front part with
  // the most tokens per second, given how sure the drafter is of each
  // (probabilities; empty: it does not say). At least 1 of at least 1.
  int32_t Trim(absl::Span<const float> confidence, int32_t drafts,
               const CostCurve& verifying) const;

  // A block of `drafted` >= 1 drafts was verified and `accepted` of them
  // agreed. `confidence` as in Trim().
  void Observe(int32_t drafted, int32_t accepted,
               absl::Span<const float> confidence);

  // Estimated p[i], 0-based.
  double Acceptance(int32_t i) const;

 private:
  // A chance, from what was seen of it lately.
  struct Rate {
    double tried = 0.0, agreed = 0.0;
    void Add(bool agree);
    // `prior` counts as two tries.
    double Estimate(double prior) const;
  };
  static constexpr int kBins = 10;

  // The best of `least` .. max_drafts.
  Choice Best(int32_t least, int32_t max_drafts,
              const CostCurve& verifying) const;

  CostCurve drafting_;                  // By tokens.
  std::array<Rate, kMaxBlockRows> at_;  // By place in the block.
  std::array<Rate, kBins> sure_;        // By confidence.
  int64_t steps_ = 0;                   // That had a choice.
  int64_t next_measure_ = 3;            // Steps at which these are due, and how
  int64_t next_probe_ = 0;              // long to the one after the next.
  int64_t probe_every_ = 0;
  bool probing_ = false;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_
