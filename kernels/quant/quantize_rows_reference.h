// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_REFERENCE_H_
#define DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/quant/quantize_rows.h"

namespace deltaedge {

// The definition, of one row, to the bit. Wants rounding to nearest.
inline RowQuantization QuantizeRowReference(int32_t dim, const float* x,
                                            int8_t* q) {
  float low = 0.0f, high = 0.0f;
  bool finite = true;
  for (int32_t i = 0; i < dim; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    finite = finite && std::isfinite(x[i]);
  }
  const float span = high - low;
  if (!finite || !std::isfinite(span)) {
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  if (span < 1e-30f) {
    std::fill_n(q, dim, int8_t{0});
    return {0, 1.0f};
  }
  const float steps = 255.0f / span;
  const float zero_point = std::nearbyint(-128.0f - low * steps);
  for (int32_t i = 0; i < dim; ++i) {
    const float rounded = std::nearbyint(x[i] * steps) + zero_point;
    q[i] = static_cast<int8_t>(std::clamp(rounded, -128.0f, 127.0f));
  }
  return {static_cast<int32_t>(zero_point), span / 255.0f};
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_REFERENCE_H_
