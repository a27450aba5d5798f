// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_MOE_MOE_REFERENCE_H_
#define DELTAEDGE_KERNELS_MOE_MOE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace deltaedge {

// The definitions, in double, of one row.

struct MoeChoice {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

inline MoeChoice MoeRouteReference(const std::vector<double>& logits,
                                   int32_t top_k, bool normalise) {
  MoeChoice choice;
  choice.ids.resize(logits.size());
  std::iota(choice.ids.begin(), choice.ids.end(), 0);
  std::stable_sort(choice.ids.begin(), choice.ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double all = 0, chosen = 0;
  for (const double logit : logits)
    all += std::exp(logit - logits[choice.ids[0]]);
  choice.ids.resize(top_k);
  for (const int32_t id : choice.ids) {
    choice.weights.push_back(std::exp(logits[id] - logits[choice.ids[0]]));
    chosen += choice.weights.back();
  }
  for (double& weight : choice.weights) weight /= normalise ? chosen : all;
  return choice;
}

// One element: `x` and `weights` by rank.
inline double MoeCombineReference(const std::vector<double>& x,
                                  const std::vector<double>& weights,
                                  double shared_logit, double shared) {
  return std::inner_product(x.begin(), x.end(), weights.begin(), 0.0) +
         shared / (1 + std::exp(-shared_logit));
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_MOE_MOE_REFERENCE_H_
