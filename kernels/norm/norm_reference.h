// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_NORM_NORM_REFERENCE_H_
#define DELTAEDGE_KERNELS_NORM_NORM_REFERENCE_H_

#include <cmath>
#include <cstdint>

namespace deltaedge {

// The definitions, in double, of one vector x [dim] -> y [dim].

inline double SquareSumReference(int32_t dim, const float* x) {
  double sum = 0;
  for (int32_t i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

inline void RmsNormReference(int32_t dim, const float* x, const float* weight,
                             double eps, double* y) {
  const double rms = std::sqrt(SquareSumReference(dim, x) / dim + eps);
  for (int32_t i = 0; i < dim; ++i) y[i] = x[i] / rms * weight[i];
}

inline void L2NormReference(int32_t dim, const float* x, double eps,
                            double scale, double* y) {
  const double norm = std::sqrt(SquareSumReference(dim, x) + eps);
  for (int32_t i = 0; i < dim; ++i) y[i] = x[i] / norm * scale;
}

inline void GatedRmsNormReference(int32_t dim, const float* x,
                                  const float* gate, const float* weight,
                                  double eps, double* y) {
  RmsNormReference(dim, x, weight, eps, y);
  for (int32_t i = 0; i < dim; ++i) {
    const double g = gate[i];
    y[i] *= g / (1 + std::exp(-g));
  }
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_NORM_NORM_REFERENCE_H_
