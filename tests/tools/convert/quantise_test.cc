// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "engine/base/bfloat16.h"
#include "engine/model/weights.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;

constexpr int kBlock = kQ4Block;

// Near normal, and the same on every machine: no logarithm of the C library.
std::vector<float> Bells(size_t size, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(size);
  for (float& value : values) {
    for (int i = 0; i < 12; ++i) value += random.Uniform(-0.5f, 0.5f);
  }
  return values;
}

struct Q8Row {
  float scale;
  std::vector<int8_t> q;
};

Q8Row Q8(const std::vector<float>& row) {
  Q8Row result;
  result.q.resize(row.size());
  result.scale = QuantiseQ8(row, result.q.data());
  return result;
}

struct Q4Row {
  std::vector<uint8_t> bytes;
  std::vector<uint16_t> scales;

  float scale(size_t i) const { return FloatFromBfloat16(scales[i / kBlock]); }
  int q(size_t i) const {
    return (i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4) - 8;
  }
};

Q4Row Q4(const std::vector<float>& row) {
  Q4Row result;
  result.bytes.resize(row.size() / 2);
  result.scales.resize(row.size() / kBlock);
  QuantiseQ4(row, result.bytes.data(), result.scales.data());
  return result;
}

double SquaredError(const std::vector<float>& row, const Q4Row& quantised,
                    size_t first) {
  double sum = 0;
  for (size_t i = first; i < first + kBlock; ++i) {
    const double error =
        row[i] - static_cast<double>(quantised.scale(i)) * quantised.q(i);
    sum += error * error;
  }
  return sum;
}

// The same for the best q of any scale.
double SquaredErrorWith(const std::vector<float>& row, size_t first,
                        double scale) {
  double sum = 0;
  for (size_t i = first; i < first + kBlock; ++i) {
    const double q = std::clamp(std::nearbyint(row[i] / scale), -8.0, 7.0);
    sum += (row[i] - scale * q) * (row[i] - scale * q);
  }
  return sum;
}

// The least scale with which nothing is cut off.
float CoveringScale(const std::vector<float>& row, size_t first) {
  float scale = 0;
  for (size_t i = first; i < first + kBlock; ++i) {
    scale = std::max({scale, row[i] / 7, row[i] / -8});
  }
  return scale;
}

TEST(QuantiseQ8Test, LargestMagnitudeIs127) {
  const Q8Row row = Q8({0.5f, -2.0f, 1.0f, 0.0f, 2.0f / 127, -3.0f / 127});
  EXPECT_EQ(row.scale, 2.0f / 127);
  EXPECT_EQ(row.q, (std::vector<int8_t>{32, -127, 64, 0, 1, -2}));
}

TEST(QuantiseQ8Test, TiesGoToEven) {
  // A scale of 1.
  const Q8Row row = Q8({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f});
  EXPECT_EQ(row.scale, 1);
  EXPECT_EQ(row.q, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 126}));
}

TEST(QuantiseQ8Test, ErrorsAreHalfAStepAtMost) {
  const std::vector<float> values = Bells(1000, 1);
  const Q8Row row = Q8(values);
  double error = 0, square = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double e = values[i] - static_cast<double>(row.scale) * row.q[i];
    EXPECT_LE(std::abs(e), 0.500001 * row.scale);
    error += e * e;
    square += static_cast<double>(values[i]) * values[i];
  }
  EXPECT_LT(std::sqrt(error / square), 0.01);
}

TEST(QuantiseQ8Test, RowsOfZerosAndOfExtremes) {
  EXPECT_EQ(Q8({0, -0.0f, 0}).scale, 1);
  EXPECT_EQ(Q8({0, -0.0f, 0}).q, (std::vector<int8_t>{0, 0, 0}));
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(Q8({kMax, -kMax, 0}).q, (std::vector<int8_t>{127, -127, 0}));
  for (const float small : {1e-37f, 1e-38f, 1e-40f, 1e-45f}) {
    const Q8Row row = Q8({small, -small, 0});
    EXPECT_TRUE(row.scale > 0 && std::isnormal(row.scale)) << small;
    EXPECT_NEAR(row.scale * static_cast<float>(row.q[0]), small,
                0.51f * row.scale);
  }
}

// Whatever the scale: each number is the nearest there is.
TEST(QuantiseQ4Test, NumbersAreTheNearest) {
  const std::vector<float> values = Bells(64 * kBlock, 2);
  const Q4Row row = Q4(values);
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = static_cast<double>(values[i]) / row.scale(i);
    const double q = row.q(i);
    if (exact < -8 || exact > 7) {
      EXPECT_EQ(q, exact < 0 ? -8 : 7);
    } else {
      EXPECT_LE(std::abs(exact - q), 0.500001);
    }
  }
}

// Ties to even: with 7 and -8 among them, a scale of 1 cannot be beaten.
TEST(QuantiseQ4Test, TiesGoToEven) {
  std::vector<float> values(kBlock, 7.0f);
  std::fill(values.begin(), values.begin() + 16, -8.0f);
  const float ties[] = {0.5f, 1.5f, -0.5f, -1.5f};
  std::copy(std::begin(ties), std::end(ties), values.begin() + 4);
  const Q4Row row = Q4(values);
  EXPECT_EQ(row.scale(0), 1);
  EXPECT_EQ(row.q(4), 0);
  EXPECT_EQ(row.q(5), 2);
  EXPECT_EQ(row.q(6), 0);
  EXPECT_EQ(row.q(7), -2);
  EXPECT_EQ(row.bytes[2], 0xA8);  // The even one in the low half.
}

TEST(QuantiseQ4Test, WhatCanBeStoredIsStored) {
  for (const float scale : {1.0f, 0.3125f, 1.5f * 0x1p-40f, 0x1p+90f}) {
    std::vector<float> values(kBlock);
    for (int i = 0; i < kBlock; ++i) {
      values[i] = scale * static_cast<float>(i * 7 % 16 - 8);
    }
    const Q4Row row = Q4(values);
    for (int i = 0; i < kBlock; ++i) {
      EXPECT_EQ(row.scale(i) * static_cast<float>(row.q(i)), values[i]);
    }
  }
}

// Block by block better than without cutting off, and all in all next to what
// trying a thousand scales finds.
TEST(QuantiseQ4Test, SearchFindsGoodScales) {
  const std::vector<float> values = Bells(512 * kBlock, 3);
  const Q4Row row = Q4(values);
  double error = 0, covering = 0, best = 0, square = 0;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const double found = SquaredError(values, row, first);
    const float scale = CoveringScale(values, first);
    const double plain = SquaredErrorWith(
        values, first, FloatFromBfloat16(Bfloat16FromFloat(scale)));
    EXPECT_LE(found, plain * 1.02);
    double least = plain;
    for (int i = 500; i < 1200; ++i) {
      least =
          std::min(least, SquaredErrorWith(values, first, scale * i / 1000.0));
    }
    error += found;
    covering += plain;
    best += least;
    for (int i = 0; i < kBlock; ++i) {
      square += static_cast<double>(values[first + i]) * values[first + i];
    }
  }
  EXPECT_LT(error, 0.9 * covering);
  EXPECT_LT(error, 1.02 * best);
  EXPECT_LT(std::sqrt(error / square), 0.088);
}

TEST(QuantiseQ4Test, BlocksOfZerosAndOfExtremes) {
  std::vector<float> values(kBlock, 0.0f);
  Q4Row row = Q4(values);
  EXPECT_EQ(row.scale(0), 1);
  EXPECT_EQ(row.bytes, std::vector<uint8_t>(kBlock / 2, 0x88));
  for (const float most : {std::numeric_limits<float>::max(), 1e30f, 1e-20f,
                           1e-36f, 1e-37f, 2e-38f, 1e-38f, 1e-40f, 1e-45f}) {
    for (const float sign : {1.0f, -1.0f}) {
      values[5] = sign * most;
      values[6] = sign * most / 2;
      row = Q4(values);
      const float scale = row.scale(0);
      EXPECT_TRUE(scale > 0 && std::isnormal(scale)) << most;
      EXPECT_NEAR(static_cast<double>(scale) * row.q(5), values[5],
                  std::max(0.51 * scale, 0.05 * most));
      EXPECT_EQ(row.q(0), 0);
    }
  }
}

// A block does not depend on its neighbours.
TEST(QuantiseQ4Test, BlocksAreApart) {
  const std::vector<float> values = Bells(3 * kBlock, 4);
  const Q4Row whole = Q4(values);
  for (int block = 0; block < 3; ++block) {
    const Q4Row alone =
        Q4(std::vector<float>(values.begin() + block * kBlock,
                              values.begin() + (block + 1) * kBlock));
    EXPECT_EQ(alone.scales[0], whole.scales[block]);
    EXPECT_TRUE(std::equal(alone.bytes.begin(), alone.bytes.end(),
                           whole.bytes.begin() + block * kBlock / 2));
  }
}

// Written down on one machine: the same on all, with any compiler.
TEST(QuantiseTest, BitsAreTheSameOnEveryMachine) {
  const std::vector<float> values = Bells(4096, 5);
  const Q4Row q4 = Q4(values);
  const Q8Row q8 = Q8(values);
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](uint32_t byte) {
    hash = (hash ^ byte) * 0x100000001b3u;
  };
  for (const uint8_t byte : q4.bytes) add(byte);
  for (const uint16_t scale : q4.scales) add(scale);
  for (const int8_t q : q8.q) add(static_cast<uint8_t>(q));
  EXPECT_EQ(hash, 0x80e037176b8be287u);
}

}  // namespace
}  // namespace deltaedge
