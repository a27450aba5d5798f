// SPDX-License-Identifier: Apache-2.0

// A row's bits do not depend on its company: the promise of Linear, on which
// every comparison of drafted and plain decoding rests.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/thread_pool.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/linear_reference.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "kernels/logits/argmax_reference.h"
#include "tests/engine/ops/linear_case.h"
#include "tests/engine/ops/random_matrix.h"
#include "tests/testing/canary.h"
#include "tests/testing/emulated.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::CanaryBuffer;
using ::deltaedge::testing::RandomMatrix;
using ::deltaedge::testing::SameBits;
using Size = ::deltaedge::testing::LinearSize;

// A prompt's worth; always several times the tallest tile.
int MaxRows() { return testing::FewerIfEmulated("rows", 512, 64); }

// Launches on more threads than there are idle processors may each cost a slice
// of the scheduler, so those take fewer sizes.
std::vector<int> Batches(int threads) {
  if (threads > 1) return {17, MaxRows()};
  std::vector<int> batches;
  // Two of the tallest tiles, and one more.
  const int each = testing::FewerIfEmulated("rows without a gap", 33, 18);
  for (int rows = 1; rows <= each; ++rows) batches.push_back(rows);
  for (const int rows : {33, 64, 100, 512}) {
    if (rows > each && rows <= MaxRows()) batches.push_back(rows);
  }
  return batches;
}

class LinearRowsTest : public testing::LinearCase {
 protected:
  LinearRowsTest() : LinearCase(MaxRows(), /*matrices=*/1) {}
};

TEST_P(LinearRowsTest, BitsOfARowDoNotDependOnRowsOrThreads) {
  const int max_rows = MaxRows();
  const CanaryBuffer<float> x(
      random_.Uniforms(static_cast<size_t>(max_rows) * in_), /*misalign=*/1);
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();

  CanaryBuffer<float> alone(static_cast<size_t>(max_rows) * out_);
  for (int row = 0; row < max_rows; ++row) {
    input_.Set(x.data() + row * in_, 1, in_);
    (*linear)->Run(input_, alone.data() + row * out_, /*pool=*/nullptr);
  }
  ASSERT_TRUE(alone.Intact());

  for (int threads = 1; threads <= 3; ++threads) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    for (int rows : Batches(threads)) {
      // The batch ends with the last row, so that rows change their places.
      const int first = max_rows - rows;
      CanaryBuffer<float> y(static_cast<size_t>(rows) * out_,
                            /*misalign=*/static_cast<size_t>(rows % 16));
      input_.Set(x.data() + first * in_, rows, in_);
      (*linear)->Run(input_, y.data(), (*pool)->get());
      ASSERT_TRUE(y.Intact());
      for (int row = 0; row < rows; ++row) {
        ASSERT_TRUE(SameBits(y.data() + row * out_,
                             alone.data() + (first + row) * out_,
                             static_cast<size_t>(out_)))
            << "row " << row << " of " << rows << ", " << threads << " threads";
      }
    }
  }
}

// Ties come from equal columns of the matrix.
TEST_P(LinearRowsTest, TheBestOutputIsThatOfAllOutputs) {
  constexpr int kRows = 33;
  const RandomMatrix half(type_, (out_ + 1) / 2, in_, random_);
  const auto linear =
      Linear::Create({half.View(), matrix_.View(), half.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  const int32_t out = (*linear)->out_features();
  CanaryBuffer<float> x(random_.Uniforms(size_t{kRows} * in_));
  // Rows without a largest output of their own.
  std::fill_n(x.data() + 3 * in_, in_, 0.0f);
  std::fill_n(x.data() + 7 * in_, in_, -0.0f);
  if (type_ == WeightType::kF32 || type_ == WeightType::kQ8W) {
    std::fill_n(x.data() + 5 * in_, in_,
                std::numeric_limits<float>::quiet_NaN());
    x[9 * in_] = std::numeric_limits<float>::infinity();
    x[11 * in_] = -std::numeric_limits<float>::infinity();
    for (int k = 0; k < in_; ++k) x[13 * in_ + k] *= 1e-42f;
    for (int k = 0; k < in_; ++k) x[14 * in_ + k] *= 3e38f;
  }
  for (int threads = 1; threads <= 3; ++threads) {
    const auto pool = ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    for (int rows : Batches(threads)) {
      if (rows > kRows) break;
      const float* first = x.data() + (kRows - rows) * in_;
      CanaryBuffer<float> y(static_cast<size_t>(rows) * out);
      CanaryBuffer<ArgMax> expected(static_cast<size_t>(rows));
      CanaryBuffer<ArgMax> best(static_cast<size_t>(rows));
      input_.Set(first, rows, in_);
      (*linear)->Run(input_, y.data(), nullptr);
      ArgMaxRows(rows, out, y.data(), out, expected.data(), nullptr);
      input_.Set(first, rows, in_);
      // Of every other number of rows.
      CanaryBuffer<float> second(static_cast<size_t>(rows));
      const bool wanted = rows % 2 == 1;
      (*linear)->RunArgMax(input_, best.data(),
                           wanted ? second.data() : nullptr, (*pool)->get());
      ASSERT_TRUE(best.Intact());
      ASSERT_TRUE(second.Intact());
      for (int row = 0; row < rows; ++row) {
        ASSERT_EQ(best[row].index, expected[row].index)
            << "row " << row << " of " << rows << ", " << threads << " threads";
        ASSERT_EQ(best[row].finite, expected[row].finite);
        ASSERT_EQ(best[row].value, expected[row].value);
        if (!wanted) continue;
        ASSERT_EQ(second[row],
                  SecondReference(out, y.data() + row * out, expected[row]))
            << "row " << row << " of " << rows << ", " << threads << " threads";
      }
    }
  }
}

// A kernel of int8 rows that is given fewer than it is made for computes the
// last one again for each that is missing, each time with another rounding.
// XNNPACK's operators provide ten copies of the last row's rounding, while its
// int4 kernel for 14 rows reads up to thirteen: the last row of a batch of
// 14 n + 1 to 14 n + 3 rows came out wrong. So here all that lies past the last
// row is wild.
TEST_P(LinearRowsTest, WhatLiesPastTheLastRowDoesNotMatter) {
  constexpr int kRows = 64;
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  const CanaryBuffer<float> wild(
      random_.Uniforms(size_t{kRows} * in_, 1e5f, 1e6f));
  const CanaryBuffer<float> x(random_.Uniforms(size_t{kRows} * in_));
  std::vector<float> y(size_t{kRows} * out_);
  std::vector<float> alone(static_cast<size_t>(out_));
  for (const int rows : {1, 2, 3, 4, 14, 15, 16, 17, 18, 29, 30, 31, 45}) {
    input_.Set(wild.data(), kRows, in_);
    (*linear)->Run(input_, y.data(), nullptr);
    input_.Set(x.data(), rows, in_);
    (*linear)->Run(input_, y.data(), nullptr);
    const std::vector<float> last(y.begin() + (rows - 1) * out_,
                                  y.begin() + rows * out_);
    input_.Set(x.data() + (rows - 1) * in_, 1, in_);
    (*linear)->Run(input_, alone.data(), nullptr);
    EXPECT_TRUE(SameBits(last, alone)) << rows;
  }
}

TEST_P(LinearRowsTest, IsNearTheReference) {
  constexpr int kRows = 9;
  const CanaryBuffer<float> x(random_.Gaussians(size_t{kRows} * in_));
  input_.Set(x.data(), kRows, in_);
  const auto run = [&](absl::StatusOr<std::unique_ptr<Linear>> linear) {
    std::vector<float> y(size_t{kRows} * out_, NAN);
    EXPECT_TRUE(linear.ok()) << linear.status();
    if (linear.ok()) (*linear)->Run(input_, y.data(), nullptr);
    return y;
  };
  const MatrixView view = matrix_.View();
  const std::vector<float> y = run(Linear::Create({view}, "test"));
  const std::vector<float> expected =
      run(ReferenceLinear::Create({view}, "test"));

  // A sum of n products in float is off by n * 2^-24 of the sum of magnitudes
  // at worst. Roundings go both ways, so that sqrt(n) is what is seen; 4 leaves
  // room for chance. Sums of int8 are exact within a row, or a block of 32;
  // kernels take them of q and of zero_point, at most 255 in size.
  const bool takes_int8 = type_ == WeightType::kQ8 || type_ == WeightType::kQ4;
  const int terms = type_ == WeightType::kQ8   ? 2
                    : type_ == WeightType::kQ4 ? in_ / kQ4Block + 2
                                               : in_ + 1;
  const double limit = 4 * std::sqrt(terms) * 0x1p-24;
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < out_; ++i) {
      double size = 0;
      for (int k = 0; k < in_; ++k) {
        const double magnitude =
            takes_int8
                ? 255.0 * input_.Quantize(nullptr).quantization[row].scale
                : std::abs(x[row * in_ + k]);
        size += magnitude * std::abs(ReferenceLinear::Weight(view, i, k));
      }
      ASSERT_LE(std::abs(double{y[row * out_ + i]} - expected[row * out_ + i]),
                limit * size)
          << "row " << row << ", output " << i;
    }
  }
}

// An even row in [-1, 1) is rounded in steps of 2 / 255, which is 0.4 % of its
// size in the mean square; so is a product with it.
TEST_P(LinearRowsTest, IsNearTheProductOfUnroundedRows) {
  constexpr int kRows = 9;
  const CanaryBuffer<float> x(random_.Uniforms(size_t{kRows} * in_));
  input_.Set(x.data(), kRows, in_);
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  std::vector<float> y(size_t{kRows} * out_);
  (*linear)->Run(input_, y.data(), nullptr);
  double error = 0, size = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < out_; ++i) {
      double exact = 0;
      for (int k = 0; k < in_; ++k) {
        exact +=
            x[row * in_ + k] * ReferenceLinear::Weight(matrix_.View(), i, k);
      }
      error += (y[row * out_ + i] - exact) * (y[row * out_ + i] - exact);
      size += exact * exact;
    }
  }
  const bool takes_int8 = type_ == WeightType::kQ8 || type_ == WeightType::kQ4;
  EXPECT_LE(std::sqrt(error / size), takes_int8 ? 0.005 : 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearRowsTest,
                         testing::LinearCases(Size{1, 1}, Size{3, 2},
                                              Size{64, 32}, Size{127, 100},
                                              Size{1024, 64}, Size{1027, 67},
                                              Size{1056, 7}, Size{1151, 17},
                                              Size{1537, 33}),
                         testing::LinearCaseName);

}  // namespace
}  // namespace deltaedge
