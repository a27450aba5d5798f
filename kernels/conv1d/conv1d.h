// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_CONV1D_CONV1D_H_
#define DELTAEDGE_KERNELS_CONV1D_CONV1D_H_

#include <cstdint>

#include "kernels/base/argument_error.h"
#include "pthreadpool.h"

namespace deltaedge {

// Causal depthwise convolution of width 4, then SiLU, over the raw columns of
// one sequence. For channel c and the column x at position p:
//
//   y   = w[0] * x[p - 3], then fma(w[i], x[p - 3 + i], y) for i = 1, 2, 3
//   out = y / (1 + exp(-y))
//
// in float and in this order. Columns before position 0 are zero. A row's bits
// depend on the four columns alone: not on the block they came in, nor on
// whether a column came from the ring or from the block.
//
// The ring holds earlier raw columns by position: that of p at row
// p mod ring_rows. Rolling back therefore moves a position and no data. The
// caller writes a block's columns into the ring when it likes, before the next
// block; with ring_rows of T + 3 that never destroys what the block's own start
// needs.
struct Conv1dBlock {
  int32_t channels;
  int32_t rows;
  int64_t position;   // of the block's first row
  const float* ring;  // [ring_rows, channels]; read only for positions from
                      // max(0, position - 3) to position - 1; else may be null
  int32_t ring_rows;  // at least 3
  const float* x;     // [rows, channels], raw columns of the block
  int64_t x_stride;   // in floats between rows, at least `channels`
  const float* weight;  // [4, channels]; tap 3 is the current column's
  float* out;           // [rows, channels]; overlaps nothing of the above
  int64_t out_stride;   // in floats between rows, at least `channels`
};

// Whether `block` is sound; if not, `*error` names the first unsound argument.
// `value` of an overlapping pointer is 0. Cannot check that the memory behind
// the pointers is there.
bool CheckConv1dBlock(const Conv1dBlock& block, ArgumentError* error);

// Runs the block; work is split into rows and channels. `pool` null: on the
// calling thread. Never writes the ring. Assumes a sound block; cannot fail,
// does not allocate. Denormals are flushed to zero.
void Conv1dSiluForward(const Conv1dBlock& block, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_CONV1D_CONV1D_H_
