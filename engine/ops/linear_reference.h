// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "pthreadpool.h"

namespace deltaedge {

// The definition of Linear, for tests: sums of double in the order of the
// inputs, rounded to float once. Takes kF32 matrices only, and copies them.
class ReferenceLinear final : public Linear {
 public:
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options = {}) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, CheckParts(parts, name));
    auto linear = std::make_unique<ReferenceLinear>(shape);
    DELTAEDGE_RETURN_IF_ERROR(linear->Configure(options, name));
    for (const MatrixView& part : parts) {
      linear->weights_.insert(linear->weights_.end(), part.f32(),
                              part.f32() + int64_t{part.rows} * part.cols);
    }
    linear->set_packed_bytes(
        static_cast<int64_t>(linear->weights_.size() * sizeof(float)));
    return linear;
  }

  explicit ReferenceLinear(const Shape& shape) : Linear(shape) {}

 protected:
  absl::Status Multiply(const float* x, int32_t rows, float* y,
                        pthreadpool_t) override {
    for (int32_t row = 0; row < rows; ++row, x += in_features()) {
      const float* w = weights_.data();
      for (int32_t i = 0; i < out_features(); ++i, w += in_features()) {
        double sum = 0;
        for (int32_t k = 0; k < in_features(); ++k) sum += double{x[k]} * w[k];
        *y++ = static_cast<float>(sum);
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<float> weights_;  // [out_features, in_features]
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_
