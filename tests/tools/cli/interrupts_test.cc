// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/interrupts.h"

#include <signal.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

class InterruptsDeathTest : public ::testing::TestWithParam<int> {};

TEST_P(InterruptsDeathTest, TheFirstIsToldTheSecondEnds) {
  EXPECT_EXIT(
      {
        signal(GetParam(), SIG_DFL);
        const ScopedInterrupts interrupts;
        if (Interrupted()) std::exit(1);
        raise(GetParam());
        if (!Interrupted()) std::exit(2);
        raise(GetParam());
        std::exit(3);
      },
      ::testing::KilledBySignal(GetParam()), "");
}

TEST_P(InterruptsDeathTest, WhatIsIgnoredStaysIgnored) {
  EXPECT_EXIT(
      {
        signal(GetParam(), SIG_IGN);
        {
          const ScopedInterrupts interrupts;
          raise(GetParam());
          if (Interrupted()) std::exit(1);
        }
        raise(GetParam());
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(InterruptsDeathTest, AfterwardsAllIsAsBefore) {
  EXPECT_EXIT(
      {
        signal(GetParam(), SIG_DFL);
        { const ScopedInterrupts interrupts; }
        raise(GetParam());
        std::exit(0);
      },
      ::testing::KilledBySignal(GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptsDeathTest,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP));

// They are errors of writing, and nobody's wish to end.
TEST(InterruptsTest, PipesAndFullFilesInterruptNothing) {
  const ScopedInterrupts interrupts;
  raise(SIGPIPE);
  raise(SIGXFSZ);
  EXPECT_FALSE(Interrupted());
}

}  // namespace
}  // namespace deltaedge
