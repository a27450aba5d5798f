// SPDX-License-Identifier: Apache-2.0

#include "engine/base/checked_math.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(CheckedMathTest, Add) {
  EXPECT_EQ(CheckedAdd(2, 3), 5);
  EXPECT_EQ(CheckedAdd(kMax, 0), kMax);
  EXPECT_EQ(CheckedAdd(kMax - 3, 1, 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax - 3, 1, 1, 2), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax, 1, -1), std::nullopt);
}

TEST(CheckedMathTest, Mul) {
  EXPECT_EQ(CheckedMul(6, 7), 42);
  EXPECT_EQ(CheckedMul(-6, 7), -42);
  EXPECT_EQ(CheckedMul(0, kMax, 5), 0);
  EXPECT_EQ(CheckedMul(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(CheckedMul(int64_t{1} << 31, int64_t{1} << 31, 2), std::nullopt);
  EXPECT_EQ(CheckedMul(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(CheckedMul(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedMul(2, 3, 5, 7), 210);
}

TEST(CheckedMathTest, RoundUp) {
  EXPECT_EQ(CheckedRoundUp(0, 64), 0);
  EXPECT_EQ(CheckedRoundUp(1, 64), 64);
  EXPECT_EQ(CheckedRoundUp(64, 64), 64);
  EXPECT_EQ(CheckedRoundUp(65, 64), 128);
  EXPECT_EQ(CheckedRoundUp(7, 1), 7);
  EXPECT_EQ(CheckedRoundUp(kMax - 62, 64), std::nullopt);
  EXPECT_EQ(CheckedRoundUp(kMax - 63, 64), kMax - 63);
}

}  // namespace
}  // namespace deltaedge
