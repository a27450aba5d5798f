// SPDX-License-Identifier: Apache-2.0

// EngineOptions::placement, with the processors of the machine at hand: all of
// them are big ones where they are alike.

#include <sched.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/affinity.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

// Looks, in the midst of a step, at where its thread may run.
class Looking : public Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t,
               std::vector<TokenId>* drafts) override {
    cpus = ThreadAffinity();
    drafts->push_back(sequence.back());
  }

  std::optional<cpu_set_t> cpus;
};

class PlacementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<cpu_set_t> all = ThreadAffinity();
    if (!all.has_value() || CPU_COUNT(&*all) < 2) {
      GTEST_SKIP() << "needs two processors";
    }
    all_ = *all;
    CPU_ZERO(&one_);
    for (int cpu = CPU_SETSIZE - 1; CPU_COUNT(&one_) == 0; --cpu) {
      if (CPU_ISSET(cpu, &all_)) CPU_SET(cpu, &one_);
    }
  }

  // Opens an engine where the last processor alone is allowed, and runs it
  // where all are.
  void Run(EngineOptions::Placement placement) {
    EngineOptions options;
    options.placement = placement;
    {
      const ScopedAffinity affinity(&one_);
      auto engine = Engine::Open(
          {testing::Runfile("tests/testdata/models/t.gdn"), ""}, options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      engine_ = *std::move(engine);
    }
    SessionOptions with;
    with.drafter = drafter_;
    with.draft_tokens = 1;
    auto session = engine_->NewSession(with);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE((*session)->Prefill({1, 2, 3}).ok());
    GenerateOptions rules;
    rules.max_new_tokens = 4;
    rules.ignore_model_stop_tokens = true;
    std::optional<cpu_set_t> between;
    ASSERT_TRUE((*session)
                    ->Generate(rules,
                               [&](const TokenEvent&) {
                                 between = ThreadAffinity();
                                 return true;
                               })
                    .ok());
    ASSERT_TRUE(between.has_value());
    EXPECT_TRUE(CPU_EQUAL(&*between, &all_));
    ASSERT_TRUE(drafter_->cpus.has_value());
  }

  cpu_set_t all_, one_;
  std::unique_ptr<Engine> engine_;
  const std::shared_ptr<Looking> drafter_ = std::make_shared<Looking>();
};

TEST_F(PlacementTest, AStepStaysOnTheBigCoresAndItsCallerDoesNot) {
  Run(EngineOptions::Placement::kBigCores);
  EXPECT_TRUE(CPU_EQUAL(&*drafter_->cpus, &one_));
  EXPECT_EQ(engine_->info().threads, 1);
  EXPECT_THAT(engine_->info().thread_placement,
              HasSubstr("1 thread kept on processors "));
}

TEST_F(PlacementTest, AnywhereIsLeftAlone) {
  Run(EngineOptions::Placement::kAnywhere);
  EXPECT_TRUE(CPU_EQUAL(&*drafter_->cpus, &all_));
  EXPECT_THAT(engine_->info().thread_placement,
              HasSubstr("1 thread for processors "));
}

}  // namespace
}  // namespace deltaedge
