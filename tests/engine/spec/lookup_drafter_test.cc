// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/lookup_drafter.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Random;

std::vector<TokenId> Propose(LookupDrafter& drafter,
                             const std::vector<TokenId>& sequence,
                             int32_t max_drafts) {
  std::vector<TokenId> drafts;
  EXPECT_TRUE(drafter.Propose(sequence, max_drafts, nullptr, &drafts).ok());
  return drafts;
}

// The definition: the latest earlier end of the longest run.
std::vector<TokenId> Definition(const std::vector<TokenId>& sequence,
                                int32_t max_drafts) {
  const int64_t size = static_cast<int64_t>(sequence.size());
  for (int64_t n = std::min<int64_t>(4, size); n >= 2; --n) {
    for (int64_t end = size - 1; end >= n; --end) {
      if (!std::equal(sequence.end() - n, sequence.end(),
                      sequence.begin() + end - n)) {
        continue;
      }
      std::vector<TokenId> all = sequence;
      for (int32_t i = 0; i < max_drafts; ++i) all.push_back(all[end + i]);
      return std::vector<TokenId>(all.begin() + size, all.end());
    }
  }
  return {};
}

TEST(LookupDrafterTest, QuotesWhatCameAfterTheSameTokens) {
  LookupDrafter drafter;
  EXPECT_THAT(Propose(drafter, {1, 2, 3, 4, 5, 6, 7, 2, 3}, 3),
              ElementsAre(4, 5, 6));
}

TEST(LookupDrafterTest, TheLongestRunThenTheLatestPlaceCounts) {
  LookupDrafter drafter;
  EXPECT_THAT(Propose(drafter, {1, 2, 3, 70, 2, 3, 80, 9, 1, 2, 3}, 1),
              ElementsAre(70));
  drafter.Reset();
  EXPECT_THAT(Propose(drafter, {2, 3, 70, 2, 3, 80, 9, 2, 3}, 1),
              ElementsAre(80));
}

TEST(LookupDrafterTest, NothingAlikeIsNoDraft) {
  LookupDrafter drafter;
  EXPECT_THAT(Propose(drafter, {5}, 4), IsEmpty());
  EXPECT_THAT(Propose(drafter, {5, 6}, 4), IsEmpty());
  EXPECT_THAT(Propose(drafter, {5, 6, 7, 8}, 4), IsEmpty());
}

TEST(LookupDrafterTest, ARepetitionGoesOnForEver) {
  LookupDrafter drafter;
  EXPECT_THAT(Propose(drafter, {1, 2, 3, 1, 2, 3}, 7),
              ElementsAre(1, 2, 3, 1, 2, 3, 1));
  drafter.Reset();
  EXPECT_THAT(Propose(drafter, {4, 4, 4}, 5), ElementsAre(4, 4, 4, 4, 4));
}

TEST(LookupDrafterTest, AsTheDefinitionWhileTheSequenceGrows) {
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    LookupDrafter drafter;
    const int alphabet = random.Int(1, 6);
    std::vector<TokenId> sequence;
    while (sequence.size() < 120) {
      const int more = random.Int(1, 9);
      for (int i = 0; i < more; ++i) {
        sequence.push_back(random.Int(0, alphabet));
      }
      const int32_t max_drafts = random.Int(1, 15);
      ASSERT_EQ(Propose(drafter, sequence, max_drafts),
                Definition(sequence, max_drafts));
    }
  }
}

TEST(LookupDrafterTest, ForgetsOnReset) {
  LookupDrafter drafter;
  Propose(drafter, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 3);
  drafter.Reset();
  EXPECT_THAT(Propose(drafter, {1, 2, 7, 1, 2}, 1), ElementsAre(7));
  EXPECT_THAT(Propose(drafter, {1, 2, 7, 1, 2, 3, 4}, 1), IsEmpty());
}

}  // namespace
}  // namespace deltaedge
