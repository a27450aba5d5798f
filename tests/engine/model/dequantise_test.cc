// SPDX-License-Identifier: Apache-2.0

#include "engine/model/dequantise.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using ::testing::HasSubstr;

TEST(DequantiseTest, BytesTimesTheirRowsScale) {
  std::vector<int8_t> q;
  for (int i = 0; i < 256; ++i) q.push_back(static_cast<int8_t>(i));
  const float scales[] = {0.1f, 3e-38f};
  for (const WeightType type : {WeightType::kQ8, WeightType::kQ8W}) {
    const MatrixView matrix = {q.data(), type, 2, 128, scales};
    for (int row = 0; row < 2; ++row) {
      CanaryBuffer<float> out(128);
      DequantiseRow(matrix, row, out.data());
      EXPECT_TRUE(out.Intact());
      for (int i = 0; i < 128; ++i) {
        EXPECT_EQ(out[i], scales[row] * static_cast<float>(q[128 * row + i]));
      }
    }
  }
}

// The low half of a byte first, a scale for every 32 numbers of a row.
TEST(DequantiseTest, HalvesOfBytesTimesTheirBlocksScale) {
  constexpr int kRows = 3, kCols = 64;
  std::vector<uint8_t> q;
  for (int i = 0; i < kRows * kCols / 2; ++i) {
    q.push_back(static_cast<uint8_t>(29 * i));
  }
  // 1, -2, 3/4, 2^-126, 1 + 1/128, 2^120: the sign is as good as any here.
  const uint16_t scales[] = {0x3F80, 0xC000, 0x3F40, 0x0080, 0x3F81, 0x7B80};
  const float values[] = {1, -2, 0.75f, 0x1p-126f, 1.0078125f, 0x1p+120f};
  const MatrixView matrix = {q.data(), WeightType::kQ4, kRows, kCols, scales};
  for (int row = 0; row < kRows; ++row) {
    CanaryBuffer<float> out(kCols);
    DequantiseRow(matrix, row, out.data());
    EXPECT_TRUE(out.Intact());
    for (int col = 0; col < kCols; ++col) {
      const uint8_t byte = q[row * kCols / 2 + col / 2];
      const int number = col % 2 == 0 ? byte % 16 : byte / 16;
      EXPECT_EQ(out[col],
                values[row * 2 + col / 32] * static_cast<float>(number - 8));
    }
  }
}

TEST(DequantiseTest, FloatsAreCopied) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  const MatrixView matrix = {values, WeightType::kF32, 2, 3};
  CanaryBuffer<float> out(3);
  DequantiseRow(matrix, 1, out.data());
  EXPECT_TRUE(out.Intact());
  EXPECT_EQ(out[0], 4);
  EXPECT_EQ(out[2], 6);
}

template <class T>
absl::Status StatusOf(WeightType type, std::vector<T> scales) {
  return CheckScales(
      type,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(scales.data()),
                          scales.size() * sizeof(T)));
}

TEST(CheckScalesTest, OnlyPositiveNormalNumbersPass) {
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(StatusOf<float>(WeightType::kQ8, {}), absl::OkStatus());
  EXPECT_EQ(StatusOf(WeightType::kQ8,
                     std::vector<float>{Limits::min(), 1, Limits::max()}),
            absl::OkStatus());
  for (const float bad :
       {0.0f, -0.0f, -1.0f, Limits::denorm_min(), Limits::min() / 2,
        Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    for (const WeightType type : {WeightType::kQ8, WeightType::kQ8W}) {
      const absl::Status status =
          StatusOf(type, std::vector<float>{1, 2, bad, 3});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
      EXPECT_THAT(status.message(), HasSubstr("scale 2 is "));
    }
  }
  EXPECT_EQ(
      StatusOf(WeightType::kQ4, std::vector<uint16_t>{0x0080, 0x3F80, 0x7F7F}),
      absl::OkStatus());
  for (const uint16_t bad :
       {0x0000, 0x8000, 0xBF80, 0x0001, 0x007F, 0x7F80, 0xFF80, 0x7FC0}) {
    EXPECT_EQ(
        StatusOf(WeightType::kQ4, std::vector<uint16_t>{0x3F80, bad}).code(),
        absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace deltaedge
