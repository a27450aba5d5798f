// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/draft_planner.h"

#include <algorithm>

namespace deltaedge {

namespace {

// What was seen of a chance loses half its weight in 23 tries.
constexpr double kKeep = 0.97;
constexpr double kPriorTries = 2.0;
// Drafters that are of use at all mostly agree on the next token.
constexpr double kFirstPrior = 0.7;
constexpr double kNextPrior = 0.98;

constexpr int64_t kMeasureEvery = 256;
constexpr int64_t kProbeFirst = 48;
constexpr int64_t kProbeMost = 512;

// Of a straight line between what was seen: small enough that the edge of a
// tile is looked for, large enough that nothing hopeless is tried.
constexpr double kHope = 0.85;

int Bin(float confidence, int bins) {
  // A NaN is as good as no confidence.
  if (!(confidence > 0.0f)) return 0;
  return std::min(static_cast<int>(confidence * bins), bins - 1);
}

}  // namespace

void CostCurve::Add(int32_t n, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (n < 0 || n > kMaxBlockRows || !(seconds > 0)) return;
  double& seen = seconds_[n];
  // Steps are held up by what else runs on the machine, and never sped up.
  const double weight = seconds < seen ? 0.5 : 0.1;
  seen = seen == 0 ? seconds
                   : seen + weight * (std::min(seconds, 3 * seen) - seen);
}

double CostCurve::Seconds(int32_t n) const {
  if (seconds_[n] > 0) return seconds_[n];
  int32_t below = n, above = n;
  while (below >= 0 && seconds_[below] == 0) --below;
  while (above <= kMaxBlockRows && seconds_[above] == 0) ++above;
  if (below < 0) return above <= kMaxBlockRows ? seconds_[above] : 0.0;
  const double low = seconds_[below];
  if (above > kMaxBlockRows) return low;
  const double line =
      low + (seconds_[above] - low) * (n - below) / (above - below);
  return std::max(low, kHope * line);
}

void DraftPlanner::Rate::Add(bool agree) {
  tried = kKeep * tried + 1.0;
  agreed = kKeep * agreed + (agree ? 1.0 : 0.0);
}

double DraftPlanner::Rate::Estimate(double prior) const {
  return (agreed + kPriorTries * prior) / (tried + kPriorTries);
}

double DraftPlanner::Acceptance(int32_t i) const {
  double p = kFirstPrior / kNextPrior;
  for (int32_t j = 0; j <= i; ++j) p = at_[j].Estimate(kNextPrior * p);
  return p;
}

DraftPlanner::Choice DraftPlanner::Best(int32_t least, int32_t max_drafts,
                                        const CostCurve& verifying) const {
  Choice best;
  double tokens = 1.0, chance = 1.0, p = kFirstPrior / kNextPrior;
  for (int32_t k = 0; k <= max_drafts; ++k) {
    if (k > 0) {
      p = at_[k - 1].Estimate(kNextPrior * p);
      chance *= p;
      tokens += chance;
    }
    if (k < least) continue;
    const double seconds =
        verifying.Seconds(1 + k) + (k > 0 ? drafting_.Seconds(k) : 0.0);
    const Choice choice = {k, DraftReason::kBest, tokens, seconds};
    // Where nothing was seen yet, more tokens are better.
    if (k == least || choice.Beats(best) ||
        (seconds == 0.0 && best.seconds == 0.0)) {
      best = choice;
    }
  }
  return best;
}

DraftPlanner::Choice DraftPlanner::Choose(int32_t max_drafts,
                                          const CostCurve& verifying) {
  if (max_drafts <= 0) return {};
  const int64_t step = steps_++;
  Choice best = Best(/*least=*/0, max_drafts, verifying);
  if (best.drafts > 0) {
    probe_every_ = 0;
    const double plain = verifying.Seconds(1);
    const bool close = best.tokens * plain < 2.0 * best.seconds;
    if (step < next_measure_ || (verifying.Seen(1) && !close)) return best;
    next_measure_ = step + kMeasureEvery;
    return {0, DraftReason::kMeasure, 1.0, plain};
  }
  best.reason = DraftReason::kPlain;
  if (probe_every_ == 0) {
    probe_every_ = kProbeFirst;
    next_probe_ = step + probe_every_;
  }
  if (step < next_probe_) return best;
  probe_every_ = std::min(2 * probe_every_, kProbeMost);
  next_probe_ = step + probe_every_;
  probing_ = true;
  best = Best(/*least=*/1, max_drafts, verifying);
  best.reason = DraftReason::kProbe;
  return best;
}

int32_t DraftPlanner::Trim(absl::Span<const float> confidence, int32_t drafts,
                           const CostCurve& verifying) const {
  if (confidence.empty()) return drafts;
  const double drafting = drafting_.Seconds(drafts);
  double tokens = 1.0, chance = 1.0;
  Choice best = {drafts};
  for (int32_t k = 1; k <= drafts; ++k) {
    const float sure = confidence[k - 1];
    chance *= sure_[Bin(sure, kBins)].Estimate(sure > 0.0f ? sure : 0.0f);
    tokens += chance;
    const Choice choice = {k, DraftReason::kBest, tokens,
                           drafting + verifying.Seconds(1 + k)};
    if (k == 1 || choice.Beats(best)) best = choice;
  }
  return best.drafts;
}

void DraftPlanner::Observe(int32_t drafted, int32_t accepted,
                           absl::Span<const float> confidence) {
  // Good news is followed up at once.
  if (probing_ && accepted == drafted) next_probe_ = steps_;
  probing_ = false;
  for (int32_t i = 0; i < drafted && i <= accepted; ++i) {
    at_[i].Add(i < accepted);
    if (i < static_cast<int32_t>(confidence.size())) {
      sure_[Bin(confidence[i], kBins)].Add(i < accepted);
    }
  }
}

}  // namespace deltaedge
