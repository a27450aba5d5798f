// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deltaedge {

namespace {

// What a session saw of a chance loses half its weight in 23 tries, what the
// engine saw in 231: a hard answer has many steps and is still only one answer.
constexpr double kKeep = 0.97;
constexpr double kKeepHistory = 0.997;
// Tries that what the engine saw is worth to a session and to first blocks, and
// before anything was seen: drafters that are of use at all mostly agree on the
// next token.
constexpr double kHistoryTries = 5.0;
constexpr double kPriorTries = 1.0;
constexpr double kFirstPrior = 0.7;
constexpr double kNextPrior = 0.98;

// Drafts of the first block of all: eight rows are one tile of most products.
constexpr int32_t kFirstDrafts = 7;

// Of a straight line between what was seen: small enough that the edge of a
// tile is looked for, large enough that nothing hopeless is tried. A row fewer
// than any that was seen is this part cheaper.
constexpr double kGuess = 0.85;
constexpr double kRowPart = 0.15;
// What an unsure estimate may come down to.
constexpr double kHope = 0.7;

// Of the time, for tries; and how much may come together, in steps.
constexpr double kTryPart = 0.01;
constexpr double kFirstCredit = 0.1;
constexpr double kMostCredit = 4.0;

// Bins grow with the margin: what is next to none must be told apart.
int Bin(float margin) {
  // A NaN is as good as no margin.
  if (!(margin > 0.0f)) return 0;
  const double bin = 2.0 * std::log2(1.0 + margin);
  return static_cast<int>(std::min(bin, DraftHistory::kBins - 1.0));
}

}  // namespace

void CostCurve::Add(int32_t n, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (n < 0 || n > kMaxBlockRows || !(seconds > 0)) return;
  Times& times = at_[n];
  times.recent[times.count % kRecent] = seconds;
  ++times.count;
  times.last = ++added_;
  std::array<double, kRecent> sorted = times.recent;
  const int64_t size = std::min<int64_t>(times.count, kRecent);
  const auto quarter = sorted.begin() + (size - 1) / 4;
  std::nth_element(sorted.begin(), quarter, sorted.begin() + size);
  times.seconds = *quarter;
  // Many rows at once are never slower than in parts, or than more.
  double per_row = std::numeric_limits<double>::infinity();
  for (int32_t m = 0; m <= kMaxBlockRows; ++m) {
    at_[m].believable =
        m == 0 ? at_[m].seconds : std::min(at_[m].seconds, m * per_row);
    if (m > 0 && Sure(m)) per_row = std::min(per_row, at_[m].seconds / m);
  }
  double more = std::numeric_limits<double>::infinity();
  for (int32_t m = kMaxBlockRows; m >= 0; --m) {
    if (m > 0 && Sure(m)) more = std::min(more, at_[m].seconds);
    at_[m].believable = std::min(at_[m].believable, more);
  }
}

double CostCurve::Seconds(int32_t n) const {
  if (Seen(n)) return at_[n].believable;
  int32_t below = n, above = n;
  while (below >= 0 && !Seen(below)) --below;
  while (above <= kMaxBlockRows && !Seen(above)) ++above;
  const bool none_above = above > kMaxBlockRows;
  if (below < 0) {
    return none_above ? 0.0
                      : at_[above].seconds / (1.0 + kRowPart * (above - n));
  }
  const double low = at_[below].believable;
  if (none_above) return low;
  const double line =
      low + (at_[above].believable - low) * (n - below) / (above - below);
  return std::max(low, kGuess * line);
}

bool CostCurve::Sure(int32_t n) const {
  return at_[n].count >= kEnough && added_ - at_[n].last <= kLongAgo;
}

double CostCurve::Hope(int32_t n) const {
  if (Sure(n)) return at_[n].believable;
  int32_t first = 0;
  while (first <= kMaxBlockRows && !Seen(first)) ++first;
  return n < first && first <= kMaxBlockRows ? at_[first].seconds * n / first
                                             : kHope * Seconds(n);
}

void DraftRate::Add(double agree, double weight, double keep) {
  const double kept = 1.0 - (1.0 - keep) * weight;
  tried = kept * tried + weight;
  agreed = kept * agreed + agree * weight;
}

DraftPlanner::Chances DraftPlanner::Agreement(int32_t count) const {
  Chances chances = {};
  const auto& seen = first_ ? history_->first : at_;
  double known = kFirstPrior / kNextPrior;
  for (int32_t i = 0; i < count; ++i) {
    known = history_->at[i].Estimate(kNextPrior * known, kPriorTries);
    chances[i] = seen[i].Estimate(known, kHistoryTries);
  }
  return chances;
}

double DraftPlanner::Acceptance(int32_t i) const { return Agreement(i + 1)[i]; }

double DraftPlanner::Sureness(double chance, float margin) const {
  const DraftRate& seen = history_->sure[Bin(margin)];
  const DraftRate& expected = history_->expected[Bin(margin)];
  const double agree =
      chance * (seen.agreed + 1.0) * (expected.tried - expected.agreed + 1.0);
  const double differ = (1.0 - chance) * (seen.tried - seen.agreed + 1.0) *
                        (expected.agreed + 1.0);
  return agree / (agree + differ);
}

DraftPlanner::Choice DraftPlanner::Of(int32_t k, double tokens,
                                      DraftReason reason,
                                      const CostCurve& verifying) const {
  const double drafting = k > 0 ? history_->drafting.Seconds(k) : 0.0;
  return {k, reason, tokens, verifying.Seconds(1 + k) + drafting};
}

DraftPlanner::Choice DraftPlanner::Choose(int32_t max_drafts, bool first,
                                          const CostCurve& verifying) {
  first_ = first;
  last_ = best_ = {};
  if (max_drafts <= 0) return last_;
  const Chances chances = Agreement(max_drafts);
  std::array<Choice, kMaxBlockRows> choices;
  double tokens = 1.0, chance = 1.0;
  for (int32_t k = 0; k <= max_drafts; ++k) {
    if (k > 0) tokens += chance *= chances[k - 1];
    choices[k] = Of(k, tokens, DraftReason::kBest, verifying);
    if (k == 0 || choices[k].Beats(best_)) best_ = choices[k];
  }
  if (best_.seconds == 0.0) {
    best_ = choices[std::min(max_drafts, kFirstDrafts)];
  }
  if (best_.drafts == 0) best_.reason = DraftReason::kPlain;
  last_ = best_;

  double& credit = history_->credit;
  if (!history_->has_credit && best_.seconds > 0.0) {
    credit = kFirstCredit * best_.seconds;
    history_->has_credit = true;
  }
  credit =
      std::min(credit + kTryPart * best_.seconds, kMostCredit * best_.seconds);

  // What might be better than it looks; and drafts that were given up, which
  // might have become good.
  Choice hope = best_, attempt;
  for (int32_t k = 0; k <= max_drafts; ++k) {
    Choice hoped = choices[k];
    hoped.seconds = verifying.Hope(1 + k);
    if (k > 0) hoped.seconds += history_->drafting.Hope(k);
    if (k == best_.drafts || !hoped.Beats(hope)) continue;
    hope = hoped;
    attempt = choices[k];
  }
  if (attempt.seconds == 0.0 && best_.drafts == 0) {
    attempt = *std::max_element(
        choices.begin() + 1, choices.begin() + max_drafts + 1,
        [](const Choice& a, const Choice& b) { return b.Beats(a); });
  }
  if (attempt.seconds > 0.0 && Loss(attempt.tokens, attempt) <= credit) {
    last_ = attempt;
    last_.reason =
        last_.drafts == 0 ? DraftReason::kMeasure : DraftReason::kProbe;
  }
  return last_;
}

double DraftPlanner::Loss(double tokens, const Choice& choice) const {
  return choice.seconds - tokens * best_.seconds / best_.tokens;
}

bool DraftPlanner::trying() const {
  return last_.reason == DraftReason::kProbe ||
         last_.reason == DraftReason::kMeasure;
}

int32_t DraftPlanner::Trim(absl::Span<const float> margins, int32_t drafts,
                           const CostCurve& verifying) {
  if (margins.empty() || trying() || best_.seconds == 0.0) return drafts;
  const Chances chances = Agreement(drafts);
  const double rate = best_.tokens / best_.seconds;
  // Of verifying k rather than none, in seconds.
  const double none = verifying.Seconds(1);
  double tokens = 0.0, chance = 1.0, most = 0.0, of_one = 0.0;
  int32_t best = 0;
  for (int32_t k = 1; k <= drafts; ++k) {
    tokens += chance *= Sureness(chances[k - 1], margins[k - 1]);
    const double gain = tokens / rate - (verifying.Seconds(1 + k) - none);
    if (k == 1) of_one = gain;
    if (gain > most) {
      best = k;
      most = gain;
    }
  }
  // Drafts that are never verified would never be trusted again.
  if (best == 0 && drafts > 0 && -of_one <= history_->credit) {
    history_->credit += of_one;
    best = 1;
  }
  return best;
}

void DraftPlanner::Observe(int32_t drafted, int32_t accepted,
                           absl::Span<const float> margins) {
  if (trying()) history_->credit -= Loss(1.0 + accepted, last_);
  const auto add = [this](int32_t i, double agree, double weight) {
    if (first_) {
      history_->first[i].Add(agree, weight, kKeepHistory);
    } else {
      at_[i].Add(agree, weight, kKeep);
      history_->at[i].Add(agree, weight, kKeepHistory);
    }
  };
  const int32_t proposed = static_cast<int32_t>(margins.size());
  const Chances chances = Agreement(std::max(drafted, proposed));
  for (int32_t i = 0; i < drafted && i <= accepted; ++i) {
    const double agree = i < accepted ? 1.0 : 0.0;
    add(i, agree, 1.0);
    if (i >= proposed) continue;
    const int bin = Bin(margins[i]);
    history_->sure[bin].Add(agree, 1.0, kKeepHistory);
    history_->expected[bin].Add(chances[i], 1.0, kKeepHistory);
  }
  // Of what was cut off there is an opinion; else only those places would be
  // seen where drafts are good. Not that of Sureness(), whose own outcome it
  // would become.
  double weight = accepted == drafted ? 1.0 : 0.0;
  for (int32_t i = drafted; i < proposed && weight > 0.0; ++i) {
    const double agree =
        history_->sure[Bin(margins[i])].Estimate(chances[i], kPriorTries);
    add(i, agree, weight);
    weight *= agree;
  }
}

}  // namespace deltaedge
