// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_STACK_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_STACK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "pthreadpool.h"

namespace deltaedge {

// Many matrices of one shape, of which a batch wants some, each for rows of its
// own: the experts of a layer. They are one product whose outputs are taken in
// parts, so thousands of matrices cost no more than one object, and of packed
// weights that are mapped from a file nothing is read but what is chosen.
//
// A row's outputs have the bits that a Linear of its matrix gives it.
//
// Immutable: Run may be called from several threads, with an input and a pool
// each.
class LinearStack {
 public:
  // `stacked` [count * out, in]: the rows of one matrix, then those of the
  // next. `name`, `options` and errors as for Linear::Create. While it runs,
  // matrices whose outputs are no multiple of kMaxPanelOutputs need room for a
  // plain copy, unless packed ones are there.
  static absl::StatusOr<std::unique_ptr<LinearStack>> Create(
      const MatrixView& stacked, int32_t count, absl::string_view name,
      const LinearOptions& options = {});

  // The widest panel (Linear::panel_outputs) that there is.
  static constexpr int32_t kMaxPanelOutputs = 32;

  // The next `rows` rows of a batch, for one matrix.
  struct Group {
    int32_t matrix;
    int32_t rows;
  };

  // y [rows, out_features()]: each row times the matrix of its group. Rows of
  // all groups add up to those of the input. A matrix may have several groups,
  // but is read for each. `pool` may be null. Allocates nothing and cannot
  // fail.
  void Run(LinearInput& input, absl::Span<const Group> groups, float* y,
           pthreadpool_t pool) const;

  int32_t in_features() const { return linear_->in_features(); }
  // Of one matrix.
  int32_t out_features() const { return out_features_; }
  int64_t packed_bytes() const { return linear_->packed_bytes(); }

 private:
  LinearStack(std::unique_ptr<Linear> linear, bool takes_int8,
              int32_t out_features, int32_t stride)
      : linear_(std::move(linear)),
        takes_int8_(takes_int8),
        out_features_(out_features),
        stride_(stride) {}

  const std::unique_ptr<Linear> linear_;
  const bool takes_int8_;
  const int32_t out_features_;
  const int32_t stride_;  // Outputs from one matrix to the next.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_STACK_H_
