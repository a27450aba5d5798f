// SPDX-License-Identifier: Apache-2.0

#include "engine/base/affinity.h"

#include <sched.h>

#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

cpu_set_t FirstOf(const cpu_set_t& cpus) {
  cpu_set_t first;
  CPU_ZERO(&first);
  int number = 0;
  while (!CPU_ISSET(number, &cpus)) ++number;
  CPU_SET(number, &first);
  return first;
}

bool RunsOn(const cpu_set_t& cpus) {
  const std::optional<cpu_set_t> now = ThreadAffinity();
  return now.has_value() && CPU_EQUAL(&*now, &cpus);
}

class ScopedAffinityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<cpu_set_t> all = ThreadAffinity();
    if (!all.has_value() || CPU_COUNT(&*all) < 2) {
      GTEST_SKIP() << "needs two processors";
    }
    all_ = *all;
    first_ = FirstOf(all_);
    CPU_XOR(&others_, &all_, &first_);
  }

  cpu_set_t all_, first_, others_;
};

TEST_F(ScopedAffinityTest, NarrowsAndGivesBack) {
  {
    const ScopedAffinity affinity(&others_);
    EXPECT_TRUE(RunsOn(others_));
    std::thread([this] { EXPECT_TRUE(RunsOn(others_)); }).join();
  }
  EXPECT_TRUE(RunsOn(all_));
  std::thread([this] { EXPECT_TRUE(RunsOn(all_)); }).join();
}

TEST_F(ScopedAffinityTest, NeverWidens) {
  const ScopedAffinity outer(&first_);
  {
    const ScopedAffinity inner(&all_);
    EXPECT_TRUE(RunsOn(first_));
  }
  EXPECT_TRUE(RunsOn(first_));
  {
    const ScopedAffinity elsewhere(&others_);
    EXPECT_TRUE(RunsOn(first_));
  }
  EXPECT_TRUE(RunsOn(first_));
}

TEST_F(ScopedAffinityTest, NullDoesNothing) {
  const ScopedAffinity affinity(nullptr);
  EXPECT_TRUE(RunsOn(all_));
}

}  // namespace
}  // namespace deltaedge
