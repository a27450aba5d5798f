// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/bfloat16.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "kernels/logits/argmax.h"
#include "kernels/logits/argmax_reference.h"
#include "kernels/quant/quantize_rows.h"
#include "pthreadpool.h"

namespace deltaedge {

// The definition of Linear, for tests: sums of double in the order of the
// inputs, rounded to float once. Holds the weights as double.
class ReferenceLinear final : public Linear {
 public:
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& = {}) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, CheckParts(parts, name));
    auto linear = std::make_unique<ReferenceLinear>(shape, parts[0].type);
    for (const MatrixView& part : parts) linear->Append(part);
    linear->set_packed_bytes(
        static_cast<int64_t>(linear->weights_.size() * sizeof(double)));
    return linear;
  }

  ReferenceLinear(const Shape& shape, WeightType type)
      : Linear(shape), takes_int8_(TakesInt8(type)) {}

  // Number `col` of row `row`.
  static double Weight(const MatrixView& matrix, int64_t row, int64_t col) {
    const int64_t i = row * matrix.cols + col;
    if (matrix.type == WeightType::kF32) return matrix.f32()[i];
    if (matrix.type != WeightType::kQ4) {
      return double{static_cast<const float*>(matrix.scales)[row]} *
             static_cast<const int8_t*>(matrix.data)[i];
    }
    const int pair = static_cast<const uint8_t*>(matrix.data)[i / 2];
    const float scale = FloatFromBfloat16(
        static_cast<const uint16_t*>(matrix.scales)[i / kQ4Block]);
    return double{scale} * ((i % 2 == 0 ? pair & 15 : pair >> 4) - 8);
  }

  void RunPart(LinearInput& input, const Part& part) const override {
    const size_t in = static_cast<size_t>(in_features());
    std::vector<double> x(in);
    for (int32_t row = 0; row < part.rows; ++row) {
      const int32_t at = part.row + row;
      for (size_t k = 0; k < in; ++k) {
        const size_t i = static_cast<size_t>(at) * in + k;
        if (takes_int8_) {
          const LinearInput::Quantized quantized = input.Quantize(nullptr);
          const RowQuantization& how = quantized.quantization[at];
          x[k] = double{how.scale} * (quantized.q[i] - how.zero_point);
        } else {
          x[k] = input.x()[i];
        }
      }
      const double* w = weights_.data() + static_cast<size_t>(part.output) * in;
      for (int32_t i = 0; i < part.outputs; ++i, w += in) {
        double sum = 0;
        for (size_t k = 0; k < in; ++k) sum += x[k] * w[k];
        part.y[row * part.y_stride + i] = static_cast<float>(sum);
      }
    }
  }
  int32_t panel_outputs() const override { return 1; }
  int32_t PartOutputs(int64_t outputs, int64_t) const override {
    return static_cast<int32_t>(outputs);
  }

 protected:
  void Multiply(LinearInput& input, float* y, pthreadpool_t) const override {
    RunPart(input,
            {0, input.rows(), 0, out_features(), y, int64_t{out_features()}});
  }

  void MultiplyArgMax(LinearInput& input, ArgMax* best, float* second,
                      pthreadpool_t pool) const override {
    std::vector<float> y(static_cast<size_t>(input.rows()) *
                         static_cast<size_t>(out_features()));
    Multiply(input, y.data(), pool);
    for (int32_t row = 0; row < input.rows(); ++row) {
      const float* outputs = y.data() + row * out_features();
      best[row] = ArgMaxReference(out_features(), outputs);
      if (second != nullptr) {
        second[row] = SecondReference(out_features(), outputs, best[row]);
      }
    }
  }

 private:
  void Append(const MatrixView& part) {
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t col = 0; col < part.cols; ++col) {
        weights_.push_back(Weight(part, row, col));
      }
    }
  }

  const bool takes_int8_;
  std::vector<double> weights_;  // [out_features, in_features]
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_REFERENCE_H_
