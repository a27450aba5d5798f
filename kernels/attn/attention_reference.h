// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ATTN_ATTENTION_REFERENCE_H_
#define DELTAEDGE_KERNELS_ATTN_ATTENTION_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attn/attention.h"

namespace deltaedge {

// The definition of AttentionForward, in double and without blocks. Keys and
// values are given as [positions, kv_heads, head_dim], what KvWrite was given;
// those of `block.kv` are not read. out: [rows, q_heads, head_dim], dense.
inline void AttentionReference(const AttentionBlock& block, const float* k,
                               const float* v, double* out) {
  const int64_t head_dim = block.kv.head_dim;
  const int64_t kv_heads = block.kv.kv_heads;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t h = 0; h < block.q_heads; ++h) {
      const KeyRange range = block.range[r];
      const int64_t kv_head = h / (block.q_heads / kv_heads);
      const float* q =
          block.q + r * block.q_row_stride + h * block.q_head_stride;
      std::vector<double> score;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t p = range.begin; p < range.end; ++p) {
        const float* key = k + (p * kv_heads + kv_head) * head_dim;
        double dot = 0;
        for (int64_t d = 0; d < head_dim; ++d) {
          dot += static_cast<double>(q[d]) * key[d];
        }
        score.push_back(dot * block.scale);
        max = std::max(max, score.back());
      }
      double* o = out + (r * block.q_heads + h) * head_dim;
      std::fill(o, o + head_dim, 0.0);
      double sum = 0;
      for (int64_t p = range.begin; p < range.end; ++p) {
        const float* value = v + (p * kv_heads + kv_head) * head_dim;
        const double weight = std::exp(score[p - range.begin] - max);
        sum += weight;
        for (int64_t d = 0; d < head_dim; ++d) o[d] += weight * value[d];
      }
      for (int64_t d = 0; d < head_dim; ++d) o[d] /= sum;
    }
  }
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ATTN_ATTENTION_REFERENCE_H_
