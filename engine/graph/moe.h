// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_MOE_H_
#define DELTAEDGE_ENGINE_GRAPH_MOE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/aligned_buffer.h"
#include "engine/graph/mlp.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/linear_stack.h"
#include "pthreadpool.h"

namespace deltaedge {

// Buffers of mixtures of experts, one for all layers of a model. A choice is a
// row and one of the experts that it chose; choices are sorted by expert.
struct MoeScratch {
  AlignedArray<float> logits;    // [max_rows, E + 1], the shared expert's last
  AlignedArray<int32_t> ids;     // [max_rows, k] experts, by rank
  AlignedArray<float> weights;   // [max_rows, k] likewise
  AlignedArray<int32_t> places;  // [max_rows, k] among the choices, likewise
  AlignedArray<int32_t> ends;    // [E] where the choices of an expert end
  AlignedArray<float> x;         // [choices, H] what experts are asked
  AlignedArray<float> gate_up;   // [choices, 2 * Im]
  AlignedArray<float> act;       // [choices, Im]
  AlignedArray<float> y;         // [choices, H] what they answer
  std::vector<LinearStack::Group> groups;  // Of the experts that are chosen.
  LinearInput input;                       // Of choices.

  static absl::StatusOr<MoeScratch> Allocate(int32_t max_rows,
                                             int32_t hidden_size,
                                             const MoeConfig& config);
  int64_t bytes() const;
};

// A mixture of experts with a shared one (docs/models.md 1.6). Rows that choose
// the same expert share one product with it; the answers to a row are added by
// rank, so its bits do not depend on the rows beside it. Thread-compatible.
class Moe {
 public:
  // Weights and configs have passed their checks. `name` stands in errors; as
  // Linear::Create.
  static absl::StatusOr<Moe> Create(const MoeWeights& weights,
                                    const MoeConfig& config,
                                    absl::string_view name,
                                    const LinearOptions& options);

  // y [rows, H] from h [rows, H]; y may not be h. `input` and `shared` are the
  // buffers of the shared expert and have room for rows of H and Is numbers.
  void Run(const float* h, int32_t rows, LinearInput* input, MlpScratch* shared,
           MoeScratch* scratch, float* y, pthreadpool_t pool) const;
  int64_t packed_bytes() const;

 private:
  Moe() = default;

  // Sorts the choices of `rows` rows: places and groups.
  void Sort(int32_t rows, MoeScratch* scratch) const;

  int32_t experts_ = 0;
  int32_t top_k_ = 0;
  bool normalise_ = false;
  std::unique_ptr<Linear> router_;
  std::unique_ptr<LinearStack> gate_up_, down_;
  std::unique_ptr<Mlp> shared_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_MOE_H_
