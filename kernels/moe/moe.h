// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_MOE_MOE_H_
#define DELTAEDGE_KERNELS_MOE_MOE_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// What a mixture of experts does beside its products: which experts a row
// chooses and with which weights, what they are asked, and the sum of what they
// answer. Choices, a row and one of its experts, have places of their own, so
// that those of one expert can lie side by side. A row's
// results depend on that row alone. `pool` may be null. moe_reference.h is the
// definition.

// More experts than this are not taken.
inline constexpr int32_t kMoeMaxExperts = 1024;

// Of each row of `logits` [rows, experts], the `top_k` largest, largest first,
// of equals the one of the lowest index first; a NaN counts as less than all
// numbers, so that ids are distinct and in range whatever the logits are.
//
//   ids [rows, top_k]      which
//   weights [rows, top_k]  their soft-max, over all experts; normalise: over
//                          the chosen ones, so that they add up to 1
//
// e_i = exp(l_i - largest). The sum over all is that of lanes, each ascending;
// the sum over the chosen goes by rank. 1 <= top_k <= experts <=
// kMoeMaxExperts.
void MoeRoute(int32_t rows, int32_t experts, int32_t top_k, bool normalise,
              const float* logits, int64_t logits_stride, int32_t* ids,
              float* weights, pthreadpool_t pool);

// x[places[j]] = h, for each rank j of each row.
//
//   h [rows, dim]
//   places [rows, top_k]  each of 0 .. rows * top_k - 1 once
//   x [rows * top_k, dim]
void MoeGather(int32_t rows, int32_t dim, int32_t top_k, const float* h,
               const int32_t* places, float* x, pthreadpool_t pool);

// y = weights[0] * x[places[0]], rounded; then for each further rank
// y = fma(weights[j], x[places[j]], y), ascending; then
// y = fma(sigmoid(shared_logit), shared, y), where `shared` is what y held.
//
//   x [rows * top_k, dim]          answers of experts
//   places, weights [rows, top_k]  by rank
//   shared_logit  one for each row, `shared_logit_stride` apart
//   y [rows, dim]
void MoeCombine(int32_t rows, int32_t dim, int32_t top_k, const float* x,
                const int32_t* places, const float* weights,
                const float* shared_logit, int64_t shared_logit_stride,
                float* y, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_MOE_MOE_H_
