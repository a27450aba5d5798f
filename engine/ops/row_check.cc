// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

// No kernel of XNNPACK takes more than 16 rows at once.
constexpr int32_t kRows = 17;

// Long sums with remainders for every vector width, kQ4 with whole blocks, an
// even number because that is what every processor takes; outputs with a
// remainder for every tile, and fewer than the narrowest.
constexpr int32_t kInFeatures = 1027;
constexpr int32_t kQ4InFeatures = 1088;
constexpr int32_t kOutFeatures[] = {67, 3};

// Numbers from a linear congruential generator.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}

  // 24 bits, as float in [-1, 1) with all of them in use.
  float Float() { return static_cast<float>(Bits24()) * 0x1p-23f; }
  int32_t Bits24() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>(static_cast<int64_t>(state_) >> 40);
  }

 private:
  uint64_t state_;
};

// A matrix of random numbers, and what it looks at.
struct RandomMatrix {
  static absl::StatusOr<RandomMatrix> Make(WeightType type, int32_t rows,
                                           int32_t cols);

  AlignedArray<float> floats;      // [rows, cols]
  AlignedArray<uint8_t> bytes;     // [rows, cols]
  AlignedArray<float> scales;      // [rows]
  AlignedArray<uint16_t> scales4;  // [rows, cols / kQ4Block], bfloat16
  MatrixView view;
};

absl::StatusOr<RandomMatrix> RandomMatrix::Make(WeightType type, int32_t rows,
                                                int32_t cols) {
  constexpr char kWhat[] = "weights of the row check";
  Numbers numbers(/*seed=*/1);
  RandomMatrix matrix;
  matrix.view = {nullptr, type, rows, cols};
  if (type == WeightType::kF32) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        matrix.floats, AlignedArray<float>::Allocate({rows, cols}, kWhat));
    for (float& value : matrix.floats) value = numbers.Float();
    matrix.view.data = matrix.floats.data();
    return matrix;
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      matrix.bytes, AlignedArray<uint8_t>::Allocate({rows, cols}, kWhat));
  for (uint8_t& byte : matrix.bytes) {
    byte = static_cast<uint8_t>(numbers.Bits24() >> 8);
  }
  matrix.view.data = matrix.bytes.data();
  if (type == WeightType::kQ4) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        matrix.scales4,
        AlignedArray<uint16_t>::Allocate({rows, cols / kQ4Block}, kWhat));
    for (uint16_t& scale : matrix.scales4) {
      // 1 to 4.
      scale = static_cast<uint16_t>(0x3F80 + (numbers.Bits24() & 0xFF));
    }
    matrix.view.scales = matrix.scales4.data();
  } else {
    DELTAEDGE_ASSIGN_OR_RETURN(matrix.scales,
                               AlignedArray<float>::Allocate(rows, kWhat));
    for (float& scale : matrix.scales) scale = 2.0f + numbers.Float();
    matrix.view.scales = matrix.scales.data();
  }
  return matrix;
}

absl::StatusOr<bool> AllIndependent(const std::set<WeightType>& types,
                                    pthreadpool_t pool, LinearFactory factory,
                                    const LinearOptions& options) {
  for (const WeightType type : types) {
    for (const int32_t out_features : kOutFeatures) {
      DELTAEDGE_ASSIGN_OR_RETURN(
          const RandomMatrix matrix,
          RandomMatrix::Make(
              type, out_features,
              type == WeightType::kQ4 ? kQ4InFeatures : kInFeatures));
      DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Linear> linear,
                                 factory({matrix.view}, "row check", options));
      DELTAEDGE_ASSIGN_OR_RETURN(const bool independent,
                                 RowsAreIndependent(*linear, pool));
      if (!independent) return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<bool> RowsAreIndependent(const Linear& linear,
                                        pthreadpool_t pool) {
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
  DELTAEDGE_ASSIGN_OR_RETURN(
      LinearInput input, LinearInput::Allocate(kRows, linear.in_features()));
  Numbers numbers(/*seed=*/2);
  for (float& value : x) value = numbers.Float();
  for (int32_t row = 0; row < kRows; ++row) {
    input.Set(x.data() + row * in, 1, linear.in_features());
    linear.Run(input, alone.data() + row * out, /*pool=*/nullptr);
  }
  for (int32_t rows = 2; rows <= kRows; ++rows) {
    input.Set(x.data(), rows, linear.in_features());
    // Once is enough for threads: they share columns out, not rows.
    linear.Run(input, together.data(), rows == kRows ? pool : nullptr);
    const size_t bytes = static_cast<size_t>(rows * out) * sizeof(float);
    if (std::memcmp(alone.data(), together.data(), bytes) != 0) return false;
  }
  return true;
}

absl::StatusOr<LinearOptions> FindLinearOptions(
    absl::Span<const WeightType> weight_types, pthreadpool_t pool,
    LinearFactory factory) {
  const std::set<WeightType> types(weight_types.begin(), weight_types.end());
  LinearOptions options;
  DELTAEDGE_ASSIGN_OR_RETURN(const bool as_they_come,
                             AllIndependent(types, pool, factory, options));
  if (as_they_come) return options;
  options.one_kernel = true;
  DELTAEDGE_ASSIGN_OR_RETURN(const bool one_kernel,
                             AllIndependent(types, pool, factory, options));
  if (!one_kernel) {
    return absl::InternalError(
        "on this processor a row of a product depends on the rows beside it, "
        "even when one kernel computes them all");
  }
  Log(LogLevel::kWarning,
      "products of few rows round differently on this processor; all run "
      "through the kernel for many, which makes decoding slower");
  return options;
}

}  // namespace deltaedge
