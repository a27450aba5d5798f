// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace deltaedge {

namespace {

struct SoftMax {
  size_t best = 0;
  double log_sum = 0;  // log sum exp(score)
  bool finite = true;
};

SoftMax SoftMaxOf(absl::Span<const float> scores) {
  SoftMax result;
  for (size_t i = 0; i < scores.size(); ++i) {
    result.finite = result.finite && std::isfinite(scores[i]);
    if (scores[i] > scores[result.best]) result.best = i;
  }
  const double most = scores[result.best];
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - most);
  result.log_sum = most + std::log(sum);
  return result;
}

}  // namespace

RowDivergence CompareScores(absl::Span<const float> reference,
                            absl::Span<const float> target, TokenId token) {
  const SoftMax p = SoftMaxOf(reference);
  const SoftMax q = SoftMaxOf(target);
  RowDivergence row;
  row.finite = p.finite && q.finite;
  if (!row.finite) return row;
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - p.log_sum;
    const double log_q = target[i] - q.log_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  // Rounding may leave a little less than nothing.
  row.kl = std::max(kl, 0.0);
  row.reference_loss = p.log_sum - reference[token];
  row.target_loss = q.log_sum - target[token];
  row.agree = p.best == q.best;
  return row;
}

Divergence Summarise(absl::Span<const RowDivergence> rows) {
  std::vector<double> kl;
  double kl_sum = 0, reference_loss = 0, target_loss = 0;
  int64_t agreeing = 0;
  for (const RowDivergence& row : rows) {
    kl.push_back(row.kl);
    kl_sum += row.kl;
    reference_loss += row.reference_loss;
    target_loss += row.target_loss;
    agreeing += row.agree ? 1 : 0;
  }
  std::sort(kl.begin(), kl.end());
  const auto count = static_cast<double>(rows.size());
  const auto quantile = [&](double part) {
    return kl[static_cast<size_t>(std::ceil(part * count)) - 1];
  };
  Divergence all;
  all.tokens = static_cast<int64_t>(rows.size());
  all.kl_mean = kl_sum / count;
  all.kl_median = quantile(0.5);
  all.kl_p99 = quantile(0.99);
  all.kl_max = kl.back();
  all.agreement = static_cast<double>(agreeing) / count;
  all.reference_perplexity = std::exp(reference_loss / count);
  all.target_perplexity = std::exp(target_loss / count);
  return all;
}

}  // namespace deltaedge
