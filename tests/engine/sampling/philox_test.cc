// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/philox.h"

#include <array>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;

// The known answers that the authors of the generator publish with it.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                         {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(UniformAtTest, SeedIsTheKeyAndPositionTheCounter) {
  static_assert(UniformAt(0, 0) == (0xe169c58d6627e8d5u >> 11) * 0x1p-53);
  const std::array<uint32_t, 4> words =
      Philox4x32({0x89abcdef, 0x1234567, 0, 0}, {0x76543210, 0xfedcba98});
  const uint64_t bits = uint64_t{words[1]} << 32 | words[0];
  EXPECT_EQ(UniformAt(0xfedcba9876543210, 0x123456789abcdef),
            static_cast<double>(bits >> 11) * 0x1p-53);
}

TEST(UniformAtTest, IsEvenAndIndependentFromPositionToPosition) {
  constexpr int kCells = 8;
  constexpr int kDraws = 64000;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    int pairs[kCells][kCells] = {};
    for (int64_t position = 0; position < kDraws; ++position) {
      const double a = UniformAt(seed, position);
      ASSERT_GE(a, 0.0);
      ASSERT_LT(a, 1.0);
      const double b = UniformAt(seed, position + 1);
      ++pairs[static_cast<int>(a * kCells)][static_cast<int>(b * kCells)];
    }
    double chi_square = 0.0;
    for (const auto& row : pairs) {
      for (const int count : row) {
        const double expected = kDraws / (kCells * kCells);
        chi_square += (count - expected) * (count - expected) / expected;
      }
    }
    EXPECT_LT(chi_square, 103.4) << seed;  // 63 df, p = 0.001.
  }
}

TEST(UniformAtTest, NeighbouringSeedsAreUnrelated) {
  constexpr int kDraws = 20000;
  double product = 0.0;
  for (int64_t i = 0; i < kDraws; ++i) {
    product += (UniformAt(i, 5) - 0.5) * (UniformAt(i + 1, 5) - 0.5) * 12.0;
  }
  // A sum of kDraws terms of variance 1, within 4 deviations of 0.
  EXPECT_LT(product * product, 16.0 * kDraws);
}

}  // namespace
}  // namespace deltaedge
