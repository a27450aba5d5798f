// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/model/weights.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"

namespace deltaedge {
namespace {

TEST(EmbedRowsTest, CopiesRowsInTheirOrder) {
  constexpr int kVocab = 11;
  constexpr int kHidden = 7;
  std::vector<float> values;
  for (int i = 0; i < kVocab * kHidden; ++i) {
    values.push_back(static_cast<float>(i));
  }
  const MatrixView table = {values.data(), WeightType::kF32, kVocab, kHidden};
  const std::vector<TokenId> tokens = {10, 0, 3, 3};
  testing::CanaryBuffer<float> x(tokens.size() * kHidden);
  EmbedRows(table, tokens, x.data());
  EXPECT_TRUE(x.Intact());
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int i = 0; i < kHidden; ++i) {
      EXPECT_EQ(x[t * kHidden + i], static_cast<float>(tokens[t] * kHidden + i))
          << "row " << t << ", column " << i;
    }
  }
}

TEST(EmbedRowsTest, RowsOfAQuantisedTableAreTheStoredNumbers) {
  constexpr int kVocab = 5;
  constexpr int kHidden = 64;
  std::vector<uint8_t> q(kVocab * kHidden);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(31 * i);
  const std::vector<float> row_scales = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  const std::vector<uint16_t> block_scales = {0x3DCD, 0x3E4D, 0x3E9A, 0x3ECD,
                                              0x3F00, 0x3F1A, 0x3F33, 0x3F4D,
                                              0x3F66, 0x3F80};
  const MatrixView tables[] = {
      {q.data(), WeightType::kQ8, kVocab, kHidden, row_scales.data()},
      {q.data(), WeightType::kQ8W, kVocab, kHidden, row_scales.data()},
      {q.data(), WeightType::kQ4, kVocab, kHidden, block_scales.data()}};
  const std::vector<TokenId> tokens = {4, 1, 1};
  for (const MatrixView& table : tables) {
    testing::CanaryBuffer<float> x(tokens.size() * kHidden);
    EmbedRows(table, tokens, x.data());
    EXPECT_TRUE(x.Intact());
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int i = 0; i < kHidden; ++i) {
        const int at = tokens[t] * kHidden + i;
        float expected;
        if (table.type == WeightType::kQ4) {
          const int number = i % 2 == 0 ? q[at / 2] % 16 : q[at / 2] / 16;
          const uint32_t bits = uint32_t{block_scales[at / 32]} << 16;
          std::memcpy(&expected, &bits, sizeof(bits));
          expected *= static_cast<float>(number - 8);
        } else {
          expected = row_scales[tokens[t]] *
                     static_cast<float>(static_cast<int8_t>(q[at]));
        }
        ASSERT_EQ(x[t * kHidden + i], expected) << t << " " << i;
      }
    }
  }
}

TEST(EmbedRowsTest, NoTokens) {
  const float value = 1;
  EmbedRows({&value, WeightType::kF32, 1, 1}, {}, nullptr);
}

}  // namespace
}  // namespace deltaedge
