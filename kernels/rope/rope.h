// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ROPE_ROPE_H_
#define DELTAEDGE_KERNELS_ROPE_ROPE_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// Rotary position embedding, the NeoX pairing: within the first `rotary_dim`
// elements of a head, element i is paired with i + rotary_dim / 2, and the pair
// is rotated by angle(p, i) = p * theta^(-2 i / rotary_dim) for position p. The
// elements behind `rotary_dim` stay as they are (partial rotation).
// rope_reference.h is the definition.

// cos and sin, [rows, rotary_dim / 2] each, dense, of the angles of positions
// position .. position + rows - 1. Angles are taken in double and their cosine
// and sine rounded to float at the end, so they are as good at position 2^20 as
// at 1. rotary_dim is even; position >= 0; theta > 0.
void RopeTable(int64_t position, int32_t rows, int32_t rotary_dim, double theta,
               float* cos, float* sin);

// Rotates x in place; row r, head h begins at x + r * row_stride + h *
// head_stride, strides in floats. cos, sin: row r of the table belongs to row r
// of x. A head has the same bits alone and in company. `pool` may be null.
void RopeApply(int32_t rows, int32_t heads, int32_t rotary_dim, float* x,
               int64_t row_stride, int64_t head_stride, const float* cos,
               const float* sin, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ROPE_ROPE_H_
