// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "pthreadpool.h"

namespace deltaedge {

absl::StatusOr<Linear::Shape> Linear::CheckParts(
    absl::Span<const MatrixView> parts, absl::string_view name) {
  if (parts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("product '", name, "' has no matrix"));
  }
  int64_t out_features = 0;
  for (const MatrixView& part : parts) {
    if (part.data == nullptr || part.rows <= 0 || part.cols <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("product '", name, "' has ",
                       part.data == nullptr ? "an absent" : "an empty",
                       " matrix [", part.rows, ", ", part.cols, "]"));
    }
    if (part.cols != parts[0].cols) {
      return absl::InvalidArgumentError(
          absl::StrCat("product '", name, "' has matrices of ", parts[0].cols,
                       " and ", part.cols, " columns; they must be equal"));
    }
    out_features += part.rows;
  }
  if (out_features > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("product '", name, "' has ", out_features,
                     " outputs; at most 2147483647 are allowed"));
  }
  return Shape{parts[0].cols, static_cast<int32_t>(out_features)};
}

absl::Status Linear::Configure(const LinearOptions& options,
                               absl::string_view name) {
  if (options.min_rows < 1 || options.min_rows > LinearOptions::kMaxMinRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_rows of product '", name, "' is ", options.min_rows,
                     "; allowed are 1 to ", LinearOptions::kMaxMinRows));
  }
  min_rows_ = options.min_rows;
  if (min_rows_ == 1) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(
      padded_x_, AlignedArray<float>::Allocate(
                     {min_rows_, in_features_},
                     absl::StrCat("padded input of product '", name, "'")));
  DELTAEDGE_ASSIGN_OR_RETURN(
      padded_y_, AlignedArray<float>::Allocate(
                     {min_rows_, out_features_},
                     absl::StrCat("padded output of product '", name, "'")));
  return absl::OkStatus();
}

absl::Status Linear::Run(const float* x, int32_t rows, float* y,
                         pthreadpool_t pool) {
  assert(rows >= 0);
  if (rows == 0) return absl::OkStatus();
  if (rows >= min_rows_) return Multiply(x, rows, y, pool);
  const ptrdiff_t in = in_features_;
  const ptrdiff_t out = out_features_;
  float* padding = std::copy_n(x, rows * in, padded_x_.data());
  for (int32_t row = rows; row < min_rows_; ++row) {
    padding = std::copy_n(x + (rows - 1) * in, in, padding);
  }
  DELTAEDGE_RETURN_IF_ERROR(
      Multiply(padded_x_.data(), min_rows_, padded_y_.data(), pool));
  std::copy_n(padded_y_.data(), rows * out, y);
  return absl::OkStatus();
}

}  // namespace deltaedge
