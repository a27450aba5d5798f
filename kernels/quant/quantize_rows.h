// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_H_
#define DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// How the numbers of a row were rounded: x is about scale * (q - zero_point).
struct RowQuantization {
  int32_t zero_point;  // -128 .. 127
  float scale;         // Positive, or NaN.
};

// Rounds rows of numbers to int8, each with a scale and a zero point of its own
// that spread what lies between its least and its largest number, 0 included,
// over the 256 steps:
//
//   low = min(0, x), high = max(0, x)
//   scale = (high - low) / 255, steps = 255 / (high - low)
//   zero_point = round(-128 - low * steps)
//   q = clamp(round(x * steps) + zero_point, -128, 127)
//
// in float, each operation rounded, halves to even. So 0 is exact, and other
// numbers are off by at most half a step. A row that spans less than 1e-30 is
// a row of zeros, with scale 1. A row with a NaN or an infinity, or that spans
// more than a float holds, has a NaN for its scale and anything for its
// numbers, so that nothing made of it is finite. quantize_rows_reference.h is
// the definition.
//
// x: [rows, dim], q: [rows, dim], both dense; quantization: [rows]. A row's
// result depends on that row only. `pool` may be null.
void QuantizeRows(int32_t rows, int32_t dim, const float* x, int8_t* q,
                  RowQuantization* quantization, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_QUANT_QUANTIZE_ROWS_H_
