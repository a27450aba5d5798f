// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Reason = DraftReason;
using testing::Random;

// A machine, a drafter and a clock, all made up. `seconds` is the time that
// steps take when nothing holds them up.
struct World {
  // [rows], [drafts]: seconds.
  std::vector<double> verify, draft;
  // [i]: chance that draft i agrees if those before it did.
  std::vector<double> agree;
  // The same for the first block of an answer; empty: no different.
  std::vector<double> agree_first;
  // How sure the drafter is of a draft that will agree, or not. Null: it does
  // not say.
  std::function<float(Random*, bool)> margin;
  // Steps that are held up: how often, and how much longer they take.
  double noise = 0.0, held_up = 0.0, times = 1.0;

  CostCurve costs;
  DraftHistory history;
  DraftPlanner planner{&history};
  Random random{7};
  double seconds = 0.0;
  int64_t tokens = 0;
  // Steps by drafts, of all and of first blocks.
  std::vector<int64_t> chosen = std::vector<int64_t>(kMaxBlockRows);
  std::vector<int64_t> chosen_first = std::vector<int64_t>(kMaxBlockRows);

  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Run(int64_t steps, int32_t max_drafts, bool first = false) {
    for (int64_t i = 0; i < steps; ++i) {
      const DraftPlanner::Choice choice =
          planner.Choose(max_drafts, first, costs);
      ASSERT_LE(choice.drafts, max_drafts);
      ++chosen[choice.drafts];
      if (first) ++chosen_first[choice.drafts];
      Step(choice.drafts, first);
    }
  }

  // An answer of a session of its own.
  void Answer(int64_t length, int32_t max_drafts) {
    planner = DraftPlanner(&history);
    const int64_t end = tokens + length;
    Run(1, max_drafts, /*first=*/true);
    while (tokens < end) Run(1, max_drafts);
  }

  double Noisy(double time) {
    if (random.Unit() < held_up) time *= times;
    return time * (1.0 + noise * std::abs(random.Gaussian()));
  }

  void Step(int32_t drafts, bool first = false) {
    const std::vector<double>& chance =
        first && !agree_first.empty() ? agree_first : agree;
    std::vector<float> margins;
    int32_t right = 0;
    for (int32_t i = 0; i < drafts; ++i) {
      const bool agrees = random.Unit() < chance[i];
      if (agrees && right == i) ++right;
      if (margin) margins.push_back(margin(&random, agrees));
    }
    if (drafts > 0) {
      planner.Drafted(drafts, absl::Seconds(Noisy(draft[drafts])));
      seconds += draft[drafts];
    }
    const int32_t verified =
        drafts == 0 ? 0 : planner.Trim(margins, drafts, costs);
    ASSERT_LE(verified, drafts);
    costs.Add(1 + verified, absl::Seconds(Noisy(verify[1 + verified])));
    seconds += verify[1 + verified];
    const int32_t accepted = std::min(right, verified);
    planner.Observe(verified, accepted, margins);
    tokens += 1 + accepted;
  }

  // Tokens per second of drafting `k` always.
  double Rate(int32_t k) const {
    double expected = 1.0, chance = 1.0;
    for (int32_t i = 0; i < k; ++i) expected += chance *= agree[i];
    return expected / (verify[1 + k] + (k > 0 ? draft[k] : 0.0));
  }
  double BestRate(int32_t max_drafts) const {
    double best = 0.0;
    for (int32_t k = 0; k <= max_drafts; ++k) best = std::max(best, Rate(k));
    return best;
  }
  double Rate() const { return tokens / seconds; }
  void Forget() {
    seconds = 0.0;
    tokens = 0;
    chosen.assign(kMaxBlockRows, 0);
    chosen_first.assign(kMaxBlockRows, 0);
  }
};

// One row takes a millisecond, each more `row` of that, drafting `draft`.
struct RowsWorld : World {
  RowsWorld(double row, double drafting, double agreement) {
    for (int32_t i = 0; i <= kMaxBlockRows; ++i) {
      verify.push_back(1e-3 * (1.0 + row * (i - 1)));
      draft.push_back(drafting * 1e-3);
      agree.push_back(agreement);
    }
  }
};

// Products go in tiles of 8 rows; the first costs one, each more `tile`.
struct TilesWorld : RowsWorld {
  TilesWorld(double tile, double drafting, double agreement)
      : RowsWorld(0.0, drafting, agreement) {
    for (int32_t rows = 9; rows <= kMaxBlockRows; ++rows) {
      verify[rows] *= 1.0 + tile * ((rows - 1) / 8);
    }
  }
};

TEST(CostCurveTest, WhatWasNeverSeenIsGuessedOnTheLowSide) {
  CostCurve costs;
  EXPECT_EQ(costs.Seconds(5), 0.0);
  costs.Add(4, absl::Seconds(4));
  EXPECT_EQ(costs.Seconds(9), 4.0);
  EXPECT_LT(costs.Seconds(1), 4.0);
  EXPECT_GT(costs.Seconds(1), 2.0);
  EXPECT_LT(costs.Seconds(1), costs.Seconds(3));
  costs.Add(1, absl::Seconds(1));
  EXPECT_LT(costs.Seconds(3), 3.0);
  EXPECT_GT(costs.Seconds(3), costs.Seconds(2));
  EXPECT_EQ(costs.Seconds(4), 4.0);
  costs.Add(2, absl::Seconds(3.9));
  EXPECT_EQ(costs.Seconds(3), 3.9) << "not below the smaller one";
  EXPECT_FALSE(costs.Seen(3));
  EXPECT_TRUE(costs.Seen(4));
}

TEST(CostCurveTest, StepsThatWereHeldUpDoNotCount) {
  CostCurve costs;
  costs.Add(8, absl::Milliseconds(9));
  EXPECT_EQ(costs.Seconds(8), 9e-3) << "for want of anything better";
  for (int i = 0; i < 30; ++i) {
    costs.Add(8, absl::Milliseconds(2));
    costs.Add(8, absl::Milliseconds(10));
    EXPECT_EQ(costs.Seconds(8), 2e-3);
  }
  for (int i = 0; i < 8; ++i) costs.Add(8, absl::Milliseconds(4));
  EXPECT_EQ(costs.Seconds(8), 4e-3) << "but a new speed does";
}

TEST(CostCurveTest, HopesWhereItKnowsLittle) {
  CostCurve costs;
  EXPECT_EQ(costs.Hope(2), 0.0);
  costs.Add(8, absl::Milliseconds(8));
  EXPECT_EQ(costs.Hope(2), 2e-3) << "eight are never slower than four twos";
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(costs.Hope(2), costs.Seconds(2)) << i << " were seen";
    costs.Add(2, absl::Milliseconds(3));
  }
  EXPECT_EQ(costs.Hope(2), 3e-3);
  for (int i = 0; i < 1000; ++i) costs.Add(3, absl::Milliseconds(1));
  EXPECT_LT(costs.Hope(2), 3e-3) << "that was long ago";
  EXPECT_EQ(costs.Hope(3), 1e-3);
}

TEST(CostCurveTest, TimesAreBelievedAsFarAsOthersBearThemOut) {
  CostCurve costs;
  costs.Add(1, absl::Milliseconds(50));
  costs.Add(8, absl::Milliseconds(50));
  for (int i = 0; i < 3; ++i) costs.Add(2, absl::Milliseconds(2));
  EXPECT_EQ(costs.Seconds(1), 2e-3) << "less than two rows";
  EXPECT_EQ(costs.Seconds(8), 8e-3) << "four times two rows";
  for (int i = 0; i < 1000; ++i) costs.Add(3, absl::Milliseconds(40));
  EXPECT_EQ(costs.Seconds(8), 50e-3) << "but what was long ago says nothing";
}

TEST(CostCurveTest, NonsenseIsIgnored) {
  CostCurve costs;
  costs.Add(-1, absl::Seconds(1));
  costs.Add(kMaxBlockRows + 1, absl::Seconds(1));
  costs.Add(3, absl::ZeroDuration());
  costs.Add(3, -absl::Seconds(1));
  EXPECT_EQ(costs.Seconds(3), 0.0);
}

TEST(DraftPlannerTest, NoRoomIsNoDraft) {
  World world;
  const DraftPlanner::Choice choice =
      world.planner.Choose(0, false, world.costs);
  EXPECT_EQ(choice.drafts, 0);
  EXPECT_EQ(choice.reason, Reason::kNoRoom);
}

TEST(DraftPlannerTest, StartsWithATile) {
  World world;
  EXPECT_EQ(world.planner.Choose(15, false, world.costs).drafts, 7);
  EXPECT_EQ(world.planner.Choose(3, false, world.costs).drafts, 3);
}

// Whatever the machine and the drafter are like, little is lost against the
// number of drafts that would have been best all along.
TEST(DraftPlannerTest, ComesCloseToTheBestFixedNumber) {
  for (const double row : {0.02, 0.1, 0.4, 0.9}) {
    for (const double draft : {0.0, 0.2, 0.7}) {
      for (const double agree : {0.0, 0.3, 0.6, 0.9, 1.0}) {
        SCOPED_TRACE(::testing::Message() << "row " << row << " draft " << draft
                                          << " agree " << agree);
        RowsWorld world(row, draft, agree);
        world.noise = 0.1;
        world.Run(1500, 15);
        EXPECT_GT(world.Rate(), 0.9 * world.BestRate(15));
      }
    }
  }
}

// Answers of five steps or so, each in a session of its own: what is found out
// in one must serve the next.
TEST(DraftPlannerTest, ShortAnswersComeCloseToTheBestFixedNumber) {
  for (const double row : {0.02, 0.15, 0.4}) {
    for (const double draft : {0.1, 0.5}) {
      for (const double agree : {0.5, 0.8, 0.95}) {
        SCOPED_TRACE(::testing::Message() << "row " << row << " draft " << draft
                                          << " agree " << agree);
        RowsWorld world(row, draft, agree);
        world.noise = 0.05;
        for (int i = 0; i < 100; ++i) world.Answer(20, 7);
        EXPECT_GT(world.Rate(), 0.94 * world.BestRate(7));
      }
    }
  }
}

TEST(DraftPlannerTest, FindsTheEdgeOfATile) {
  TilesWorld tiles(/*tile=*/0.9, /*drafting=*/0.1, /*agreement=*/0.85);
  tiles.Run(400, 15);
  EXPECT_GT(tiles.chosen[7], 360);
  EXPECT_GT(tiles.Rate(), 0.96 * tiles.BestRate(15));
  // Where seven rows fit and the eighth doubles the time.
  RowsWorld seven(0.0, 0.1, 0.85);
  for (int32_t rows = 8; rows <= kMaxBlockRows; ++rows) {
    seven.verify[rows] *= rows <= 14 ? 2.0 : 3.0;
  }
  seven.Run(400, 15);
  EXPECT_GT(seven.chosen[6], 360);
}

// Every seventh step takes five times as long.
TEST(DraftPlannerTest, ABusyMachineTeachesNothingWrong) {
  for (const double agree : {0.0, 0.5, 0.9}) {
    SCOPED_TRACE(agree);
    RowsWorld world(0.15, 0.3, agree);
    world.held_up = 0.15;
    world.times = 5.0;
    for (int i = 0; i < 60; ++i) world.Answer(40, 7);
    EXPECT_GT(world.Rate(), 0.93 * world.BestRate(7));
  }
}

// The first steps of a process are slow: memory is touched for the first time.
TEST(DraftPlannerTest, ASlowStartIsForgotten) {
  RowsWorld world(0.1, 0.2, 0.85);
  world.held_up = 1.0;
  world.times = 6.0;
  world.Run(2, 7);
  world.held_up = 0.0;
  world.Run(300, 7);
  world.Forget();
  for (int i = 0; i < 200; ++i) world.Answer(20, 7);
  EXPECT_GT(world.Rate(), 0.95 * world.BestRate(7));
}

TEST(DraftPlannerTest, DraftsThatNeverAgreeCostNextToNothing) {
  for (const double row : {0.02, 0.15, 0.5}) {
    for (const double draft : {0.0, 0.4}) {
      SCOPED_TRACE(::testing::Message() << "row " << row << " draft " << draft);
      RowsWorld alone(row, draft, 0.0);
      alone.Run(256, 15);
      EXPECT_GT(alone.Rate(), 0.97 * alone.Rate(0));
      RowsWorld shared(row, draft, 0.0);
      for (int i = 0; i < 16; ++i) shared.Answer(64, 15);
      EXPECT_GT(shared.Rate(), 0.98 * shared.Rate(0));
      shared.Forget();
      for (int i = 0; i < 64; ++i) shared.Answer(64, 15);
      EXPECT_GT(shared.Rate(), 0.988 * shared.Rate(0));
    }
  }
}

TEST(DraftPlannerTest, FollowsDraftsThatBecomeGoodAndBad) {
  RowsWorld world(0.1, 0.2, 0.0);
  double best = 0.0;
  for (int i = 0; i < 10; ++i) {
    world.agree.assign(kMaxBlockRows + 1, i % 2 == 0 ? 0.0 : 0.9);
    const int64_t before = world.tokens;
    world.Run(i % 2 == 0 ? 900 : 300, 7);
    best += (world.tokens - before) / world.BestRate(7);
  }
  EXPECT_GT(best / world.seconds, 0.93);
}

TEST(DraftPlannerTest, GoodDraftsAreNoticedAfterTheyWereGivenUp) {
  RowsWorld world(0.1, 0.2, 0.0);
  world.Run(500, 7);
  EXPECT_GT(world.chosen[0], 470);
  world.agree.assign(kMaxBlockRows + 1, 0.95);
  world.Forget();
  world.Run(500, 7);
  EXPECT_GT(world.chosen[7], 400);
}

TEST(DraftPlannerTest, ANewSessionStartsWithWhatTheEngineKnows) {
  RowsWorld world(0.4, 0.3, 0.6);
  world.Run(400, 7);
  const int32_t before = world.planner.Choose(7, false, world.costs).drafts;
  world.planner = DraftPlanner(&world.history);
  EXPECT_NEAR(world.planner.Choose(7, false, world.costs).drafts, before, 1);
  RowsWorld bad(0.1, 0.3, 0.0);
  bad.Run(400, 7);
  bad.history.credit = 0.0;
  bad.planner = DraftPlanner(&bad.history);
  EXPECT_EQ(bad.planner.Choose(7, false, bad.costs).reason, Reason::kPlain);
}

// One try in vain is paid for with a hundred steps' part; one that succeeds
// costs nothing.
TEST(DraftPlannerTest, TriesInVainBecomeRare) {
  RowsWorld world(0.1, 0.2, 0.0);
  world.Run(300, 7);
  world.Forget();
  int64_t plain = 0, probes = 0;
  for (int i = 0; i < 1000; ++i) {
    const DraftPlanner::Choice choice =
        world.planner.Choose(7, false, world.costs);
    plain += choice.reason == Reason::kPlain;
    probes += choice.reason == Reason::kProbe;
    EXPECT_EQ(
        choice.reason == Reason::kPlain || choice.reason == Reason::kMeasure,
        choice.drafts == 0);
    world.Step(choice.drafts);
  }
  EXPECT_GT(plain, 940);
  EXPECT_GE(probes, 20);
  EXPECT_GT(world.Rate(), 0.988 * world.Rate(0));
}

// Steps of a known machine, so that there is a choice to trim.
struct KnownWorld : RowsWorld {
  explicit KnownWorld(double row = 0.6) : RowsWorld(row, 0.2, 0.0) {
    for (int i = 0; i < 3; ++i) {
      for (int32_t rows = 1; rows <= kMaxBlockRows; ++rows) {
        costs.Add(rows, absl::Seconds(verify[rows]));
      }
    }
    history.has_credit = true;
    planner.Choose(7, false, costs);
  }
};

// A drafter whose margins of 5 are right, and whose margins below 1 are not.
void Teach(DraftPlanner* planner) {
  const std::vector<float> sure(3, 5.0f), unsure(3, 0.2f);
  for (int i = 0; i < 50; ++i) {
    planner->Observe(3, 3, sure);
    planner->Observe(3, 0, unsure);
  }
}

TEST(DraftPlannerTest, KeepsWhatTheDrafterIsSureOf) {
  KnownWorld world;
  Teach(&world.planner);
  const std::vector<float> sure = {5.0f, 5.0f, 5.0f, 0.0f, 0.1f, 5.0f};
  EXPECT_EQ(world.planner.Trim(sure, 6, world.costs), 3);
  EXPECT_EQ(world.planner.Trim(sure, 2, world.costs), 2);
  const std::vector<float> unsure = {0.1f, 5.0f, 5.0f};
  EXPECT_EQ(world.planner.Trim(unsure, 3, world.costs), 0);
  EXPECT_EQ(world.planner.Trim({}, 6, world.costs), 6) << "it does not say";
}

TEST(DraftPlannerTest, MarginsSayNothingUntilTheyHave) {
  KnownWorld world;
  for (const float margin : {0.0f, 4.0f, kInf, -kInf, kNaN}) {
    const std::vector<float> margins(7, margin);
    const int32_t all = world.planner.Choose(7, false, world.costs).drafts;
    EXPECT_EQ(world.planner.Trim(margins, all, world.costs), all);
  }
}

// A drafter may be surer than it is right; what counts is how often it was.
TEST(DraftPlannerTest, MarginsAreJudgedByWhatHappened) {
  KnownWorld world;
  const std::vector<float> sure(7, 4.0f), surer(7, 12.0f);
  for (int i = 0; i < 100; ++i) {
    world.planner.Observe(7, 0, surer);
    world.planner.Observe(7, 7, sure);
  }
  EXPECT_EQ(world.planner.Trim(sure, 7, world.costs), 7);
  EXPECT_EQ(world.planner.Trim(surer, 7, world.costs), 0);
}

// What is given up is paid for like any other try, and noticed when it is good
// again.
TEST(DraftPlannerTest, DraftsThatLookHopelessAreTriedNowAndThen) {
  KnownWorld world(/*row=*/0.2);
  Teach(&world.planner);
  const std::vector<float> unsure(3, 0.2f);
  int32_t verified = 0;
  for (int i = 0; i < 300; ++i) {
    world.planner.Choose(3, false, world.costs);
    verified += world.planner.Trim(unsure, 3, world.costs);
  }
  EXPECT_GE(verified, 2);
  EXPECT_LE(verified, 30);
  world.history.credit = 0.0;
  EXPECT_EQ(world.planner.Trim(unsure, 3, world.costs), 0);
  world.history.credit = 1.0;
  EXPECT_EQ(world.planner.Trim(unsure, 3, world.costs), 1);
  EXPECT_LT(world.history.credit, 1.0);
  for (int i = 0; i < 200; ++i) world.planner.Observe(1, 1, unsure);
  world.history.credit = 0.0;
  EXPECT_EQ(world.planner.Trim(unsure, 3, world.costs), 3);
}

// Margins that tell something bring more than any fixed number of drafts,
// whichever way round they tell it.
TEST(DraftPlannerTest, WhatMarginsTellIsWorthSomething) {
  for (const float sign : {1.0f, -1.0f}) {
    RowsWorld world(0.3, 0.3, 0.75);
    world.noise = 0.05;
    world.margin = [sign](Random* random, bool agrees) {
      return static_cast<float>(4.0 + sign * (agrees ? 2.0 : -2.0) +
                                random->Gaussian());
    };
    for (int i = 0; i < 100; ++i) world.Answer(60, 7);
    world.Forget();
    for (int i = 0; i < 300; ++i) world.Answer(60, 7);
    EXPECT_GT(world.Rate(), 1.08 * world.BestRate(7)) << sign;
  }
}

// Margins that tell nothing cost no more than what may be spent on tries.
TEST(DraftPlannerTest, MarginsThatTellNothingCostNothing) {
  const std::function<float(Random*, bool)> kinds[] = {
      [](Random*, bool) { return 3.0f; },
      [](Random*, bool) { return 0.0f; },
      [](Random*, bool) { return kNaN; },
      [](Random*, bool) { return kInf; },
      [](Random*, bool) { return -kInf; },
      [](Random* random, bool) {
        return static_cast<float>(random->Unit() * 20.0);
      },
      [](Random* random, bool) { return random->OneIn(2) ? kNaN : 1e30f; },
  };
  for (const double agree : {0.0, 0.3, 0.8}) {
    for (const double row : {0.05, 0.4}) {
      const auto rate = [&](const std::function<float(Random*, bool)>& margin) {
        RowsWorld world(row, 0.2, agree);
        // Places that differ, which the same margin must not level.
        for (int32_t i = 4; i <= kMaxBlockRows; ++i) world.agree[i] *= 0.3;
        world.margin = margin;
        for (int i = 0; i < 400; ++i) world.Answer(60, 7);
        return world.Rate();
      };
      const double without = rate(nullptr);
      for (size_t kind = 0; kind < std::size(kinds); ++kind) {
        EXPECT_GT(rate(kinds[kind]), 0.985 * without)
            << "kind " << kind << " agree " << agree << " row " << row;
      }
    }
  }
}

// A DFlash draft cannot begin an answer.
TEST(DraftPlannerTest, FirstBlocksAreJudgedByFirstBlocks) {
  RowsWorld world(0.1, 0.2, 0.9);
  world.agree_first.assign(kMaxBlockRows + 1, 0.0);
  for (int i = 0; i < 20; ++i) world.Answer(20, 7);
  world.Forget();
  for (int i = 0; i < 200; ++i) world.Answer(20, 7);
  EXPECT_GT(world.chosen_first[0], 150) << "but for some tries";
  EXPECT_LT(world.chosen[0] - world.chosen_first[0], 20);
  world.agree_first.clear();
  for (int i = 0; i < 400; ++i) world.Answer(20, 7);
  world.Forget();
  for (int i = 0; i < 100; ++i) world.Answer(20, 7);
  EXPECT_LT(world.chosen_first[0], 20) << "it learnt to";
}

// Else the later places would count only where drafts are good.
TEST(DraftPlannerTest, WhatWasCutOffCountsAsWhatItSeemed) {
  KnownWorld world;
  const std::vector<float> margins = {4.0f, 4.0f, 0.0f, 4.0f};
  for (int i = 0; i < 200; ++i) {
    world.planner.Observe(4, i % 10 == 0 ? 4 : 2, margins);
  }
  const double whole = world.planner.Acceptance(2);
  EXPECT_LT(whole, 0.3);
  for (int i = 0; i < 200; ++i) world.planner.Observe(2, 2, margins);
  EXPECT_NEAR(world.planner.Acceptance(2), whole, 0.15);
  for (int i = 0; i < 200; ++i) world.planner.Observe(2, 0, margins);
  EXPECT_NEAR(world.planner.Acceptance(2), whole, 0.15) << "never got so far";
}

TEST(DraftPlannerTest, LaterPlacesAreJudgedByEarlierOnesUntilSeen) {
  DraftHistory history;
  DraftPlanner planner(&history);
  for (int i = 0; i < 50; ++i) planner.Observe(1, 1, {});
  EXPECT_GT(planner.Acceptance(0), 0.95);
  EXPECT_GT(planner.Acceptance(5), 0.8);
  for (int i = 0; i < 50; ++i) planner.Observe(1, 0, {});
  EXPECT_LT(planner.Acceptance(0), 0.4);
  EXPECT_LT(planner.Acceptance(5), 0.5);
}

}  // namespace
}  // namespace deltaedge
