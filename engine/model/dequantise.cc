// SPDX-License-Identifier: Apache-2.0

#include "engine/model/dequantise.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/bfloat16.h"
#include "engine/model/weights.h"

namespace deltaedge {

absl::Status CheckScales(WeightType type, absl::Span<const std::byte> scales) {
  const bool small = type == WeightType::kQ4;
  const size_t size = small ? sizeof(uint16_t) : sizeof(float);
  for (size_t i = 0; i < scales.size() / size; ++i) {
    const float scale =
        small ? FloatFromBfloat16(
                    reinterpret_cast<const uint16_t*>(scales.data())[i])
              : reinterpret_cast<const float*>(scales.data())[i];
    if (scale > 0 && std::isnormal(scale)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "scale ", i, " is ", scale, ", allowed are positive normal numbers"));
  }
  return absl::OkStatus();
}

void DequantiseRow(const MatrixView& matrix, int64_t row, float* out) {
  assert(row >= 0 && row < matrix.rows);
  const int64_t cols = matrix.cols;
  switch (matrix.type) {
    case WeightType::kUnknown:
      break;
    case WeightType::kF32:
      std::copy_n(matrix.f32() + row * cols, cols, out);
      return;
    case WeightType::kQ8:
    case WeightType::kQ8W: {
      const int8_t* q = static_cast<const int8_t*>(matrix.data) + row * cols;
      const float scale = static_cast<const float*>(matrix.scales)[row];
      for (int64_t i = 0; i < cols; ++i) out[i] = scale * q[i];
      return;
    }
    case WeightType::kQ4: {
      const uint8_t* q =
          static_cast<const uint8_t*>(matrix.data) + row * (cols / 2);
      const uint16_t* scales =
          static_cast<const uint16_t*>(matrix.scales) + row * (cols / kQ4Block);
      for (int64_t i = 0; i < cols; i += 2, ++q) {
        const float scale = FloatFromBfloat16(scales[i / kQ4Block]);
        out[i] = scale * ((*q & 15) - 8);
        out[i + 1] = scale * ((*q >> 4) - 8);
      }
      return;
    }
  }
  assert(false);
}

}  // namespace deltaedge
