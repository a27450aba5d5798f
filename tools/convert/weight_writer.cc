// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/weight_writer.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "tools/convert/quantise.h"

namespace deltaedge {

absl::Status WeightWriter::Begin(const TensorSpec& spec) {
  spec_ = spec;
  return writer_->Begin(spec.name);
}

absl::Status WeightWriter::Append(absl::Span<const float> values) {
  const size_t cols = spec_.shape.back();
  const size_t rows = values.size() / cols;
  assert(values.size() % cols == 0);
  switch (spec_.type) {
    case WeightType::kUnknown:
    case WeightType::kF32:
      return writer_->Append(values);
    case WeightType::kQ8:
    case WeightType::kQ8W: {
      numbers_.resize(values.size());
      scales_.resize(rows * sizeof(float));
      auto* const q = reinterpret_cast<int8_t*>(numbers_.data());
      auto* const scales = reinterpret_cast<float*>(scales_.data());
      for (size_t row = 0; row < rows; ++row) {
        scales[row] =
            QuantiseQ8(values.subspan(row * cols, cols), q + row * cols);
      }
      break;
    }
    case WeightType::kQ4:
      // Blocks do not care about rows, whose length is a multiple of theirs.
      numbers_.resize(values.size() / 2);
      scales_.resize(values.size() / kQ4Block * sizeof(uint16_t));
      QuantiseQ4(values, reinterpret_cast<uint8_t*>(numbers_.data()),
                 reinterpret_cast<uint16_t*>(scales_.data()));
      break;
  }
  DELTAEDGE_RETURN_IF_ERROR(writer_->Append(numbers_));
  return writer_->AppendScales(scales_);
}

int64_t WeightWriter::PieceOf(const TensorSpec& spec, int64_t values) {
  const int64_t cols = spec.shape.back();
  return std::max<int64_t>(values / cols, 1) * cols;
}

}  // namespace deltaedge
