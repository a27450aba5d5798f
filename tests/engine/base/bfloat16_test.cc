// SPDX-License-Identifier: Apache-2.0

#include "engine/base/bfloat16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

TEST(Bfloat16Test, WidensToTheUpperHalf) {
  EXPECT_EQ(FloatFromBfloat16(0x3F80), 1.0f);
  EXPECT_EQ(FloatFromBfloat16(0xC049), -3.140625f);
  EXPECT_EQ(FloatFromBfloat16(0x0001), 0x1p-133f);
  EXPECT_TRUE(std::isnan(FloatFromBfloat16(0x7FC0)));
}

TEST(Bfloat16Test, EveryFiniteValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromBfloat16(static_cast<uint16_t>(bits));
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(Bfloat16FromFloat(value), bits);
  }
}

TEST(Bfloat16Test, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(Bfloat16FromFloat(1.0f + 0x1p-8f), 0x3F80);  // Tie, even below.
  EXPECT_EQ(Bfloat16FromFloat(1.0f + 0x1p-7f + 0x1p-8f), 0x3F82);  // Above.
  EXPECT_EQ(Bfloat16FromFloat(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);
  EXPECT_EQ(Bfloat16FromFloat(-1.0f - 0x1p-8f + 0x1p-20f), 0xBF80);
  EXPECT_EQ(Bfloat16FromFloat(std::numeric_limits<float>::max()), 0x7F80);
}

}  // namespace
}  // namespace deltaedge
