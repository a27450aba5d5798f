// SPDX-License-Identifier: Apache-2.0

// Once its buffers have grown, a session's loop asks for no memory: not a step,
// not a token, whoever drafts. What a caller does with the results is its own.
// And when the loop has ended, nothing uses a processor.

#include <time.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/heap_calls.h"

namespace deltaedge {
namespace {

using testing::HeapCalls;

constexpr int32_t kContext = 1024;
// A ring goes round once while calls are counted.
int WarmUpTokens() {
  return testing::FewerIfEmulated("tokens before calls are counted", 60, 20);
}
int Tokens() { return testing::FewerIfEmulated("tokens counted", 60, 20); }
// Of sessions together, of up to 16 tokens each.
int WarmUpSteps() {
  return testing::FewerIfEmulated("steps before calls are counted", 20, 5);
}
int Steps() { return testing::FewerIfEmulated("steps counted", 10, 5); }

struct Case {
  std::string name;
  SessionOptions session;
  GenerateOptions rules;
  int threads = 1;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

SessionOptions Drafts(int32_t drafts) {
  SessionOptions options;
  options.draft_tokens = drafts;
  return options;
}

SessionOptions Lookup(std::optional<int32_t> drafts) {
  SessionOptions options;
  options.draft_tokens = drafts;
  options.lookup = true;
  return options;
}

SessionOptions Slots(int32_t drafts) {
  SessionOptions options = Drafts(drafts);
  options.rollback = Rollback::kSlots;
  return options;
}

GenerateOptions Logits() {
  GenerateOptions rules;
  rules.logits = true;
  return rules;
}

GenerateOptions TopK() {
  GenerateOptions rules;
  rules.sampling.temperature = 0.7f;
  rules.sampling.top_k = 20;
  rules.sampling.top_p = 0.9f;
  rules.sampling.seed = 3;
  return rules;
}

// Texts that keep beginning.
GenerateOptions StopTexts() {
  GenerateOptions rules;
  rules.stop_texts = {" of the kind that nobody ever says", "a a a a", " a b"};
  return rules;
}

std::vector<Case> Cases() {
  return {
      {"plain", Drafts(0), {}},
      {"plain_two_threads", Drafts(0), {}, 2},
      {"plain_with_logits", Drafts(0), Logits()},
      {"plain_slots", Slots(0), {}},
      {"draft_model", Drafts(7), {}},
      {"draft_model_two_threads", Drafts(7), {}, 2},
      {"draft_model_slots", Slots(7), {}},
      {"draft_model_with_logits", Drafts(7), Logits()},
      {"draft_model_sampled", Drafts(7), TopK()},
      {"draft_model_stop_texts", Drafts(7), StopTexts()},
      {"adaptive", SessionOptions(), {}},
      {"lookup", Lookup(5), {}},
      {"lookup_adaptive", Lookup(std::nullopt), {}},
  };
}

class SteadyStateTest : public ::testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Engine> Open(int threads) {
    EngineOptions options;
    options.num_threads = threads;
    auto engine = Engine::Open(testing::DemoPair(), options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static std::unique_ptr<Session> Started(const Engine& engine,
                                          const std::string& question,
                                          const Case& c) {
    SessionOptions options = c.session;
    options.max_context = kContext;
    auto session = engine.NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    const auto prompt = engine.chat().Render({{Role::kUser, question}});
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_TRUE((*session)->Prefill(*prompt).ok());
    GenerateOptions rules = c.rules;
    rules.max_new_tokens = kContext;
    rules.ignore_model_stop_tokens = true;
    const absl::Status started = (*session)->Start(rules);
    EXPECT_TRUE(started.ok()) << started;
    return *std::move(session);
  }

  static bool NextIsThere(Session& session) {
    const auto token = session.Next();
    return token.ok() && token->has_value();
  }

  // Counts as soon as `session`, which is in a loop of Next(), has warmed up.
  static void ExpectSteady(Session& session) {
    for (int i = 0; i < WarmUpTokens(); ++i) ASSERT_TRUE(NextIsThere(session));
    const int wanted = Tokens();
    const int64_t before = HeapCalls();
    int tokens = 0;
    while (tokens < wanted && NextIsThere(session)) ++tokens;
    EXPECT_EQ(HeapCalls(), before);
    EXPECT_EQ(tokens, wanted);
  }
};

TEST_P(SteadyStateTest, NextAllocatesNothing) {
  const auto engine = Open(GetParam().threads);
  const auto session = Started(*engine, "What is a dog?", GetParam());
  ExpectSteady(*session);
}

class CopiedSteadyStateTest : public SteadyStateTest {};

// A loop that goes on in a fork, and in a session that was restored.
TEST_P(CopiedSteadyStateTest, NextAllocatesNothing) {
  const auto engine = Open(GetParam().threads);
  const auto session = Started(*engine, "What is a dog?", GetParam());
  for (int i = 0; i < WarmUpTokens(); ++i) ASSERT_TRUE(NextIsThere(*session));
  const auto fork = session->Fork();
  ASSERT_TRUE(fork.ok()) << fork.status();
  ExpectSteady(**fork);

  const auto snapshot = session->Take();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  SessionOptions options = GetParam().session;
  options.max_context = kContext;
  const auto restored = engine->NewSession(options);
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_TRUE((*restored)->Restore(*snapshot).ok());
  ExpectSteady(**restored);
}

class StepManySteadyStateTest : public SteadyStateTest {};

// The list of outcomes is the caller's, one array a call.
TEST_P(StepManySteadyStateTest, AllocatesItsAnswerOnly) {
  const auto engine = Open(GetParam().threads);
  std::vector<std::unique_ptr<Session>> owned;
  std::vector<Session*> sessions;
  for (const char* question : {"What is a dog?", "What is a house?", "Who?"}) {
    owned.push_back(Started(*engine, question, GetParam()));
    sessions.push_back(owned.back().get());
  }
  const auto step = [&] {
    const auto outcomes = engine->StepMany(sessions);
    if (!outcomes.ok()) return false;
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (!(*outcomes)[i].ok()) return false;
      do {
        if (!NextIsThere(*sessions[i])) return false;
      } while (sessions[i]->waiting() > 0);
    }
    return true;
  };
  for (int i = 0; i < WarmUpSteps(); ++i) ASSERT_TRUE(step());
  const int wanted = Steps();
  const int64_t before = HeapCalls();
  int steps = 0;
  while (steps < wanted && step()) ++steps;
  EXPECT_EQ(HeapCalls() - before, wanted);
  EXPECT_EQ(steps, wanted);
}

INSTANTIATE_TEST_SUITE_P(Ways, SteadyStateTest, ::testing::ValuesIn(Cases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(
    Ways, CopiedSteadyStateTest,
    ::testing::Values(Case{"plain_with_logits", Drafts(0), Logits()},
                      Case{"draft_model_sampled", Drafts(7), TopK()},
                      Case{"draft_model_slots", Slots(7), StopTexts()},
                      Case{"adaptive", SessionOptions(), {}},
                      Case{"lookup", Lookup(5), {}},
                      Case{"lookup_adaptive", Lookup(std::nullopt), {}}),
    [](const auto& c) { return c.param.name; });
// Pinned: which sessions have ever drafted at once is not up to the clock.
INSTANTIATE_TEST_SUITE_P(Ways, StepManySteadyStateTest,
                         ::testing::Values(Case{"plain", Drafts(0), {}},
                                           Case{
                                               "draft_model", Drafts(3), {}, 2},
                                           Case{"lookup", Lookup(5), {}}),
                         [](const auto& c) { return c.param.name; });

absl::Duration CpuTime() {
  timespec time;
  EXPECT_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
  return absl::DurationFromTimespec(time);
}

// A worker that spins until it is tired of it takes some 25 ms.
TEST(IdleTest, NoThreadIsAtWorkWhenAnAnswerHasEnded) {
  EngineOptions options;
  options.num_threads = 2;
  const auto engine = Engine::Open(testing::DemoPair(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto session = (*engine)->NewSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Prefill({1, 2, 3}).ok());
  GenerateOptions rules;
  rules.max_new_tokens = 20;
  rules.ignore_model_stop_tokens = true;
  const auto result =
      (*session)->Generate(rules, [](const TokenEvent&) { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  const absl::Duration before = CpuTime();
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_LT(CpuTime() - before, absl::Milliseconds(10));
}

TEST(HeapCallsTest, CountsWhatIsAllocated) {
  const int64_t before = HeapCalls();
  auto one = std::make_unique<std::vector<int>>();
  one->reserve(10);
  EXPECT_GE(one->capacity(), 10u);
  EXPECT_EQ(HeapCalls() - before, 2);
}

}  // namespace
}  // namespace deltaedge
