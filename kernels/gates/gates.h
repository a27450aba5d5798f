// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_GATES_GATES_H_
#define DELTAEDGE_KERNELS_GATES_GATES_H_

#include <cstdint>

namespace deltaedge {

// The two gates of the gated delta rule, per row and value head:
//
//   log_decay = neg_exp_a * softplus(a + dt_bias)      neg_exp_a = -exp(A_log)
//   beta      = 1 / (1 + exp(-b))
//
// softplus(x) = log1p(exp(x)), and x above 20. `a`, `b` [rows, heads] with
// strides in floats between rows; `neg_exp_a`, `dt_bias` [heads]; `log_decay`,
// `beta` [rows, heads], dense, overlapping nothing else. Runs on the calling
// thread: a row is one value per head. A row's bits do not depend on the other
// rows. Cannot fail. Denormals are flushed to zero.
void GdnGatesForward(int32_t rows, int32_t heads, const float* a,
                     int64_t a_stride, const float* b, int64_t b_stride,
                     const float* neg_exp_a, const float* dt_bias,
                     float* log_decay, float* beta);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_GATES_GATES_H_
