// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_
#define DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_

#include <algorithm>
#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

struct ArgMax {
  int32_t index;  // of the largest value; the lowest one if several are equal
  float value;    // that value, by which rows and parts compare
  bool finite;    // no value of the row is a NaN or infinite
};

// The largest of each row of x [rows, dim], dim > 0, rows `stride` floats
// apart, into out [rows]. -0 and denormals stand for 0, a NaN for minus
// infinity, in `value` too. Exact, so the same with any number of threads.
// `pool` may be null. Cannot fail; does not allocate. argmax_reference.h is the
// definition.
void ArgMaxRows(int32_t rows, int32_t dim, const float* x, int64_t stride,
                ArgMax* out, pthreadpool_t pool);

// The same of a part of a row, x [dim], dim > 0, which begins at index `begin`
// of it. Runs in the caller.
ArgMax ArgMaxOfPart(int32_t dim, const float* x, int32_t begin);

// The largest value of the same part but the one that is its ArgMaxOfPart():
// that one's equal, if it has one; minus infinity, if there is nothing else.
// Counts values as ArgMax does. Leaves minus infinity in x, in that one's
// place.
float SecondOfPart(int32_t dim, float* x, int32_t begin, const ArgMax& best);

// Of two parts of a row together, whichever comes first.
inline ArgMax Together(const ArgMax& a, const ArgMax& b) {
  const bool b_wins =
      b.value > a.value || (b.value == a.value && b.index < a.index);
  return {b_wins ? b.index : a.index, b_wins ? b.value : a.value,
          a.finite && b.finite};
}

// The second largest value of two parts together, of which `a_second` and
// `b_second` are the parts' own.
inline float SecondTogether(const ArgMax& a, float a_second, const ArgMax& b,
                            float b_second) {
  return std::max({std::min(a.value, b.value), a_second, b_second});
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_LOGITS_ARGMAX_H_
