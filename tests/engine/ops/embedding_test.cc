// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

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

TEST(EmbedRowsTest, NoTokens) {
  const float value = 1;
  EmbedRows({&value, WeightType::kF32, 1, 1}, {}, nullptr);
}

}  // namespace
}  // namespace deltaedge
