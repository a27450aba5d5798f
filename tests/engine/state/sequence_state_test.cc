// SPDX-License-Identifier: Apache-2.0

#include "engine/state/sequence_state.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Random;

constexpr int32_t kLayers = 3;

constexpr Rollback kRollbacks[] = {Rollback::kJournal, Rollback::kSlots};

SequenceState MakeState(int64_t capacity = 100, int32_t block_rows = 8,
                        Rollback rollback = Rollback::kJournal) {
  return SequenceState(capacity, block_rows, kLayers, rollback);
}

SequenceState MakeSlots(int32_t block_rows) {
  return MakeState(/*capacity=*/100, block_rows, Rollback::kSlots);
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

// Case C6, legal: another number for the same block, absolute.
TEST(SequenceStateTest, KeepIsAbsolute) {
  for (const Rollback rollback : kRollbacks) {
    SequenceState state = MakeState(100, 6, rollback);
    PublishBlock(state, 6);
    for (const int32_t kept : {6, 2, 0, 5, 5, 1}) {
      ASSERT_TRUE(state.Keep(kept).ok());
      EXPECT_EQ(state.length(), kept);
      const bool slots = rollback == Rollback::kSlots;
      EXPECT_EQ(state.pending(0), slots ? 0 : kept);
      EXPECT_EQ(state.column(), slots ? kept : 0);
    }
  }
}

// Everything that a refused call must leave as it was.
struct Cursors {
  int64_t length;
  bool has_block;
  int32_t published_rows, column, journal, pending;

  explicit Cursors(const SequenceState& state)
      : length(state.length()),
        has_block(state.has_block()),
        published_rows(state.published_rows()),
        column(state.column()),
        journal(state.journal()),
        pending(state.pending(kLayers - 1)) {}
  bool operator==(const Cursors& o) const {
    return length == o.length && has_block == o.has_block &&
           published_rows == o.published_rows && column == o.column &&
           journal == o.journal && pending == o.pending;
  }
};

// Case C6, refused: more rows than the block has.
TEST(SequenceStateTest, KeepRefusesMoreRowsThanTheBlockHas) {
  for (const Rollback rollback : kRollbacks) {
    SequenceState state = MakeState(100, 8, rollback);
    PublishBlock(state, 3);
    ASSERT_TRUE(state.Keep(2).ok());
    const Cursors before(state);
    for (const int32_t rows : {4, 100, -1}) {
      const absl::Status status = state.Keep(rows);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(rows)));
      EXPECT_TRUE(Cursors(state) == before);
    }
    EXPECT_TRUE(state.Keep(3).ok());
    EXPECT_EQ(state.length(), 3);
  }
}

TEST(SequenceStateTest, KeepRefusedWithoutABlock) {
  for (const Rollback rollback : kRollbacks) {
    SequenceState state = MakeState(100, 8, rollback);
    EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(0)));
    state.PublishPrefill(*state.Plan(5));
    const Cursors before(state);
    EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(1)));
    EXPECT_TRUE(Cursors(state) == before);
  }
}

// Case C6, refused: a later block has begun, and was abandoned.
TEST(SequenceStateTest, KeepRefusedOnceALaterPassHasBegunEvenIfAbandoned) {
  for (const Rollback rollback : kRollbacks) {
    SequenceState state = MakeState(100, 8, rollback);
    PublishBlock(state, 4);
    ASSERT_TRUE(state.Keep(3).ok());
    const auto plan = state.Plan(2);
    ASSERT_TRUE(plan.ok());
    state.Begin(*plan);
    const Cursors before(state);
    for (const int32_t rows : {0, 1, 3}) {
      const absl::Status status = state.Keep(rows);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_TRUE(Cursors(state) == before);
    }
    EXPECT_EQ(state.length(), 3);
    // Still usable.
    PublishBlock(state, 2);
    EXPECT_TRUE(state.Keep(2).ok());
    EXPECT_EQ(state.length(), 5);
  }
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
  for (const Rollback rollback : kRollbacks) {
    SequenceState state = MakeState(100, 8, rollback);
    PublishBlock(state, 4);
    ASSERT_TRUE(state.Keep(4).ok());
    state.Reset();
    EXPECT_EQ(state.length(), 0);
    EXPECT_EQ(state.pending(0), 0);
    EXPECT_EQ(state.column(), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(0)));
  }
}

TEST(SequenceStateTest, PlaceStartsACopy) {
  for (const Rollback rollback : kRollbacks) {
    for (const int64_t length : {0, 7, 10}) {
      SequenceState state = MakeState(10, 8, rollback);
      state.Place(length);
      EXPECT_EQ(state.length(), length);
      EXPECT_FALSE(state.has_block());
      EXPECT_EQ(state.published_rows(), 0);
      EXPECT_EQ(state.column(), 0);
      for (int32_t i = 0; i < kLayers; ++i) EXPECT_EQ(state.pending(i), 0);
      EXPECT_TRUE(absl::IsFailedPrecondition(state.Keep(0)));
      EXPECT_EQ(state.Plan(1).ok(), length < 10);
    }
  }
}

// From any column: the rows of a block go to columns of their own, which are
// not the one it starts from.
TEST(SequenceStateTest, SlotsOfABlockAreDistinctAndSpareTheLiveOne) {
  for (int32_t block_rows = 1; block_rows <= 16; ++block_rows) {
    SequenceState state = MakeSlots(block_rows);
    for (int32_t live = 0; live <= block_rows; ++live) {
      ASSERT_EQ(state.column(), live);
      std::set<int32_t> columns = {live};
      for (int32_t t = 0; t < block_rows; ++t) {
        const int32_t column = state.BlockColumn(t);
        EXPECT_EQ(column, (live + 1 + t) % (1 + block_rows));
        EXPECT_GE(column, 0);
        EXPECT_LE(column, block_rows);
        EXPECT_TRUE(columns.insert(column).second) << "row " << t;
      }
      PublishBlock(state, 1);
      ASSERT_TRUE(state.Keep(1).ok());
    }
    EXPECT_EQ(state.column(), 0) << "not a ring";
  }
}

// Case C3: rounds of one row after rounds that kept several.
TEST(SequenceStateTest, SlotsFollowTheRowsKept) {
  SequenceState state = MakeSlots(/*block_rows=*/4);  // Columns 0 .. 4.
  const struct {
    int32_t rows, kept, column;
  } kRounds[] = {{4, 3, 3}, {1, 1, 4}, {4, 0, 4}, {1, 0, 4},
                 {1, 1, 0}, {4, 4, 4}, {4, 4, 3}, {2, 1, 4}};
  for (const auto& round : kRounds) {
    const int32_t before = state.column();
    PublishBlock(state, round.rows);
    EXPECT_EQ(state.column(), before);
    ASSERT_TRUE(state.Keep(round.kept).ok());
    EXPECT_EQ(state.column(), round.column);
  }
}

TEST(SequenceStateTest, SlotsStayThroughPromptChunksAndAbandonedPasses) {
  SequenceState state = MakeSlots(/*block_rows=*/4);
  PublishBlock(state, 4);
  ASSERT_TRUE(state.Keep(3).ok());
  state.Begin(*state.Plan(4));
  EXPECT_EQ(state.column(), 3);
  const auto plan = state.Plan(9);
  ASSERT_TRUE(plan.ok());
  state.Begin(*plan);
  EXPECT_EQ(state.column(), 3);
  state.PublishPrefill(*plan);
  EXPECT_EQ(state.column(), 3);
  EXPECT_EQ(state.length(), 12);
}

using Hash = uint64_t;

Hash Mix(Hash hash, Hash token) { return (hash ^ token) * 0x100000001B3u + 1; }

// Stands for the layers of a model: a state is a hash of the tokens that it
// covers, a row of a journal the token itself.
class Layers {
 public:
  Layers(int32_t block_rows, Rollback rollback) : rollback_(rollback) {
    const int32_t columns = rollback == Rollback::kSlots ? 1 + block_rows : 1;
    for (Layer& layer : layers_) {
      layer.states.assign(columns, kMarker);
      layer.journals[0].assign(block_rows, kMarker);
      layer.journals[1].assign(block_rows, kMarker);
    }
    Place(0);
  }

  // The hash of what layer `i` says the sequence is.
  Hash State(const SequenceState& cursor, int32_t i) const {
    Hash hash = layers_[i].states[cursor.column()];
    for (int32_t t = 0; t < cursor.pending(i); ++t) {
      hash = Mix(hash, layers_[i].journals[cursor.journal()][t]);
    }
    return hash;
  }

  void Place(Hash hash) {
    for (Layer& layer : layers_) layer.states[0] = hash;
  }

  // What the first `layers` layers do in a block.
  void RunBlock(SequenceState& cursor, const std::vector<Hash>& tokens,
                int32_t layers) {
    for (int32_t i = 0; i < layers; ++i) {
      Hash hash = State(cursor, i);
      if (rollback_ == Rollback::kJournal) {
        layers_[i].states[0] = hash;
        std::copy(tokens.begin(), tokens.end(),
                  layers_[i].journals[1 - cursor.journal()].begin());
      }
      cursor.FoldDone(i);
      if (rollback_ == Rollback::kJournal) continue;
      for (size_t t = 0; t < tokens.size(); ++t) {
        hash = Mix(hash, tokens[t]);
        layers_[i].states[cursor.BlockColumn(static_cast<int32_t>(t))] = hash;
      }
    }
  }

  // All of a prompt chunk, swapped in.
  void RunPrefill(const SequenceState& cursor,
                  const std::vector<Hash>& tokens) {
    for (int32_t i = 0; i < kLayers; ++i) {
      Hash hash = State(cursor, i);
      for (const Hash token : tokens) hash = Mix(hash, token);
      layers_[i].states[cursor.column()] = hash;
    }
  }

 private:
  static constexpr Hash kMarker = 0xDEAD;

  struct Layer {
    std::vector<Hash> states, journals[2];
  };

  Rollback rollback_;
  Layer layers_[kLayers];
};

// Random schedules, against a model that is nothing but the tokens themselves.
// Cases C1, C2, C3, C5.
TEST(SequenceStateTest, RandomSchedules) {
  for (int seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const Rollback rollback = kRollbacks[seed % 2];
    const int32_t block_rows = random.Int(1, 16);
    SequenceState state(/*capacity=*/300, block_rows, kLayers, rollback);
    Layers layers(block_rows, rollback);
    std::vector<Hash> truth = {0};  // [i]: of the first i tokens.
    for (int step = 0; step < 60; ++step) {
      const int what = random.Int(0, 15);
      if (what == 0) {
        state.Reset();
        layers.Place(0);
        truth.resize(1);
      } else if (what == 1) {
        state = SequenceState(300, block_rows, kLayers, rollback);
        layers = Layers(block_rows, rollback);
        state.Place(static_cast<int64_t>(truth.size()) - 1);
        layers.Place(truth.back());
      }
      const bool prefill = random.OneIn(4);
      const bool abandoned = random.OneIn(4);
      const auto plan = state.Plan(random.Int(1, prefill ? 40 : block_rows));
      if (!plan.ok()) break;
      std::vector<Hash> tokens(plan->rows);
      for (Hash& token : tokens) token = random.Bits();
      state.Begin(*plan);
      if (abandoned) {
        if (!prefill) layers.RunBlock(state, tokens, random.Int(0, kLayers));
      } else if (prefill) {
        layers.RunPrefill(state, tokens);
        state.PublishPrefill(*plan);
        for (const Hash token : tokens) {
          truth.push_back(Mix(truth.back(), token));
        }
      } else {
        layers.RunBlock(state, tokens, kLayers);
        state.PublishBlock(*plan);
        const size_t before = truth.size();
        for (int i = random.Int(0, 3); i > 0; --i) {
          const int32_t kept = random.Int(0, plan->rows);
          ASSERT_TRUE(state.Keep(kept).ok());
          truth.resize(before);
          for (int32_t t = 0; t < kept; ++t) {
            truth.push_back(Mix(truth.back(), tokens[t]));
          }
        }
      }
      ASSERT_EQ(state.length() + 1, static_cast<int64_t>(truth.size()));
      for (int32_t i = 0; i < kLayers; ++i) {
        ASSERT_EQ(layers.State(state, i), truth.back())
            << "layer " << i << " of schedule " << seed << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace deltaedge
