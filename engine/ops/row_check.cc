// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

constexpr int32_t kBatches[] = {2, 4, 8, 17};
constexpr int32_t kRows = 17;
// No kernel of XNNPACK takes more rows at once.
constexpr int32_t kTileRows = 16;

// Long sums with remainders for every vector width; outputs with a remainder
// for every tile, and fewer than the narrowest.
constexpr int32_t kInFeatures = 1027;
constexpr int32_t kOutFeatures[] = {67, 3};

// Numbers in [-1, 1) with all 24 bits in use, from a linear congruential
// generator.
void Fill(uint64_t seed, AlignedArray<float>& values) {
  uint64_t state = seed;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f;
  }
}

absl::StatusOr<bool> AllIndependent(pthreadpool_t pool, LinearFactory factory,
                                    const LinearOptions& options) {
  for (int32_t out_features : kOutFeatures) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        AlignedArray<float> weights,
        AlignedArray<float>::Allocate({out_features, kInFeatures},
                                      "weights of the row check"));
    Fill(/*seed=*/1, weights);
    const MatrixView view = {weights.data(), WeightType::kF32, out_features,
                             kInFeatures};
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Linear> linear,
                               factory({view}, "row check", options));
    DELTAEDGE_ASSIGN_OR_RETURN(const bool independent,
                               RowsAreIndependent(*linear, pool));
    if (!independent) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<bool> RowsAreIndependent(Linear& linear, pthreadpool_t pool) {
  const ptrdiff_t in = linear.in_features();
  const ptrdiff_t out = linear.out_features();
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedArray<float> x,
      AlignedArray<float>::Allocate({kRows, in}, "input of the row check"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedArray<float> alone,
      AlignedArray<float>::Allocate({kRows, out}, "output of the row check"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedArray<float> together,
      AlignedArray<float>::Allocate({kRows, out}, "output of the row check"));
  Fill(/*seed=*/2, x);
  for (int32_t row = 0; row < kRows; ++row) {
    DELTAEDGE_RETURN_IF_ERROR(linear.Run(
        x.data() + row * in, 1, alone.data() + row * out, /*pool=*/nullptr));
  }
  for (int32_t rows : kBatches) {
    DELTAEDGE_RETURN_IF_ERROR(
        linear.Run(x.data(), rows, together.data(), pool));
    const size_t bytes = static_cast<size_t>(rows * out) * sizeof(float);
    if (std::memcmp(alone.data(), together.data(), bytes) != 0) return false;
  }
  return true;
}

absl::StatusOr<LinearOptions> FindLinearOptions(pthreadpool_t pool,
                                                LinearFactory factory) {
  LinearOptions options;
  DELTAEDGE_ASSIGN_OR_RETURN(const bool as_they_come,
                             AllIndependent(pool, factory, options));
  if (as_they_come) return options;
  options.min_rows = kTileRows;
  DELTAEDGE_ASSIGN_OR_RETURN(const bool padded,
                             AllIndependent(pool, factory, options));
  if (!padded) {
    return absl::InternalError(
        absl::StrCat("on this processor a row of a product depends on the "
                     "rows beside it, even with ",
                     kTileRows, " rows at least"));
  }
  Log(LogLevel::kWarning,
      absl::StrCat("products of few rows round differently on this processor; "
                   "all run with ",
                   kTileRows, " rows at least, which makes decoding slower"));
  return options;
}

}  // namespace deltaedge
