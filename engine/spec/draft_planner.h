// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_
#define DELTAEDGE_ENGINE_SPEC_DRAFT_PLANNER_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/model/config.h"

namespace deltaedge {

// How many tokens to draft. Drafts never change what comes out, so all of this
// is about time: with p[i] the chance that the i-th draft agrees, given that
// those before it did, a block of K drafts brings
//
//   E(K) = 1 + p[1] + p[1] p[2] + ... + p[1] ... p[K]
//
// tokens in draft_seconds(K) + verify_seconds(1 + K). The planner takes the K
// with the most tokens per second, 0 (plain decoding) among them.

// What steps take on this machine, with this model: one for an engine, learnt
// from the steps that run. A curve by number of rows is kept as it is seen, and
// not smoothed: products go in tiles of rows, so one row more may cost nothing
// or half as much again.
//
// Thread-compatible.
class StepCosts {
 public:
  // A step with one sequence in it verified `rows` rows.
  void Verified(int32_t rows, absl::Duration time);
  // A source proposed `drafts` tokens.
  void Drafted(int32_t drafts, absl::Duration time);

  // What a step would take. What was never seen lies a little below the line
  // between what was, or is as cheap as the nearest: an estimate that errs on
  // this side gets tried, and is right from then on. 0: nothing was seen.
  double VerifySeconds(int32_t rows) const { return verify_.Seconds(rows); }
  double DraftSeconds(int32_t drafts) const { return draft_.Seconds(drafts); }
  bool SeenRows(int32_t rows) const { return verify_.Seen(rows); }

 private:
  class Curve {
   public:
    void Add(int32_t n, double seconds);
    double Seconds(int32_t n) const;
    bool Seen(int32_t n) const { return seconds_[n] > 0; }

   private:
    std::array<double, kMaxBlockRows + 1> seconds_ = {};  // 0: never seen.
  };

  Curve verify_, draft_;
};

// What drafts are worth in one sequence: one for a session and source of
// drafts. A value; copies go on by themselves.
//
// Thread-compatible.
class DraftPlanner {
 public:
  // Why Choose() answered as it did.
  enum class Reason {
    kNoRoom,   // No draft could be of use: max_drafts is 0.
    kBest,     // The most tokens per second by what was seen.
    kPlain,    // Drafts cost more than they bring.
    kProbe,    // To see whether that is still so.
    kMeasure,  // To see what a step without drafts takes.
  };
  struct Choice {
    int32_t drafts = 0;
    Reason reason = Reason::kNoRoom;
    double tokens = 1.0;   // Expected of the step.
    double seconds = 0.0;  // Expected for the step; 0: not known.
  };

  // For the next block, at most `max_drafts` < kMaxBlockRows.
  Choice Choose(int32_t max_drafts, const StepCosts& costs);

  // How many of drafts that are there already to verify: the front part with
  // the most tokens per second, given how sure the drafter is of each
  // (probabilities; empty: it does not say). At least 1 of at least 1.
  int32_t Trim(absl::Span<const float> confidence, int32_t drafts,
               const StepCosts& costs) const;

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
  Choice Best(int32_t least, int32_t max_drafts, const StepCosts& costs) const;

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
