// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_LAUNCH_H_
#define DELTAEDGE_ENGINE_GRAPH_LAUNCH_H_

#include <cstdint>

#include "pthreadpool.h"

namespace deltaedge {

// Waking threads that spin costs about a microsecond, and far more where
// something else wants their cores, so what takes no longer than that runs in
// the caller. Which threads run something never changes a bit.

// For `elements` numbers, each read, worked on a little and written.
inline pthreadpool_t PoolFor(int64_t elements, pthreadpool_t pool) {
  constexpr int64_t kMinElements = 1 << 13;
  return elements < kMinElements ? nullptr : pool;
}

// For `rows` rows through products with `linear`, a Linear or a LinearStack.
template <class Products>
pthreadpool_t PoolFor(const Products& linear, int32_t rows,
                      pthreadpool_t pool) {
  constexpr int64_t kMinProducts = 1 << 15;
  return int64_t{rows} * linear.in_features() * linear.out_features() <
                 kMinProducts
             ? nullptr
             : pool;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_LAUNCH_H_
