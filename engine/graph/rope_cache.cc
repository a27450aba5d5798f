// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/rope_cache.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "kernels/rope/rope.h"

namespace deltaedge {

absl::StatusOr<RopeCache> RopeCache::Create(int32_t rotary_dim, double theta) {
  RopeCache cache;
  cache.rotary_dim_ = rotary_dim;
  cache.theta_ = theta;
  for (AlignedArray<float>* array : {&cache.cos_, &cache.sin_}) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        *array,
        AlignedArray<float>::Allocate({kKept, rotary_dim / 2}, "rotary table"));
  }
  return cache;
}

void RopeCache::Copy(int64_t position, int32_t rows, float* cos, float* sin) {
  const int64_t end = position + rows;
  if (end > kKept) {
    return RopeTable(position, rows, rotary_dim_, theta_, cos, sin);
  }
  const int64_t half = rotary_dim_ / 2;
  if (end > filled_) {
    RopeTable(filled_, static_cast<int32_t>(end - filled_), rotary_dim_, theta_,
              cos_.data() + filled_ * half, sin_.data() + filled_ * half);
    filled_ = end;
  }
  std::copy_n(cos_.data() + position * half, rows * half, cos);
  std::copy_n(sin_.data() + position * half, rows * half, sin);
}

}  // namespace deltaedge
