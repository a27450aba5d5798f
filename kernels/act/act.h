// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ACT_ACT_H_
#define DELTAEDGE_KERNELS_ACT_ACT_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// Element-wise operations on matrices [rows, dim] or [rows, heads, dim] with
// the inner dimension dense; strides are in floats. An element has the same
// bits wherever it lies, alone and in company. No finite argument gives a NaN;
// a NaN gives a NaN. `pool` may be null. act_reference.h is the definition.

// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)). `y` may be `gate` or `up`
// with the same stride, or overlap nothing.
void SwiGlu(int32_t rows, int32_t dim, const float* gate, int64_t gate_stride,
            const float* up, int64_t up_stride, float* y, int64_t y_stride,
            pthreadpool_t pool);

// x *= sigmoid(gate), in place: the output gate of full attention, whose rows
// of q and gate are interleaved per head (gate_head_stride = 2 * dim).
void SigmoidGateHeads(int32_t rows, int32_t heads, int32_t dim, float* x,
                      int64_t x_row_stride, int64_t x_head_stride,
                      const float* gate, int64_t gate_row_stride,
                      int64_t gate_head_stride, pthreadpool_t pool);

// x += y: the residual stream.
void AddRows(int32_t rows, int32_t dim, float* x, int64_t x_stride,
             const float* y, int64_t y_stride, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ACT_ACT_H_
