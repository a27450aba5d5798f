// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear.h"

#include <cassert>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/xnn_tiles.h"
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"

namespace deltaedge {

std::string PackingIdentity() { return XnnPackingIdentity(); }

absl::StatusOr<Linear::Shape> Linear::CheckParts(
    absl::Span<const MatrixView> parts, absl::string_view name) {
  const auto error = [&](auto... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("product '", name, "' has ", what...));
  };
  if (parts.empty()) return error("no matrix");
  const MatrixView& first = parts[0];
  int64_t out_features = 0;
  for (const MatrixView& part : parts) {
    const bool absent = part.data == nullptr || (part.scales == nullptr &&
                                                 part.type != WeightType::kF32);
    if (absent || part.rows <= 0 || part.cols <= 0) {
      return error(absent ? "an absent" : "an empty", " matrix [", part.rows,
                   ", ", part.cols, "]");
    }
    if (part.cols != first.cols) {
      return error("matrices of ", first.cols, " and ", part.cols,
                   " columns; they must be equal");
    }
    if (part.type != first.type) {
      return error("weights of types ", static_cast<int>(first.type), " and ",
                   static_cast<int>(part.type), "; they must be equal");
    }
    out_features += part.rows;
  }
  switch (first.type) {
    case WeightType::kF32:
    case WeightType::kQ8W:
      break;
    case WeightType::kQ8:
      if (first.cols > kMaxQ8Features) {
        return error(first.cols, " inputs; with weights of 8 bits at most ",
                     kMaxQ8Features, " are allowed");
      }
      break;
    case WeightType::kQ4:
      if (first.cols % kQ4Block != 0) {
        return error(first.cols, " inputs; with weights of 4 bits a multiple ",
                     "of ", kQ4Block, " is allowed");
      }
      break;
    default:
      return absl::UnimplementedError(
          absl::StrCat("product '", name, "' has weights of type ",
                       static_cast<int>(first.type), ", which is unknown"));
  }
  if (out_features > std::numeric_limits<int32_t>::max()) {
    return error(out_features, " outputs; at most 2147483647 are allowed");
  }
  return Shape{first.cols, static_cast<int32_t>(out_features)};
}

void Linear::Run(LinearInput& input, float* y, pthreadpool_t pool) const {
  if (input.rows() == 0) return;
  assert(input.features() == in_features());
  Multiply(input, y, pool);
}

void Linear::RunArgMax(LinearInput& input, ArgMax* best, float* second,
                       pthreadpool_t pool) const {
  if (input.rows() == 0) return;
  assert(input.features() == in_features());
  MultiplyArgMax(input, best, second, pool);
}

}  // namespace deltaedge
