// SPDX-License-Identifier: Apache-2.0

// An application's drafter runs inside a step. Whatever it calls from there is
// refused or harmless, never a lock that waits for itself.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"

namespace deltaedge {
namespace {

class Calling : public Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t,
               std::vector<TokenId>* drafts) override {
    if (call) outcomes.push_back(call());
    drafts->push_back(sequence.back());
  }

  std::function<absl::Status()> call;
  std::vector<absl::Status> outcomes;
};

class DrafterCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.num_threads = 1;
    auto engine = Engine::Open(
        {testing::Runfile("tests/testdata/models/t.gdn"), ""}, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    drafter_ = std::make_shared<Calling>();
    SessionOptions with;
    with.drafter = drafter_;
    with.draft_tokens = 1;
    session_ = New(with);
    SessionOptions plain;
    plain.draft_tokens = 0;
    other_ = New(plain);
    std::unique_ptr<Session> oracle = New(plain);
    expected_ = Say(*oracle);
  }

  std::unique_ptr<Session> New(const SessionOptions& options) {
    auto session = engine_->NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE((*session)->Prefill({1, 2, 3}).ok());
    return *std::move(session);
  }

  static std::vector<TokenId> Say(Session& session) {
    GenerateOptions rules;
    rules.max_new_tokens = 6;
    rules.ignore_model_stop_tokens = true;
    std::vector<TokenId> said;
    auto result = session.Generate(rules, [&](const TokenEvent& event) {
      said.push_back(event.id);
      return true;
    });
    EXPECT_TRUE(result.ok()) << result.status();
    return said;
  }

  // `call` from inside a step is refused, and the answer is what it would be.
  void ExpectRefused(std::function<absl::Status()> call) {
    drafter_->call = std::move(call);
    EXPECT_EQ(Say(*session_), expected_);
    ASSERT_FALSE(drafter_->outcomes.empty());
    for (const absl::Status& outcome : drafter_->outcomes) {
      EXPECT_TRUE(absl::IsFailedPrecondition(outcome)) << outcome;
    }
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Calling> drafter_;
  std::unique_ptr<Session> session_, other_;
  std::vector<TokenId> expected_;
};

TEST_F(DrafterCallsTest, ForkAndTake) {
  ExpectRefused([this] { return session_->Fork().status(); });
}
TEST_F(DrafterCallsTest, TakeOfAnother) {
  ExpectRefused([this] { return other_->Take().status(); });
}
TEST_F(DrafterCallsTest, NextOfAnother) {
  ASSERT_TRUE(other_->Start({}).ok());
  ExpectRefused([this] { return other_->Next().status(); });
}
TEST_F(DrafterCallsTest, PrefillOfAnother) {
  ExpectRefused([this] { return other_->Prefill({4, 5}); });
}
TEST_F(DrafterCallsTest, PrefillOfItself) {
  ExpectRefused([this] { return session_->Prefill({4, 5}); });
}
TEST_F(DrafterCallsTest, RestoreOfAnother) {
  auto snapshot = other_->Take();
  ASSERT_TRUE(snapshot.ok());
  ExpectRefused([&] { return other_->Restore(*snapshot); });
}
TEST_F(DrafterCallsTest, ANewSession) {
  ExpectRefused([this] { return engine_->NewSession({}).status(); });
}
TEST_F(DrafterCallsTest, StepMany) {
  ExpectRefused([this] {
    Session* const sessions[] = {other_.get()};
    return engine_->StepMany(sessions).status();
  });
}

// A step of another engine in between does not make it forget.
TEST_F(DrafterCallsTest, AfterUsingAnotherEngine) {
  EngineOptions options;
  options.num_threads = 1;
  auto second = Engine::Open(
      {testing::Runfile("tests/testdata/models/t.gdn"), ""}, options);
  ASSERT_TRUE(second.ok()) << second.status();
  auto small = (*second)->NewSession();
  ASSERT_TRUE(small.ok());
  ASSERT_TRUE((*small)->Prefill({1, 2, 3}).ok());
  ExpectRefused([&] {
    EXPECT_EQ(Say(**small).size(), 6u);
    return other_->Prefill({4, 5});
  });
}

// Nor does a way round through another engine's drafter.
TEST_F(DrafterCallsTest, ThroughAnotherEnginesDrafter) {
  EngineOptions options;
  options.num_threads = 1;
  auto second = Engine::Open(
      {testing::Runfile("tests/testdata/models/t.gdn"), ""}, options);
  ASSERT_TRUE(second.ok()) << second.status();
  auto inner = std::make_shared<Calling>();
  SessionOptions with;
  with.drafter = inner;
  with.draft_tokens = 1;
  auto small = (*second)->NewSession(with);
  ASSERT_TRUE(small.ok());
  ASSERT_TRUE((*small)->Prefill({1, 2, 3}).ok());
  inner->call = [this] { return other_->Prefill({4, 5}); };
  ExpectRefused([&] {
    EXPECT_EQ(Say(**small).size(), 6u);
    return inner->outcomes.empty() ? absl::InternalError("not asked")
                                   : inner->outcomes.back();
  });
}

TEST_F(DrafterCallsTest, WhatOnlyLooksIsFine) {
  drafter_->call = [this] {
    return session_->position() >= 3 && other_->position() == 3 &&
                   session_->stats().steps >= 0
               ? absl::OkStatus()
               : absl::InternalError("");
  };
  EXPECT_EQ(Say(*session_), expected_);
  for (const absl::Status& outcome : drafter_->outcomes) {
    EXPECT_TRUE(outcome.ok());
  }
}

}  // namespace
}  // namespace deltaedge
