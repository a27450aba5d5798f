// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/lookup_drafter.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/allocation_hooks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Random;

std::unique_ptr<LookupDrafter> ForTokens(int64_t capacity) {
  auto drafter = LookupDrafter::Create(capacity);
  EXPECT_TRUE(drafter.ok()) << drafter.status();
  return *std::move(drafter);
}

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
  const auto drafter = ForTokens(16);
  EXPECT_THAT(Propose(*drafter, {1, 2, 3, 4, 5, 6, 7, 2, 3}, 3),
              ElementsAre(4, 5, 6));
}

TEST(LookupDrafterTest, TheLongestRunThenTheLatestPlaceCounts) {
  const auto drafter = ForTokens(16);
  EXPECT_THAT(Propose(*drafter, {1, 2, 3, 70, 2, 3, 80, 9, 1, 2, 3}, 1),
              ElementsAre(70));
  drafter->Reset();
  EXPECT_THAT(Propose(*drafter, {2, 3, 70, 2, 3, 80, 9, 2, 3}, 1),
              ElementsAre(80));
}

TEST(LookupDrafterTest, NothingAlikeIsNoDraft) {
  const auto drafter = ForTokens(16);
  EXPECT_THAT(Propose(*drafter, {5}, 4), IsEmpty());
  EXPECT_THAT(Propose(*drafter, {5, 6}, 4), IsEmpty());
  EXPECT_THAT(Propose(*drafter, {5, 6, 7, 8}, 4), IsEmpty());
}

TEST(LookupDrafterTest, ARepetitionGoesOnForEver) {
  const auto drafter = ForTokens(16);
  EXPECT_THAT(Propose(*drafter, {1, 2, 3, 1, 2, 3}, 7),
              ElementsAre(1, 2, 3, 1, 2, 3, 1));
  drafter->Reset();
  EXPECT_THAT(Propose(*drafter, {4, 4, 4}, 5), ElementsAre(4, 4, 4, 4, 4));
}

TEST(LookupDrafterTest, AsTheDefinitionWhileTheSequenceGrows) {
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    const auto drafter = ForTokens(140);
    const int alphabet = random.Int(1, 6);
    std::vector<TokenId> sequence;
    while (sequence.size() < 120) {
      const int more = random.Int(1, 9);
      for (int i = 0; i < more; ++i) {
        sequence.push_back(random.Int(0, alphabet));
      }
      const int32_t max_drafts = random.Int(1, 15);
      ASSERT_EQ(Propose(*drafter, sequence, max_drafts),
                Definition(sequence, max_drafts));
    }
  }
}

TEST(LookupDrafterTest, ForgetsOnReset) {
  const auto drafter = ForTokens(16);
  Propose(*drafter, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 3);
  drafter->Reset();
  EXPECT_THAT(Propose(*drafter, {1, 2, 7, 1, 2}, 1), ElementsAre(7));
  EXPECT_THAT(Propose(*drafter, {1, 2, 7, 1, 2, 3, 4}, 1), IsEmpty());
}

TEST(LookupDrafterTest, TakesItsMemoryAtOnce) {
  for (const int64_t capacity : {1, 2, 3, 1000, 262144}) {
    const int64_t before = LiveAllocatedBytes();
    const auto drafter = ForTokens(capacity);
    const int64_t bytes = LiveAllocatedBytes() - before;
    EXPECT_GE(bytes, LookupDrafter::Bytes(capacity));
    EXPECT_LT(bytes, LookupDrafter::Bytes(capacity) + 256);
    EXPECT_GE(LookupDrafter::Bytes(capacity), 18 * capacity);
    EXPECT_LE(LookupDrafter::Bytes(capacity), 36 * capacity);
    const std::vector<TokenId> all(static_cast<size_t>(capacity), 7);
    EXPECT_EQ(Propose(*drafter, all, 2).size(), capacity < 3 ? 0u : 2u);
    EXPECT_EQ(LiveAllocatedBytes() - before, bytes);
  }
  const ScopedAllocationFailure failure(1);
  EXPECT_TRUE(absl::IsResourceExhausted(LookupDrafter::Create(1000).status()));
}

// Full of runs that differ, it still finds nearly all.
TEST(LookupDrafterTest, FindsThemInALongSequence) {
  constexpr int kTokens = 21400;  // Of 32768 slots.
  const auto drafter = ForTokens(21840);
  Random random(9);
  std::vector<TokenId> sequence;
  while (sequence.size() < kTokens) sequence.push_back(random.Int(0, 200000));
  int found = 0;
  for (int i = 0; i < 200; ++i) {
    const int at = random.Int(2, kTokens - 1);
    sequence.push_back(sequence[at - 2]);
    sequence.push_back(sequence[at - 1]);
    const std::vector<TokenId> drafts = Propose(*drafter, sequence, 1);
    found += drafts == std::vector<TokenId>{sequence[at]};
  }
  EXPECT_GE(found, 190);
}

}  // namespace
}  // namespace deltaedge
