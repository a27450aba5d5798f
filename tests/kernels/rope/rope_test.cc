// SPDX-License-Identifier: Apache-2.0

#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/rope/rope_reference.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/safetensors_lite.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Golden;
using testing::Random;
using testing::SameBits;
using testing::ThreadPool;

struct Table {
  std::vector<float> cos, sin;

  Table(int64_t position, int rows, int rotary_dim, double theta)
      : cos(static_cast<size_t>(rows) * rotary_dim / 2), sin(cos.size()) {
    RopeTable(position, rows, rotary_dim, theta, cos.data(), sin.data());
  }
};

TEST(RopeTest, MatchesGoldens) {
  const struct {
    int rotary_dim;
    double theta;
    int64_t position;
  } kCases[] = {{8, 1e7, 0}, {64, 1e7, 4090}, {16, 1e4, 77}};
  const Golden golden("tests/testdata/ops/rope.safetensors");
  ASSERT_EQ(golden.error(), "");
  ForEachHwyTarget([&] {
    for (int c = 0; c < 3; ++c) {
      const std::string name = "rope" + std::to_string(c) + ".";
      SCOPED_TRACE(name);
      std::vector<float> x = golden[name + "x"].floats;
      const std::vector<float>& expected = golden[name + "out"].floats;
      ASSERT_FALSE(x.empty());
      ASSERT_EQ(x.size(), expected.size());
      // [heads, rows, head_dim]
      const int heads = static_cast<int>(golden[name + "x"].dim(0));
      const int rows = static_cast<int>(golden[name + "x"].dim(1));
      const int64_t dim = golden[name + "x"].dim(2);
      const Table table(kCases[c].position, rows, kCases[c].rotary_dim,
                        kCases[c].theta);
      RopeApply(rows, heads, kCases[c].rotary_dim, x.data(), dim, rows * dim,
                table.cos.data(), table.sin.data(), nullptr);
      double scale = 0;
      for (const float v : expected) {
        scale = std::max(scale, std::abs(double{v}));
      }
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(x[i], expected[i], 1e-6 * scale) << i;
      }
    }
  });
}

// Case C20: heads of 256 of which a quarter is rotated, theta 1e7: vectors of
// ones.
TEST(RopeTest, PartialRotationOfOnes) {
  constexpr int kHeadDim = 256;
  constexpr int kRotary = 64;
  for (const int64_t position : {0, 1, 1000}) {
    SCOPED_TRACE(position);
    const Table table(position, 1, kRotary, 1e7);
    ForEachHwyTarget([&] {
      std::vector<float> x(kHeadDim, 1.0f);
      RopeApply(1, 1, kRotary, x.data(), kHeadDim, kHeadDim, table.cos.data(),
                table.sin.data(), nullptr);
      for (int i = 0; i < 32; ++i) {
        const double angle = position * std::pow(1e7, -2.0 * i / 64);
        EXPECT_NEAR(x[i], std::cos(angle) - std::sin(angle), 2e-7) << i;
        EXPECT_NEAR(x[i + 32], std::cos(angle) + std::sin(angle), 2e-7) << i;
      }
      for (int i = kRotary; i < kHeadDim; ++i) EXPECT_EQ(x[i], 1.0f) << i;
    });
  }
}

// Float angles would be off by 0.06 at a million.
TEST(RopeTest, TableIsAsGoodFarAwayAsNear) {
  for (const int64_t position : {0, 1, 262143, 1048576}) {
    const Table table(position, 3, 128, 1e6);
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < 64; ++i) {
        const double angle = (position + r) * std::pow(1e6, -2.0 * i / 128);
        EXPECT_NEAR(table.cos[r * 64 + i], std::cos(angle), 6e-8);
        EXPECT_NEAR(table.sin[r * 64 + i], std::sin(angle), 6e-8);
      }
    }
  }
}

TEST(RopeTest, RowOfTheTableDoesNotDependOnItsFirstPosition) {
  const Table all(1000, 20, 64, 1e7);
  for (int r = 0; r < 20; ++r) {
    const Table one(1000 + r, 1, 64, 1e7);
    EXPECT_TRUE(SameBits(one.cos.data(), all.cos.data() + r * 32, 32));
    EXPECT_TRUE(SameBits(one.sin.data(), all.sin.data() + r * 32, 32));
  }
}

TEST(RopeTest, EveryWidthAndAlignmentMatchesReference) {
  constexpr int kRows = 2;
  constexpr int kHeads = 3;
  Random random(1);
  for (int rotary_dim = 0; rotary_dim <= 132; rotary_dim += 2) {
    SCOPED_TRACE(rotary_dim);
    const Table table(5, kRows, rotary_dim, 1e4);
    const int head_stride = rotary_dim + 3;
    const int row_stride = kHeads * head_stride + 1;
    const std::vector<float> x =
        random.Gaussians(static_cast<size_t>(kRows) * row_stride);
    ForEachHwyTarget([&] {
      CanaryBuffer<float> y(x, rotary_dim % 5);
      RopeApply(kRows, kHeads, rotary_dim, y.data(), row_stride, head_stride,
                table.cos.data(), table.sin.data(), nullptr);
      EXPECT_TRUE(y.Intact());
      std::vector<double> expected(x.begin(), x.end());
      for (int v = 0; v < kRows * kHeads; ++v) {
        const int at = v / kHeads * row_stride + v % kHeads * head_stride;
        RopeReference(5 + v / kHeads, rotary_dim, 1e4, x.data() + at,
                      expected.data() + at);
      }
      // A rounding each of table, product and sum, of values up to 5.
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(y[i], expected[i], 1e-6) << i;
      }
    });
  }
}

// 40 rows of 8 x 128 are three tasks.
TEST(RopeTest, HeadHasTheSameBitsInCompanyAndWithThreads) {
  constexpr int kRows = 40;
  constexpr int kHeads = 8;
  constexpr int kDim = 128;
  Random random(2);
  const std::vector<float> x = random.Gaussians(kRows * kHeads * kDim);
  const Table table(300, kRows, kDim, 1e6);
  ForEachHwyTarget([&] {
    std::vector<float> all = x;
    RopeApply(kRows, kHeads, kDim, all.data(), kHeads * kDim, kDim,
              table.cos.data(), table.sin.data(), nullptr);
    for (const int v : {0, 1, 100, kRows * kHeads - 1}) {
      std::vector<float> alone(x.begin() + v * kDim,
                               x.begin() + (v + 1) * kDim);
      RopeApply(1, 1, kDim, alone.data(), kDim, kDim,
                table.cos.data() + v / kHeads * kDim / 2,
                table.sin.data() + v / kHeads * kDim / 2, nullptr);
      EXPECT_TRUE(SameBits(alone.data(), all.data() + v * kDim, kDim)) << v;
    }
    for (const size_t threads : {1, 2, 3}) {
      const ThreadPool pool(threads);
      std::vector<float> y = x;
      RopeApply(kRows, kHeads, kDim, y.data(), kHeads * kDim, kDim,
                table.cos.data(), table.sin.data(), pool.get());
      EXPECT_TRUE(SameBits(y, all)) << threads;
    }
  });
}

}  // namespace
}  // namespace deltaedge
