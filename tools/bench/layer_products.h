// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_LAYER_PRODUCTS_H_
#define DELTAEDGE_TOOLS_BENCH_LAYER_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"
#include "engine/model/model_file.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"

namespace deltaedge {

// The dense products of a target's layers and nothing else: what a prompt would
// take if all between them were free. Has copies of a few layers of each kind,
// which together are more than caches hold in all but small models, and counts
// them as often as the model has such layers. Not for models with experts.
//
// Thread-compatible.
class LayerProducts {
 public:
  // For up to `max_rows` rows, with so many threads. ResourceExhausted, and
  // errors of Linear::Create.
  static absl::StatusOr<std::unique_ptr<LayerProducts>> Create(
      const ModelFile& target, int32_t max_rows, int threads);

  // What all layers' products of `rows` rows take, once inputs are as the
  // products want them (int8 for some). The output matrix is not among them.
  absl::Duration Run(int32_t rows);

 private:
  struct Product {
    std::unique_ptr<Linear> linear;
    double times = 0;  // How often it counts.
  };

  LayerProducts() = default;

  std::unique_ptr<ThreadPool> pool_;
  std::vector<Product> products_;
  LinearInput input_;
  AlignedArray<float> x_, y_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_LAYER_PRODUCTS_H_
