// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_NORM_NORM_H_
#define DELTAEDGE_KERNELS_NORM_NORM_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// Normalisations of rows, one vector of `dim` floats at a time. The sum of
// squares has one order, given by `dim`, so a vector has the same bits alone
// and in company, and with any number of threads. sqrt and division are the
// exact instructions, not estimates. norm_reference.h is the definition.
//
// Shapes: a matrix is [rows, heads, dim] with the inner dimension dense; row r,
// head h begins at x + r * x_row_stride + h * x_head_stride, strides in floats.
// `y` may be `x` with the same strides, or overlap nothing. eps > 0. Finite
// input of up to 1e17 gives finite output. `pool` may be null: then the
// caller's thread does it all. Cannot fail; does not allocate.

// y = x * rsqrt(mean(x^2) + eps) * weight
//
// weight [dim] is the factor itself: 1 + w for the zero-centred norms of the
// targets, which the model file stores as such. x, y [rows, dim].
void RmsNorm(int32_t rows, int32_t dim, const float* x, int64_t x_stride,
             const float* weight, float eps, float* y, int64_t y_stride,
             pthreadpool_t pool);

// The same for every head; all share one weight [dim].
void RmsNormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                  int64_t x_row_stride, int64_t x_head_stride,
                  const float* weight, float eps, float* y,
                  int64_t y_row_stride, int64_t y_head_stride,
                  pthreadpool_t pool);

// y = x * rsqrt(sum(x^2) + eps) * scale
//
// A sum, not a mean: queries and keys of the delta rule, whose eps is 1e-6
// whatever the model's other norms use.
void L2NormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                 int64_t x_row_stride, int64_t x_head_stride, float eps,
                 float scale, float* y, int64_t y_row_stride,
                 int64_t y_head_stride, pthreadpool_t pool);

// y = x * rsqrt(mean(x^2) + eps) * weight * silu(gate)
//
// The output norm of the delta rule: normalise, then gate. `y` may also be
// `gate` with the same strides.
void GatedRmsNormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                       int64_t x_row_stride, int64_t x_head_stride,
                       const float* gate, int64_t gate_row_stride,
                       int64_t gate_head_stride, const float* weight, float eps,
                       float* y, int64_t y_row_stride, int64_t y_head_stride,
                       pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_NORM_NORM_H_
