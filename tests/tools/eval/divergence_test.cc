// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/divergence.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;

std::vector<float> Logs(const std::vector<double>& parts, double shift) {
  std::vector<float> scores;
  for (const double part : parts) {
    scores.push_back(static_cast<float>(std::log(part) + shift));
  }
  return scores;
}

TEST(CompareScoresTest, ByHand) {
  const std::vector<float> p = Logs({0.5, 0.25, 0.25}, 3);
  const std::vector<float> q = Logs({0.25, 0.5, 0.25}, -70);
  // 0.5 log(0.5 / 0.25) + 0.25 log(0.25 / 0.5)
  RowDivergence row = CompareScores(p, q, 1);
  EXPECT_TRUE(row.finite);
  EXPECT_NEAR(row.kl, 0.25 * std::log(2.0), 1e-5);
  EXPECT_NEAR(row.reference_loss, std::log(4.0), 1e-5);
  EXPECT_NEAR(row.target_loss, std::log(2.0), 1e-5);
  EXPECT_FALSE(row.agree);
  row = CompareScores(p, Logs({0.9, 0.05, 0.05}, 0), 0);
  EXPECT_NEAR(row.kl, 0.5 * std::log(0.5 / 0.9) + 0.5 * std::log(5.0), 1e-6);
  EXPECT_NEAR(row.target_loss, -std::log(0.9), 1e-6);
  EXPECT_TRUE(row.agree);
}

TEST(CompareScoresTest, EqualScoresDoNotDivergeAtAll) {
  Random random(1);
  std::vector<float> scores(1000);
  for (float& score : scores) score = random.Uniform(-40, 40);
  const RowDivergence row = CompareScores(scores, scores, 7);
  EXPECT_EQ(row.kl, 0);
  EXPECT_EQ(row.reference_loss, row.target_loss);
  EXPECT_TRUE(row.agree);
  for (float& score : scores) score = std::round(score);
  std::vector<float> shifted = scores;
  for (float& score : shifted) score += 1024;
  EXPECT_NEAR(CompareScores(scores, shifted, 7).kl, 0, 1e-10);
}

TEST(CompareScoresTest, TheLowestOfEqualsIsTheLargest) {
  EXPECT_TRUE(CompareScores({1, 5, 5}, {1, 6, 2}, 0).agree);
  EXPECT_FALSE(CompareScores({1, 5, 5}, {1, 2, 6}, 0).agree);
}

TEST(CompareScoresTest, LargeAndBrokenScores) {
  const float most = std::numeric_limits<float>::max();
  const RowDivergence row = CompareScores({most, -most}, {most, 0}, 0);
  EXPECT_TRUE(row.finite);
  EXPECT_EQ(row.kl, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(CompareScores({0, nan}, {0, 0}, 0).finite);
  EXPECT_FALSE(CompareScores({0, 0}, {0, -infinity}, 0).finite);
}

TEST(SummariseTest, MeansAndQuantiles) {
  std::vector<RowDivergence> rows;
  for (int i = 200; i >= 1; --i) {
    RowDivergence row;
    row.kl = i;
    row.reference_loss = i % 2 == 0 ? 1 : 3;
    row.target_loss = 2.5;
    row.agree = i > 50;
    rows.push_back(row);
  }
  Divergence all = Summarise(rows);
  EXPECT_EQ(all.tokens, 200);
  EXPECT_DOUBLE_EQ(all.kl_mean, 100.5);
  EXPECT_EQ(all.kl_median, 100);
  EXPECT_EQ(all.kl_p99, 198);
  EXPECT_EQ(all.kl_max, 200);
  EXPECT_DOUBLE_EQ(all.agreement, 0.75);
  EXPECT_DOUBLE_EQ(all.reference_perplexity, std::exp(2.0));
  EXPECT_DOUBLE_EQ(all.perplexity_ratio(), std::exp(0.5));
  rows.resize(1);
  all = Summarise(rows);
  EXPECT_EQ(all.kl_median, 200);
  EXPECT_EQ(all.kl_p99, 200);
}

}  // namespace
}  // namespace deltaedge
