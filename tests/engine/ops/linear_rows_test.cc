// SPDX-License-Identifier: Apache-2.0

// A row's bits do not depend on its company: the promise of Linear, on which
// every comparison of drafted and plain decoding rests.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/thread_pool.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_reference.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::CanaryBuffer;
using ::deltaedge::testing::Random;
using ::deltaedge::testing::SameBits;

constexpr int kMaxRows = 512;

// Launches on more threads than there are idle processors may each cost a slice
// of the scheduler, so those take fewer sizes.
std::vector<int> Batches(int threads) {
  if (threads > 1) return {1, 2, 7, 8, 16, 17, 33, 100, kMaxRows};
  std::vector<int> batches;
  for (int rows = 1; rows <= 33; ++rows) batches.push_back(rows);
  batches.insert(batches.end(), {64, 100, kMaxRows});
  return batches;
}

struct Size {
  int in;
  int out;
};

std::ostream& operator<<(std::ostream& out, const Size& size) {
  return out << size.in << "_" << size.out;
}

class LinearRowsTest : public ::testing::TestWithParam<Size> {};

TEST_P(LinearRowsTest, BitsOfARowDoNotDependOnRowsOrThreads) {
  const size_t in = GetParam().in;
  const size_t out = GetParam().out;
  Random random(in * 1000 + out);
  // An odd distance from the alignment: files and blocks start anywhere.
  const CanaryBuffer<float> w(random.Uniforms(out * in), /*misalign=*/3);
  const CanaryBuffer<float> x(random.Uniforms(kMaxRows * in), /*misalign=*/1);
  const MatrixView view = {w.data(), WeightType::kF32, GetParam().out,
                           GetParam().in};
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({view}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();

  CanaryBuffer<float> alone(kMaxRows * out);
  for (size_t row = 0; row < kMaxRows; ++row) {
    ASSERT_TRUE((*linear)
                    ->Run(x.data() + row * in, 1, alone.data() + row * out,
                          /*pool=*/nullptr)
                    .ok());
  }
  ASSERT_TRUE(alone.Intact());

  for (int threads = 1; threads <= 3; ++threads) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    for (int rows : Batches(threads)) {
      // The batch ends with the last row, so that rows change their places.
      const size_t first = kMaxRows - rows;
      CanaryBuffer<float> y(rows * out, /*misalign=*/rows % 16);
      ASSERT_TRUE(
          (*linear)
              ->Run(x.data() + first * in, rows, y.data(), (*pool)->get())
              .ok());
      ASSERT_TRUE(y.Intact());
      for (int row = 0; row < rows; ++row) {
        ASSERT_TRUE(SameBits(y.data() + row * out,
                             alone.data() + (first + row) * out, out))
            << "row " << row << " of " << rows << ", " << threads << " threads";
      }
    }
  }
}

TEST_P(LinearRowsTest, IsNearTheReference) {
  constexpr int kRows = 9;
  const size_t in = GetParam().in;
  const size_t out = GetParam().out;
  Random random(in * 1000 + out);
  const CanaryBuffer<float> w(random.Gaussians(out * in));
  const CanaryBuffer<float> x(random.Gaussians(kRows * in));
  std::vector<float> w_size = w.ToVector();
  std::vector<float> x_size = x.ToVector();
  for (float& value : w_size) value = std::abs(value);
  for (float& value : x_size) value = std::abs(value);

  const auto run = [&](absl::StatusOr<std::unique_ptr<Linear>> linear,
                       const float* input) {
    std::vector<float> y(kRows * out, NAN);
    EXPECT_TRUE(linear.ok()) << linear.status();
    if (linear.ok()) {
      EXPECT_TRUE((*linear)->Run(input, kRows, y.data(), nullptr).ok());
    }
    return y;
  };
  const auto view = [&](const float* data) {
    return MatrixView{data, WeightType::kF32, GetParam().out, GetParam().in};
  };
  const std::vector<float> y =
      run(Linear::Create({view(w.data())}, "test"), x.data());
  const std::vector<float> expected =
      run(ReferenceLinear::Create({view(w.data())}, "test"), x.data());
  const std::vector<float> size = run(
      ReferenceLinear::Create({view(w_size.data())}, "test"), x_size.data());
  // A sum of n products in float is off by n * 2^-24 of the sum of magnitudes
  // at worst. Roundings go both ways, so that sqrt(n) is what is seen; 4 leaves
  // room for chance.
  const double limit = 4 * std::sqrt(static_cast<double>(in)) * 0x1p-24;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_LE(std::abs(double{y[i]} - expected[i]), limit * size[i])
        << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearRowsTest,
                         ::testing::Values(Size{1, 1}, Size{3, 2}, Size{64, 32},
                                           Size{127, 100}, Size{1024, 64},
                                           Size{1027, 67}, Size{1056, 7},
                                           Size{1151, 17}, Size{1537, 33}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace deltaedge
