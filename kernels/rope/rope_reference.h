// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ROPE_ROPE_REFERENCE_H_
#define DELTAEDGE_KERNELS_ROPE_ROPE_REFERENCE_H_

#include <cmath>
#include <cstdint>

namespace deltaedge {

// The definition, in double: y [rotary_dim] is x [rotary_dim] at `position`.
inline void RopeReference(int64_t position, int32_t rotary_dim, double theta,
                          const float* x, double* y) {
  const int32_t half = rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = position * std::pow(theta, -2.0 * i / rotary_dim);
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ROPE_ROPE_REFERENCE_H_
