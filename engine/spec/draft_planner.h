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

  // What it would take for `n`, 0 to kMaxBlockRows: of the last few times one
  // of the shorter ones, since steps are held up by what else runs on the
  // machine and never sped up. What was never seen is guessed a little low from
  // what was: an estimate that errs on this side gets tried, and is right from
  // then on. 0: nothing was seen.
  double Seconds(int32_t n) const;
  bool Seen(int32_t n) const { return at_[n].count > 0; }
  // What Seconds(n) may come down to, as far as it rests on little or on what
  // was long ago.
  double Hope(int32_t n) const;

 private:
  static constexpr int32_t kRecent = 8;
  static constexpr int32_t kEnough = 3;
  static constexpr int64_t kLongAgo = 128;

  // Whether `n` was seen often enough, and lately.
  bool Sure(int32_t n) const;

  struct Times {
    std::array<double, kRecent> recent = {};
    int64_t count = 0;
    int64_t last = 0;         // Of added_.
    double seconds = 0.0;     // The estimate.
    double believable = 0.0;  // At most what others say of it.
  };
  std::array<Times, kMaxBlockRows + 1> at_;
  int64_t added_ = 0;
};

// A chance, from what was seen of it; what is long past counts less and less.
struct DraftRate {
  double tried = 0.0, agreed = 0.0;

  // A try whose chance is known to be `agree`, mostly 0 or 1; each one takes
  // 1 - keep off those before. `weight`: the chance that it was a try.
  void Add(double agree, double weight, double keep);
  // `prior` counts as `tries`.
  double Estimate(double prior, double tries) const {
    return (agreed + tries * prior) / (tried + tries);
  }
};

// What all sessions of an engine saw of one source of drafts, so that a new one
// need not find it out again. Shared by their planners.
//
// Thread-compatible.
struct DraftHistory {
  static constexpr int kBins = 10;

  CostCurve drafting;  // By tokens.
  // By place in the block; of the first block behind a prompt, and of others.
  std::array<DraftRate, kMaxBlockRows> first, at;
  // By how sure the drafter was: what happened, and what their places alone
  // had let expect of the same drafts.
  std::array<DraftRate, kBins> sure, expected;
  // Seconds that may be lost by trying what does not look best.
  double credit = 0.0;
  bool has_credit = false;  // Whether there ever was any.
};

// What drafts are worth in one sequence: one for a session and source of
// drafts, on what the engine's sessions know of it.
//
// A drafter that says by how much its first choice beat its second is believed
// as far as that told drafts apart so far: with a_m of n_m drafts of about that
// margin right where their places let expect e_m, the odds of the next one are
// those of its place times
//
//   (a_m + 1) / (n_m - a_m + 1) * (n_m - e_m + 1) / (e_m + 1)
//
// So a drafter that is always as sure, or never right about it, changes
// nothing.
//
// The first block behind a prompt is judged by first blocks alone: a DFlash
// draft has learnt to go on with answers, and mostly cannot begin one.
//
// Trying what does not look best is paid for in time, of which a hundredth is
// put by for it: drafts where plain decoding is faster, so that it is noticed
// when they become good, and what was timed too seldom or too long ago. A try
// that turns out well costs nothing, so the next one follows at once.
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

  // `history` must outlive it.
  explicit DraftPlanner(DraftHistory* history) : history_(history) {}

  // For the next block, at most `max_drafts` < kMaxBlockRows. `first`: it is
  // the first one behind a prompt. `verifying`: by rows.
  Choice Choose(int32_t max_drafts, bool first, const CostCurve& verifying);

  // Proposing `drafts` tokens took `time`. Never called: it is free.
  void Drafted(int32_t drafts, absl::Duration time) {
    history_->drafting.Add(drafts, time);
  }

  // How many of the drafts for what was chosen last to verify: the front part
  // that pays most, maybe none of it, given by how much the score of each draft
  // exceeded that of the drafter's second choice (`margins`, at least as many;
  // empty: it does not say). Now and then one is verified that does not look
  // worth it; what was chosen in order to learn from it is not cut.
  int32_t Trim(absl::Span<const float> margins, int32_t drafts,
               const CostCurve& verifying);

  // What was chosen last was run: a block with `drafted` drafts, `accepted` of
  // which agreed. `margins` as in Trim(), of those that were cut off too.
  void Observe(int32_t drafted, int32_t accepted,
               absl::Span<const float> margins);

  // Estimated p[i], 0-based, of blocks like the last one that was chosen for.
  double Acceptance(int32_t i) const;

 private:
  // Estimated p[] of the first `count` places.
  using Chances = std::array<double, kMaxBlockRows>;
  Chances Agreement(int32_t count) const;
  // That a draft agrees: `chance` by its place, and what the margin says.
  double Sureness(double chance, float margin) const;

  // Of k drafts that bring so many tokens.
  Choice Of(int32_t k, double tokens, DraftReason reason,
            const CostCurve& verifying) const;

  // What is lost against what looked best by `choice`, if it brings `tokens`.
  double Loss(double tokens, const Choice& choice) const;
  // Whether the last choice was made to learn from it.
  bool trying() const;

  DraftHistory* history_;
  // By place in the block, of all but first ones.
  std::array<DraftRate, kMaxBlockRows> at_;
  bool first_ = false;  // What the last choice was for;
  Choice last_;         // what was chosen,
  Choice best_;         // and what looked best then.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_
