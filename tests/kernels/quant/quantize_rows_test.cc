// SPDX-License-Identifier: Apache-2.0

#include "kernels/quant/quantize_rows.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/quant/quantize_rows_reference.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Random;
using testing::SameBits;
using testing::ThreadPool;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

// One row on every target, against the definition.
void ExpectTheDefinition(const std::vector<float>& row, size_t misalign = 0) {
  const int dim = static_cast<int>(row.size());
  const CanaryBuffer<float> x(row, misalign);
  std::vector<int8_t> expected(row.size());
  const RowQuantization definition =
      QuantizeRowReference(dim, x.data(), expected.data());
  ForEachHwyTarget([&] {
    CanaryBuffer<int8_t> q(row.size(), misalign);
    CanaryBuffer<RowQuantization> quantization(1);
    QuantizeRows(1, dim, x.data(), q.data(), quantization.data(), nullptr);
    EXPECT_TRUE(q.Intact());
    EXPECT_TRUE(quantization.Intact());
    if (std::isnan(definition.scale)) {
      EXPECT_TRUE(std::isnan(quantization[0].scale));
      return;
    }
    EXPECT_EQ(quantization[0].scale, definition.scale);
    EXPECT_EQ(quantization[0].zero_point, definition.zero_point);
    EXPECT_EQ(q.ToVector(), expected);
  });
}

TEST(QuantizeRowsTest, EveryLengthAndAlignment) {
  for (int dim = 1; dim <= 70; ++dim) {
    SCOPED_TRACE(dim);
    Random random(static_cast<uint64_t>(dim));
    const size_t misalign = static_cast<size_t>(dim) % 5;
    ExpectTheDefinition(random.Gaussians(dim), misalign);
    ExpectTheDefinition(random.Uniforms(dim, 0.0f, 7.0f), misalign);
    ExpectTheDefinition(random.Uniforms(dim, -9.0f, -8.0f), misalign);
    ExpectTheDefinition(random.Gaussians(dim, 1e-29f), misalign);
    ExpectTheDefinition(random.Gaussians(dim, 1e37f), misalign);
  }
}

TEST(QuantizeRowsTest, SpecialRows) {
  ExpectTheDefinition(std::vector<float>(33, 0.0f));
  ExpectTheDefinition({-0.0f, 0.0f, -0.0f});
  ExpectTheDefinition({1.0f});
  ExpectTheDefinition({-1.0f});
  ExpectTheDefinition({9e-31f, 0.0f});
  ExpectTheDefinition({1e-40f, -1e-42f});
  ExpectTheDefinition({kLargest});
  ExpectTheDefinition({kLargest, -kLargest});
  // Halves: 255 steps of 1.
  ExpectTheDefinition({0.0f, 255.0f, 0.5f, 1.5f, 2.5f, 126.5f, 127.5f, 254.5f});
  for (const float number : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (size_t at = 0; at < 40; ++at) {
      std::vector<float> row(40, 1.0f);
      row[at] = number;
      row[(at + 20) % 40] = -2.0f;
      ExpectTheDefinition(row);
    }
  }
}

TEST(QuantizeRowsTest, IsOffByHalfAStepAtMost) {
  Random random(7);
  for (const float shift : {-3.0f, 0.0f, 0.5f, 40.0f}) {
    std::vector<float> x = random.Gaussians(1000);
    for (float& value : x) value += shift;
    x[500] = 0.0f;
    std::vector<int8_t> q(x.size());
    RowQuantization row;
    QuantizeRows(1, 1000, x.data(), q.data(), &row, nullptr);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(row.scale * (q[i] - row.zero_point), x[i],
                  row.scale * 0.5001);
    }
    EXPECT_EQ(q[500], row.zero_point);
  }
}

TEST(QuantizeRowsTest, RowsAndThreadsDoNotMatter) {
  constexpr int kRows = 37;
  constexpr int kDim = 1027;
  Random random(3);
  std::vector<float> x;
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> values =
        random.Gaussians(kDim, static_cast<float>(row + 1));
    x.insert(x.end(), values.begin(), values.end());
  }
  std::vector<int8_t> expected(x.size());
  std::vector<RowQuantization> rows(kRows);
  for (int row = 0; row < kRows; ++row) {
    rows[row] = QuantizeRowReference(kDim, x.data() + row * kDim,
                                     expected.data() + row * kDim);
  }
  for (size_t threads = 0; threads <= 3; ++threads) {
    const ThreadPool pool(threads);
    CanaryBuffer<int8_t> q(x.size());
    CanaryBuffer<RowQuantization> quantization(kRows);
    QuantizeRows(kRows, kDim, x.data(), q.data(), quantization.data(),
                 pool.get());
    EXPECT_TRUE(q.Intact());
    EXPECT_TRUE(quantization.Intact());
    EXPECT_EQ(q.ToVector(), expected);
    EXPECT_TRUE(SameBits(quantization, rows));
  }
}

TEST(QuantizeRowsTest, NoRows) {
  QuantizeRows(0, 8, nullptr, nullptr, nullptr, nullptr);
}

}  // namespace
}  // namespace deltaedge
