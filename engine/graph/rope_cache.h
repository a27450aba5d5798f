// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_ROPE_CACHE_H_
#define DELTAEDGE_ENGINE_GRAPH_ROPE_CACHE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"

namespace deltaedge {

// Rows of a rotary table (kernels/rope). Those of the first kKept positions are
// computed when they are first wanted and kept: a cosine and a sine in double
// of every angle are a percent of a small model's step.
//
// Thread-compatible.
class RopeCache {
 public:
  static constexpr int64_t kKept = 4096;

  RopeCache() = default;
  // Arguments as of RopeTable(). ResourceExhausted: no memory.
  static absl::StatusOr<RopeCache> Create(int32_t rotary_dim, double theta);

  // What RopeTable() makes, the same bits.
  void Copy(int64_t position, int32_t rows, float* cos, float* sin);

  int64_t bytes() const { return cos_.size_bytes() + sin_.size_bytes(); }

 private:
  int32_t rotary_dim_ = 0;
  double theta_ = 1.0;
  AlignedArray<float> cos_, sin_;  // [kKept, rotary_dim / 2]
  int64_t filled_ = 0;             // Positions that are there.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_ROPE_CACHE_H_
