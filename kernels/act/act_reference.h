// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ACT_ACT_REFERENCE_H_
#define DELTAEDGE_KERNELS_ACT_ACT_REFERENCE_H_

#include <cmath>

namespace deltaedge {

// The definitions, in double, of one element.

inline double SigmoidReference(double x) { return 1 / (1 + std::exp(-x)); }

inline double SwiGluReference(double gate, double up) {
  return gate * SigmoidReference(gate) * up;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ACT_ACT_REFERENCE_H_
