// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_
#define DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

struct ArgMax {
  int32_t index;  // of the largest value; the lowest one if several are equal
  float value;    // x[index]
  bool finite;    // no value of the row is a NaN or infinite
};

// The largest of each row of x [rows, dim], dim > 0, rows `stride` floats
// apart, into out [rows]. -0 and denormals equal 0; a NaN counts as minus
// infinity. Exact, so the same with any number of threads. `pool` may be null.
// Cannot fail; does not allocate. argmax_reference.h is the definition.
void ArgMaxRows(int32_t rows, int32_t dim, const float* x, int64_t stride,
                ArgMax* out, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_
