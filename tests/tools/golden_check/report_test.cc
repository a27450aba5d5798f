// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/report.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RelativeErrorTest, IsTheWorstDifferenceOverTheLargestValue) {
  EXPECT_DOUBLE_EQ(RelativeError({1, 2, 3}, {1, 2, 4}), 0.25);
  EXPECT_DOUBLE_EQ(RelativeError({1, 2, 3}, {-4, 2, 3}), 1.25);
  EXPECT_DOUBLE_EQ(RelativeError({1, 2, 3}, {1, 2, 4}, 10), 0.1);
  EXPECT_EQ(RelativeError({}, {}), 0);
}

TEST(RelativeErrorTest, DenormalsAreZero) {
  EXPECT_EQ(RelativeError({0, 0}, {0, 0}), 0);
  EXPECT_LT(RelativeError({0, 0}, {1e-45f, 0}), 1e-6);
  EXPECT_GT(RelativeError({1e-30f, 0}, {0, 0}), 1);
}

TEST(RelativeErrorTest, IsNoNumberIfAValueIsNone) {
  EXPECT_TRUE(std::isnan(RelativeError({kNan}, {1})));
  EXPECT_TRUE(std::isnan(RelativeError({1}, {kNan})));
  EXPECT_TRUE(std::isnan(RelativeError({kInfinity}, {kInfinity})));
}

TEST(ReportTest, CountsAndNames) {
  Report report(nullptr);
  EXPECT_FALSE(report.ok());
  report.Close("close", {1, 2}, {1, 2.0001f}, 1e-4);
  report.Equal("equal", {1, 2}, {1, 2});
  report.SameBits("bits", {0.5f}, {0.5f});
  report.Check("check", true, 1, "");
  report.NotRun("not run", "why");
  EXPECT_EQ(report.passed(), 4);
  EXPECT_EQ(report.not_run(), 1);
  EXPECT_TRUE(report.ok());

  report.Close("far", {1, 2}, {1, 2.1f}, 1e-4);
  report.Close("nan", {1, kNan}, {1, 2}, 1e-4);
  report.Close("longer", {1, 2, 3}, {1, 2}, 1e-4);
  report.Equal("other", {1, 3}, {1, 2});
  report.Equal("shorter", {1}, {1, 2});
  report.SameBits("sign of zero", {0.0f}, {-0.0f});
  report.Check("wrong", false, 1, "");
  report.Fail("not done", "why");
  EXPECT_EQ(report.passed(), 4);
  EXPECT_EQ(report.failures(), (std::vector<std::string>{
                                   "far", "nan", "longer", "other", "shorter",
                                   "sign of zero", "wrong", "not done"}));
  EXPECT_FALSE(report.ok());
}

TEST(ReportTest, ComparingNothingFails) {
  Report report(nullptr);
  report.Close("close", {}, {}, 1);
  report.Equal("equal", {}, {});
  report.SameBits("bits", {}, {});
  report.Check("check", true, 0, "");
  EXPECT_EQ(report.passed(), 0);
  EXPECT_EQ(report.failed(), 4);
}

}  // namespace
}  // namespace deltaedge
