// SPDX-License-Identifier: Apache-2.0

#include "kernels/base/cpu_targets.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

class CpuTargetsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("DELTAEDGE_CPU");
    ForceCpuTarget("");
  }
};

TEST_F(CpuTargetsTest, TheBestTargetRunsUnlessOneIsForced) {
  ASSERT_FALSE(CpuTargets().empty());
  EXPECT_EQ(CpuTarget(), CpuTargets().front());
  for (const std::string& name : CpuTargets()) {
    EXPECT_TRUE(ForceCpuTarget(name));
    EXPECT_EQ(CpuTarget(), name);
  }
  const size_t targets = CpuTargets().size();
  EXPECT_TRUE(ForceCpuTarget(""));
  EXPECT_EQ(CpuTarget(), CpuTargets().front());
  EXPECT_EQ(CpuTargets().size(), targets);
}

TEST_F(CpuTargetsTest, AnUnknownNameChangesNothing) {
  ASSERT_TRUE(ForceCpuTarget(CpuTargets().back()));
  EXPECT_FALSE(ForceCpuTarget("Z80"));
  EXPECT_EQ(CpuTarget(), CpuTargets().back());
}

TEST_F(CpuTargetsTest, TheEnvironmentForcesATarget) {
  std::string name = "before";
  EXPECT_TRUE(ForceCpuTargetFromEnvironment(&name));
  EXPECT_EQ(name, "");
  EXPECT_EQ(CpuTarget(), CpuTargets().front());

  setenv("DELTAEDGE_CPU", CpuTargets().back().c_str(), 1);
  EXPECT_TRUE(ForceCpuTargetFromEnvironment(&name));
  EXPECT_EQ(name, CpuTargets().back());
  EXPECT_EQ(CpuTarget(), CpuTargets().back());

  setenv("DELTAEDGE_CPU", "Z80", 1);
  EXPECT_FALSE(ForceCpuTargetFromEnvironment(&name));
  EXPECT_EQ(name, "Z80");
  EXPECT_EQ(CpuTarget(), CpuTargets().back());
}

}  // namespace
}  // namespace deltaedge
