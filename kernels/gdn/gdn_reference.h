// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_GDN_GDN_REFERENCE_H_
#define DELTAEDGE_KERNELS_GDN_GDN_REFERENCE_H_

#include <cmath>
#include <cstdint>

#include "kernels/gdn/gdn_block.h"

namespace deltaedge {

// The definition of the gated delta rule, for one sequence, in double: q, k
// [rows, Hk, Dk], v [rows, Hv, Dv], log_decay, beta [rows, Hv], all dense;
// `state` [Hv, Dk, Dv] is updated in place; `out` [rows, Hv, Dv].
inline void GdnReference(const GdnShape& shape, int32_t rows, const float* q,
                         const float* k, const float* v, const float* log_decay,
                         const float* beta, double* state, double* out) {
  const int64_t heads = shape.v_heads;
  const int64_t dk = shape.k_dim;
  const int64_t dv = shape.v_dim;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t key_head = h / (shape.v_heads / shape.k_heads);
      const float* k_row = k + (t * shape.k_heads + key_head) * dk;
      const float* q_row = q + (t * shape.k_heads + key_head) * dk;
      const double gamma =
          std::exp(static_cast<double>(log_decay[t * heads + h]));
      for (int64_t j = 0; j < dv; ++j) {
        double* s = state + h * dk * dv + j;  // s[i * dv] is S[i][j]
        double prediction = 0.0;
        for (int64_t i = 0; i < dk; ++i) {
          s[i * dv] *= gamma;
          prediction += k_row[i] * s[i * dv];
        }
        const double u =
            beta[t * heads + h] * (v[(t * heads + h) * dv + j] - prediction);
        double sum = 0.0;
        for (int64_t i = 0; i < dk; ++i) {
          s[i * dv] += k_row[i] * u;
          sum += q_row[i] * s[i * dv];
        }
        out[(t * heads + h) * dv + j] = sum;
      }
    }
  }
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_GDN_GDN_REFERENCE_H_
