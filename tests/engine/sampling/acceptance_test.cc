// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/acceptance.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ArgMax> Picks(const std::vector<TokenId>& ids) {
  std::vector<ArgMax> picks;
  for (const TokenId id : ids) picks.push_back({id, 1.0f, true});
  return picks;
}

TEST(AcceptanceTest, WithoutDraftsTheTargetPicksOne) {
  const Acceptance result = AcceptDrafts(Picks({7}), {});
  EXPECT_EQ(result.accepted, 0);
  EXPECT_THAT(result.tokens, ElementsAre(7));
  EXPECT_FALSE(result.broken);
}

TEST(AcceptanceTest, AllAcceptedBringsABonus) {
  const Acceptance result = AcceptDrafts(Picks({1, 2, 3, 4}), {1, 2, 3});
  EXPECT_EQ(result.accepted, 3);
  EXPECT_THAT(result.tokens, ElementsAre(1, 2, 3, 4));
}

TEST(AcceptanceTest, NoneAcceptedBringsTheCorrection) {
  const Acceptance result = AcceptDrafts(Picks({1, 2, 3, 4}), {9, 2, 3});
  EXPECT_EQ(result.accepted, 0);
  EXPECT_THAT(result.tokens, ElementsAre(1));
}

// Matches after the first wrong draft come from a sequence that is not ours.
TEST(AcceptanceTest, CountsTheMatchingPrefixAndNotTheMatches) {
  for (int32_t wrong = 0; wrong < 7; ++wrong) {
    const std::vector<TokenId> truth = {10, 11, 12, 13, 14, 15, 16, 17};
    std::vector<TokenId> drafts(truth.begin(), truth.end() - 1);
    drafts[wrong] = 99;
    const Acceptance result = AcceptDrafts(Picks(truth), drafts);
    EXPECT_EQ(result.accepted, wrong);
    EXPECT_EQ(result.tokens,
              std::vector<TokenId>(truth.begin(), truth.begin() + wrong + 1));
  }
}

TEST(AcceptanceTest, BrokenScoresEndTheBlockWherePlainDecodingWouldStop) {
  for (size_t bad = 0; bad < 4; ++bad) {
    std::vector<ArgMax> picks = Picks({1, 2, 3, 4});
    picks[bad].finite = false;
    const Acceptance result = AcceptDrafts(picks, {1, 2, 3});
    EXPECT_TRUE(result.broken);
    EXPECT_EQ(result.tokens.size(), bad);
    EXPECT_EQ(result.accepted, static_cast<int32_t>(bad));
  }
}

TEST(AcceptanceTest, BrokenScoresInARowThatDoesNotCountDoNotMatter) {
  std::vector<ArgMax> picks = Picks({1, 2, 3, 4});
  picks[2].finite = false;
  const Acceptance result = AcceptDrafts(picks, {1, 9, 3});
  EXPECT_FALSE(result.broken);
  EXPECT_THAT(result.tokens, ElementsAre(1, 2));
}

TEST(AcceptanceTest, BrokenAnchorRowLeavesNothing) {
  std::vector<ArgMax> picks = Picks({1});
  picks[0].finite = false;
  EXPECT_THAT(AcceptDrafts(picks, {}).tokens, IsEmpty());
}

}  // namespace
}  // namespace deltaedge
