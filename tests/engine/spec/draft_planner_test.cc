// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/draft_planner.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using Reason = DraftReason;
using testing::Random;

// A machine, a drafter and a clock, all made up.
struct World {
  // [rows], [drafts]: seconds.
  std::vector<double> verify, draft;
  // [i]: chance that draft i agrees if those before it did.
  std::vector<double> agree;
  double noise = 0.0;

  CostCurve costs;
  DraftPlanner planner;
  Random random{7};
  double seconds = 0.0;
  int64_t tokens = 0;
  std::vector<int64_t> chosen = std::vector<int64_t>(kMaxBlockRows);

  void Run(int64_t steps, int32_t max_drafts) {
    for (int64_t i = 0; i < steps; ++i) {
      const DraftPlanner::Choice choice = planner.Choose(max_drafts, costs);
      ASSERT_LE(choice.drafts, max_drafts);
      ++chosen[choice.drafts];
      Step(choice.drafts);
    }
  }

  double Noisy(double time) {
    return time * (1.0 + noise * std::abs(random.Gaussian()));
  }

  void Step(int32_t drafts) {
    int32_t accepted = 0;
    while (accepted < drafts && random.Unit() < agree[accepted]) ++accepted;
    const double verifying = Noisy(verify[1 + drafts]);
    costs.Add(1 + drafts, absl::Seconds(verifying));
    seconds += verifying;
    if (drafts > 0) {
      const double drafting = Noisy(draft[drafts]);
      planner.Drafted(drafts, absl::Seconds(drafting));
      seconds += drafting;
      planner.Observe(drafts, accepted, {});
    }
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
};

World MakeWorld(double row, double draft, double agree) {
  World world;
  for (int32_t i = 0; i <= kMaxBlockRows; ++i) {
    world.verify.push_back(1e-3 * (1.0 + row * (i - 1)));
    world.draft.push_back(draft * 1e-3);
    world.agree.push_back(agree);
  }
  return world;
}

TEST(CostCurveTest, WhatWasNeverSeenIsGuessedOnTheLowSide) {
  CostCurve costs;
  EXPECT_EQ(costs.Seconds(5), 0.0);
  costs.Add(4, absl::Seconds(4));
  EXPECT_EQ(costs.Seconds(9), 4.0);
  EXPECT_EQ(costs.Seconds(1), 4.0) << "nothing smaller was seen";
  costs.Add(1, absl::Seconds(1));
  EXPECT_LT(costs.Seconds(3), 3.0);
  EXPECT_GT(costs.Seconds(3), costs.Seconds(2));
  EXPECT_EQ(costs.Seconds(4), 4.0);
  costs.Add(2, absl::Seconds(3.9));
  EXPECT_EQ(costs.Seconds(3), 3.9) << "not below the smaller one";
  EXPECT_FALSE(costs.Seen(3));
  EXPECT_TRUE(costs.Seen(4));
}

TEST(CostCurveTest, OneStepThatWasHeldUpHardlyCounts) {
  CostCurve costs;
  for (int i = 0; i < 10; ++i) costs.Add(8, absl::Milliseconds(2));
  costs.Add(8, absl::Seconds(30));
  EXPECT_LT(costs.Seconds(8), 2.5e-3);
  for (int i = 0; i < 100; ++i) costs.Add(8, absl::Milliseconds(4));
  EXPECT_NEAR(costs.Seconds(8), 4e-3, 1e-4) << "but a new speed does";
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
  CostCurve costs;
  DraftPlanner planner;
  const DraftPlanner::Choice choice = planner.Choose(0, costs);
  EXPECT_EQ(choice.drafts, 0);
  EXPECT_EQ(choice.reason, Reason::kNoRoom);
}

TEST(DraftPlannerTest, StartsWithAsManyAsThereAre) {
  CostCurve costs;
  DraftPlanner planner;
  EXPECT_EQ(planner.Choose(7, costs).drafts, 7);
}

// Whatever the machine and the drafter are like, little is lost against the
// number of drafts that would have been best all along.
TEST(DraftPlannerTest, ComesCloseToTheBestFixedNumber) {
  for (const double row : {0.02, 0.1, 0.4, 0.9}) {
    for (const double draft : {0.0, 0.2, 0.7}) {
      for (const double agree : {0.0, 0.3, 0.6, 0.9, 1.0}) {
        SCOPED_TRACE(::testing::Message() << "row " << row << " draft " << draft
                                          << " agree " << agree);
        World world = MakeWorld(row, draft, agree);
        world.noise = 0.1;
        world.Run(1500, 15);
        World quiet = MakeWorld(row, draft, agree);
        const double share = world.Rate() / quiet.BestRate(15);
        // Noise alone takes 8 %.
        EXPECT_GT(share, 0.85);
      }
    }
  }
}

TEST(DraftPlannerTest, DraftsThatNeverAgreeCostNextToNothing) {
  World world = MakeWorld(/*row=*/0.1, /*draft=*/0.3, /*agree=*/0.0);
  world.Run(256, 7);
  EXPECT_GT(world.Rate(), 0.97 * world.Rate(0));
  EXPECT_GT(world.chosen[0], 240);
}

// Products go in tiles of rows: here 7 rows cost as much as one, the eighth
// doubles it.
TEST(DraftPlannerTest, FindsTheEdgeOfATile) {
  World world = MakeWorld(0.0, 0.1, 0.85);
  for (int32_t rows = 8; rows <= kMaxBlockRows; ++rows) {
    world.verify[rows] *= rows <= 14 ? 2.0 : 3.0;
  }
  world.Run(400, 15);
  EXPECT_GT(world.chosen[6], 300);
}

TEST(DraftPlannerTest, PlainIsTriedAgainAndLeftWhenDraftsBecomeGood) {
  World world = MakeWorld(0.1, 0.2, 0.0);
  world.Run(500, 7);
  world.agree.assign(kMaxBlockRows + 1, 0.95);
  world.chosen.assign(kMaxBlockRows, 0);
  world.Run(3000, 7);
  int64_t drafted = 0;
  for (int32_t k = 3; k <= 7; ++k) drafted += world.chosen[k];
  EXPECT_GT(drafted, 1500);
}

TEST(DraftPlannerTest, SaysWhy) {
  World world = MakeWorld(0.1, 0.2, 0.0);
  int64_t plain = 0, probes = 0;
  for (int i = 0; i < 300; ++i) {
    const DraftPlanner::Choice choice = world.planner.Choose(7, world.costs);
    plain += choice.reason == Reason::kPlain;
    probes += choice.reason == Reason::kProbe;
    EXPECT_EQ(
        choice.reason == Reason::kPlain || choice.reason == Reason::kMeasure,
        choice.drafts == 0);
    world.Step(choice.drafts);
  }
  EXPECT_GT(plain, 250);
  EXPECT_GE(probes, 1);
  EXPECT_LE(probes, 6);
}

TEST(DraftPlannerTest, TrimKeepsWhatTheDrafterIsSureOf) {
  World world = MakeWorld(0.3, 0.2, 0.0);
  for (int32_t rows = 1; rows <= kMaxBlockRows; ++rows) {
    world.costs.Add(rows, absl::Seconds(world.verify[rows]));
  }
  const std::vector<float> sure = {0.95f, 0.95f, 0.95f, 0.05f, 0.05f, 0.9f};
  EXPECT_EQ(world.planner.Trim(sure, 6, world.costs), 3);
  EXPECT_EQ(world.planner.Trim({}, 6, world.costs), 6);
  const std::vector<float> doubtful = {0.01f, 0.9f};
  EXPECT_EQ(world.planner.Trim(doubtful, 2, world.costs), 1);
  const std::vector<float> nonsense = {std::numeric_limits<float>::quiet_NaN(),
                                       -1.0f, 2.0f};
  EXPECT_GE(world.planner.Trim(nonsense, 3, world.costs), 1);
}

// A drafter may be surer than it is right; what counts is how often it was.
TEST(DraftPlannerTest, ConfidenceIsMeasuredAgainstWhatHappened) {
  World world = MakeWorld(0.3, 0.2, 0.0);
  for (int32_t rows = 1; rows <= kMaxBlockRows; ++rows) {
    world.costs.Add(rows, absl::Seconds(world.verify[rows]));
  }
  const std::vector<float> sure(7, 0.97f);
  EXPECT_EQ(world.planner.Trim(sure, 7, world.costs), 7);
  for (int i = 0; i < 100; ++i) world.planner.Observe(7, 0, sure);
  EXPECT_EQ(world.planner.Trim(sure, 7, world.costs), 1);
}

TEST(DraftPlannerTest, LaterPlacesAreJudgedByEarlierOnesUntilSeen) {
  DraftPlanner planner;
  for (int i = 0; i < 50; ++i) planner.Observe(1, 1, {});
  EXPECT_GT(planner.Acceptance(0), 0.95);
  EXPECT_GT(planner.Acceptance(5), 0.8);
  for (int i = 0; i < 50; ++i) planner.Observe(1, 0, {});
  EXPECT_LT(planner.Acceptance(0), 0.4);
  EXPECT_LT(planner.Acceptance(5), 0.4);
}

}  // namespace
}  // namespace deltaedge
