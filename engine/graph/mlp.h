// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_MLP_H_
#define DELTAEDGE_ENGINE_GRAPH_MLP_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "pthreadpool.h"

namespace deltaedge {

// Buffers of the feed-forward part, one for all layers of a model.
struct MlpScratch {
  AlignedArray<float> gate_up;  // [max_rows, 2 * I]
  AlignedArray<float> act;      // [max_rows, I]

  static absl::StatusOr<MlpScratch> Allocate(int32_t max_rows,
                                             int32_t intermediate_size);
  int64_t bytes() const;
};

// SwiGLU, down(silu(gate h) * (up h)) (docs/models.md 1.5). Thread-compatible.
class Mlp {
 public:
  // `name` stands in errors; as Linear::Create.
  static absl::StatusOr<Mlp> Create(const MlpWeights& weights,
                                    absl::string_view name,
                                    const LinearOptions& options);

  // y [rows, H] from h [rows, H]; y may not be h. `input` has room for rows of
  // I numbers.
  void Run(const float* h, int32_t rows, LinearInput* input,
           MlpScratch* scratch, float* y, pthreadpool_t pool) const;
  int64_t packed_bytes() const {
    return gate_up_->packed_bytes() + down_->packed_bytes();
  }

 private:
  std::unique_ptr<Linear> gate_up_, down_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_MLP_H_
