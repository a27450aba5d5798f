// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_LOGITS_ARGMAX_REFERENCE_H_
#define DELTAEDGE_KERNELS_LOGITS_ARGMAX_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/logits/argmax.h"

namespace deltaedge {

// The definition, of one row x [dim].
inline ArgMax ArgMaxReference(int32_t dim, const float* x) {
  ArgMax best = {0, -std::numeric_limits<float>::infinity(), true};
  for (int32_t i = 0; i < dim; ++i) {
    if (!std::isfinite(x[i])) best.finite = false;
    const float value = std::fpclassify(x[i]) == FP_SUBNORMAL ? 0.0f : x[i];
    if (value > best.value) {
      best.index = i;
      best.value = value;
    }
  }
  return best;
}

// The largest value but `best`, that of ArgMaxReference().
inline float SecondReference(int32_t dim, const float* x, const ArgMax& best) {
  float second = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < dim; ++i) {
    if (i == best.index) continue;
    const float value = std::fpclassify(x[i]) == FP_SUBNORMAL ? 0.0f : x[i];
    if (value > second) second = value;
  }
  return second;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_LOGITS_ARGMAX_REFERENCE_H_
