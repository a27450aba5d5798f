// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_EVAL_DIVERGENCE_H_
#define DELTAEDGE_TOOLS_EVAL_DIVERGENCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/types.h"

namespace deltaedge {

// How far a model's scores for one place in a text are from a reference's. With
// p and q the soft-max of the two, all in double, natural logarithms (nats):
struct RowDivergence {
  double kl = 0;              // sum p log(p / q), at least 0
  double reference_loss = 0;  // -log p[token]
  double target_loss = 0;     // -log q[token]
  bool agree = false;         // Largest score at the same token, the lowest of
                              // equals.
  bool finite = false;  // All scores are numbers; else nothing above holds.
};

// `reference` and `target`: scores of the whole vocabulary, equally many.
// `token`, one of them: what comes next in the text.
RowDivergence CompareScores(absl::Span<const float> reference,
                            absl::Span<const float> target, TokenId token);

// The same over many places. Quantiles are the smallest value that at least
// that part of the places does not exceed. Perplexity is exp(mean loss).
struct Divergence {
  int64_t tokens = 0;
  double kl_mean = 0, kl_median = 0, kl_p99 = 0, kl_max = 0;
  double agreement = 0;  // Part of the places, 0 to 1.
  double reference_perplexity = 0, target_perplexity = 0;

  double perplexity_ratio() const {
    return target_perplexity / reference_perplexity;
  }
};
// `rows`: at least one, all finite.
Divergence Summarise(absl::Span<const RowDivergence> rows);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_EVAL_DIVERGENCE_H_
