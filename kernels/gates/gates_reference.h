// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_GATES_GATES_REFERENCE_H_
#define DELTAEDGE_KERNELS_GATES_GATES_REFERENCE_H_

#include <cmath>

namespace deltaedge {

// The definition, in double, of one row and head.
inline double GdnLogDecayReference(double a, double neg_exp_a, double dt_bias) {
  const double x = a + dt_bias;
  return neg_exp_a * (x > 20.0 ? x : std::log1p(std::exp(x)));
}

inline double GdnBetaReference(double b) { return 1.0 / (1.0 + std::exp(-b)); }

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_GATES_GATES_REFERENCE_H_
