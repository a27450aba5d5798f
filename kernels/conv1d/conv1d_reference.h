// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_CONV1D_CONV1D_REFERENCE_H_
#define DELTAEDGE_KERNELS_CONV1D_CONV1D_REFERENCE_H_

#include <cmath>
#include <cstdint>

namespace deltaedge {

// The definition, in double: `columns` [positions, channels] are the raw
// columns of a sequence from position 0, `weight` [4, channels], `out`
// [positions, channels]; all dense.
inline void Conv1dSiluReference(int32_t channels, int64_t positions,
                                const float* columns, const float* weight,
                                double* out) {
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < channels; ++c) {
      double y = 0.0;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t from = p - 3 + i;
        if (from < 0) continue;
        y += static_cast<double>(weight[i * channels + c]) *
             columns[from * channels + c];
      }
      out[p * channels + c] = y / (1.0 + std::exp(-y));
    }
  }
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_CONV1D_CONV1D_REFERENCE_H_
