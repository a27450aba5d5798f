// SPDX-License-Identifier: Apache-2.0

#include "engine/state/sequence_state.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kLayers = 3;

SequenceState MakeState(int64_t capacity = 100, int32_t block_rows = 8) {
  return SequenceState(capacity, block_rows, kLayers);
}

// Runs a block of `rows` to its end.
void PublishBlock(SequenceState& state, int32_t rows) {
  auto plan = state.Plan(rows);
  ASSERT_TRUE(plan.ok()) << plan.status();
  state.Begin(*plan);
  for (int32_t i = 0; i < kLayers; ++i) state.FoldDone(i);
  state.PublishBlock(*plan);
}

TEST(SequenceStateTest, PlanChangesNothing) {
  const SequenceState state = MakeState();
  const auto plan = state.Plan(5);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->position, 0);
  EXPECT_EQ(plan->rows, 5);
  EXPECT_EQ(state.length(), 0);
  EXPECT_FALSE(state.has_block());
}

TEST(SequenceStateTest, PlanRefusesWhatDoesNotFit) {
  SequenceState state = MakeState(/*capacity=*/10);
  EXPECT_TRUE(state.Plan(10).ok());
  EXPECT_TRUE(absl::IsOutOfRange(state.Plan(11).status()));
  EXPECT_THAT(state.Plan(11).status().message(), HasSubstr("11"));
  EXPECT_TRUE(absl::IsInvalidArgument(state.Plan(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(state.Plan(-1).status()));
  state.PublishPrefill(*state.Plan(10));
  EXPECT_TRUE(absl::IsOutOfRange(state.Plan(1).status()));
}

TEST(SequenceStateTest, NothingOfABlockIsKeptUntilKeep) {
  SequenceState state = MakeState();
  PublishBlock(state, 4);
  EXPECT_EQ(state.length(), 0);
  EXPECT_EQ(state.published_rows(), 4);
  for (int32_t i = 0; i < kLayers; ++i) EXPECT_EQ(state.pending(i), 0);
}

// Case C1, C2: every count from none to all, on top of any earlier length.
TEST(SequenceStateTest, KeepTakesAnyPrefix) {
  for (int32_t rows = 1; rows <= 8; ++rows) {
    for (int32_t kept = 0; kept <= rows; ++kept) {
      SequenceState state = MakeState();
      state.PublishPrefill(*state.Plan(5));
      PublishBlock(state, rows);
      ASSERT_TRUE(state.Keep(kept).ok());
      EXPECT_EQ(state.length(), 5 + kept);
      for (int32_t i = 0; i < kLayers; ++i) EXPECT_EQ(state.pending(i), kept);
      EXPECT_EQ(state.Plan(1)->position, 5 + kept);
    }
  }
}

// Case C6: absolute, and repeatable.
TEST(SequenceStateTest, KeepIsAbsolute) {
  SequenceState state = MakeState();
  PublishBlock(state, 6);
  for (const int32_t kept : {6, 2, 0, 5, 5, 1}) {
    ASSERT_TRUE(state.Keep(kept).ok());
    EXPECT_EQ(state.length(), kept);
    EXPECT_EQ(state.pending(0), kept);
  }
}

TEST(SequenceStateTest, KeepRefusesMoreRowsThanTheBlockHas) {
  SequenceState state = MakeState();
  PublishBlock(state, 3);
  ASSERT_TRUE(state.Keep(2).ok());
  for (const int32_t rows : {4, 100, -1}) {
    const absl::Status status = state.Keep(rows);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(rows)));
    EXPECT_EQ(state.length(), 2);
    EXPECT_EQ(state.pending(0), 2);
  }
  EXPECT_TRUE(state.Keep(3).ok());
}

TEST(SequenceStateTest, KeepRefusedWithoutABlock) {
  SequenceState state = MakeState();
  EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(0)));
  state.PublishPrefill(*state.Plan(5));
  EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(1)));
  EXPECT_EQ(state.length(), 5);
}

TEST(SequenceStateTest, KeepRefusedOnceALaterPassHasBegunEvenIfAbandoned) {
  SequenceState state = MakeState();
  PublishBlock(state, 4);
  ASSERT_TRUE(state.Keep(3).ok());
  const auto plan = state.Plan(2);
  ASSERT_TRUE(plan.ok());
  state.Begin(*plan);
  const absl::Status status = state.Keep(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(state.length(), 3);
  EXPECT_EQ(state.pending(2), 3);
  // Still usable.
  PublishBlock(state, 2);
  EXPECT_TRUE(state.Keep(2).ok());
  EXPECT_EQ(state.length(), 5);
}

TEST(SequenceStateTest, AnAbandonedPassLeavesTheUnfoldedLayersPending) {
  SequenceState state = MakeState();
  PublishBlock(state, 4);
  ASSERT_TRUE(state.Keep(3).ok());
  const int32_t journal = state.journal();
  state.Begin(*state.Plan(1));
  state.FoldDone(0);  // Then a cancel, before layers 1 and 2.
  EXPECT_EQ(state.length(), 3);
  EXPECT_EQ(state.pending(0), 0);
  EXPECT_EQ(state.pending(1), 3);
  EXPECT_EQ(state.pending(2), 3);
  EXPECT_EQ(state.journal(), journal);
}

TEST(SequenceStateTest, JournalsTakeTurnsAtPublishOnly) {
  SequenceState state = MakeState();
  const int32_t first = state.journal();
  state.Begin(*state.Plan(2));
  EXPECT_EQ(state.journal(), first);
  state.PublishBlock(*state.Plan(2));
  EXPECT_EQ(state.journal(), 1 - first);
  ASSERT_TRUE(state.Keep(2).ok());
  EXPECT_EQ(state.journal(), 1 - first);
  PublishBlock(state, 1);
  EXPECT_EQ(state.journal(), first);
}

TEST(SequenceStateTest, APromptChunkIsKeptWholeAndFoldsWhatWasPending) {
  SequenceState state = MakeState();
  PublishBlock(state, 4);
  ASSERT_TRUE(state.Keep(2).ok());
  const auto plan = state.Plan(50);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->position, 2);
  state.Begin(*plan);
  EXPECT_EQ(state.pending(1), 2);  // The chunk's kernel reads them.
  state.PublishPrefill(*plan);
  EXPECT_EQ(state.length(), 52);
  EXPECT_EQ(state.pending(1), 0);
  EXPECT_FALSE(state.has_block());
}

TEST(SequenceStateTest, ResetIsEmpty) {
  SequenceState state = MakeState();
  PublishBlock(state, 4);
  ASSERT_TRUE(state.Keep(4).ok());
  state.Reset();
  EXPECT_EQ(state.length(), 0);
  EXPECT_EQ(state.pending(0), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(0)));
}

// Random schedules against a model that is nothing but a counter.
TEST(SequenceStateTest, RandomSchedules) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    SequenceState state = MakeState(/*capacity=*/1000);
    int64_t length = 0;
    for (int step = 0; step < 40; ++step) {
      switch (random() % 4) {
        case 0: {
          const auto plan = state.Plan(1 + random() % 20);
          if (!plan.ok()) break;
          state.Begin(*plan);
          state.PublishPrefill(*plan);
          length += plan->rows;
          break;
        }
        case 1: {
          const auto plan = state.Plan(1 + random() % 8);
          if (!plan.ok()) break;
          state.Begin(*plan);  // Abandoned.
          if (random() % 2 == 0) state.FoldDone(0);
          break;
        }
        default: {
          const int32_t rows = 1 + random() % 8;
          if (!state.Plan(rows).ok()) break;
          PublishBlock(state, rows);
          const int64_t before = length;
          for (int i = random() % 3; i >= 0; --i) {
            const int32_t kept = random() % (rows + 1);
            ASSERT_TRUE(state.Keep(kept).ok());
            length = before + kept;
          }
        }
      }
      ASSERT_EQ(state.length(), length);
    }
  }
}

}  // namespace
}  // namespace deltaedge
