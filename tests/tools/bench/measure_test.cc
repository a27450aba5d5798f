// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/measure.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

TEST(MeasureTest, SpreadOfOddAndEvenNumbers) {
  const Spread odd = SpreadOf({5, 1, 9});
  EXPECT_EQ(odd.median, 5);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 9);
  EXPECT_EQ(SpreadOf({4, 1, 2, 9}).median, 3);
  EXPECT_EQ(SpreadOf({7}).median, 7);
}

// On a machine that gets slower with every repetition, ratios do not notice.
TEST(MeasureTest, RatiosAreThoseOfNeighbours) {
  std::string order;
  const auto candidate = [&order](char name, int64_t ms, int64_t steps) {
    return [&order, name, ms, steps]() -> absl::StatusOr<Sample> {
      const int64_t slow = 1 << order.size() / 3;
      order += name;
      return Sample{absl::Milliseconds(ms * slow), /*tokens=*/12, steps};
    };
  };
  const auto measured = Alternate(
      {candidate('a', 30, 4), candidate('b', 10, 3), candidate('c', 60, 0)},
      /*repetitions=*/3);
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(order, "abcbcacababc") << "each is the first one day";
  const double ratios[] = {1.0, 3.0, 0.5};
  const double tokens_per_step[] = {3.0, 4.0, 0.0};
  for (int i = 0; i < 3; ++i) {
    const Measurement& m = (*measured)[i];
    EXPECT_NEAR(m.ratio.min, ratios[i], 1e-9);
    EXPECT_NEAR(m.ratio.max, ratios[i], 1e-9);
    EXPECT_EQ(m.tokens_per_step, tokens_per_step[i]);
    EXPECT_NEAR(m.ms.max, 4 * m.ms.min, 1e-6);
  }
  const Spread slower = TimeRatio((*measured)[2], (*measured)[1]);
  EXPECT_NEAR(slower.median, 6.0, 1e-9);
  EXPECT_NEAR(slower.min, slower.max, 1e-9);
  EXPECT_NEAR((*measured)[0].ms.median, 120.0, 1e-6);
  EXPECT_NEAR((*measured)[0].tokens_per_second, 100.0, 1e-6);
}

TEST(MeasureTest, AnErrorEndsIt) {
  int runs = 0;
  const std::vector<Candidate> candidates = {[&]() -> absl::StatusOr<Sample> {
    ++runs;
    return absl::ResourceExhaustedError("no memory");
  }};
  EXPECT_TRUE(absl::IsResourceExhausted(Alternate(candidates, 5).status()));
  EXPECT_EQ(runs, 1);
}

TEST(MeasureTest, StopEndsIt) {
  std::atomic<bool> stop{false};
  int runs = 0;
  const std::vector<Candidate> candidates = {[&]() -> absl::StatusOr<Sample> {
    stop = ++runs == 2;
    return Sample{absl::Milliseconds(1), /*tokens=*/1};
  }};
  EXPECT_TRUE(absl::IsCancelled(Alternate(candidates, 5, &stop).status()));
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace deltaedge
