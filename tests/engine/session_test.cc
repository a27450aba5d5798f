// SPDX-License-Identifier: Apache-2.0

// The contract of engine/session.h and engine/engine.h, promise by promise.
// That drafts change nothing is tests/e2e/lossless_test.cc.

#include "engine/session.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

// One thread: workers that share their core with other tests wait for whole
// time slices. What more threads change is for tests/e2e.
Engine& DemoEngine() {
  static Engine* const engine = [] {
    auto opened = Engine::Open(testing::DemoPair(), {/*num_threads=*/1});
    if (!opened.ok()) {
      ADD_FAILURE() << opened.status();
      std::abort();
    }
    return opened->release();
  }();
  return *engine;
}

std::vector<TokenId> Ask(const std::string& text) {
  auto ids = DemoEngine().chat().Render({{Role::kUser, text}});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

// With all drafts that the draft model can make, unless `options` say how many:
// left to choose, a session may draft nothing on a busy machine.
std::unique_ptr<Session> NewSession(SessionOptions options = {}) {
  if (!options.draft_tokens.has_value()) {
    options.draft_tokens = DemoEngine().info().draft_block - 1;
  }
  auto session = DemoEngine().NewSession(options);
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

bool Ignore(const TokenEvent&) { return true; }

// What plain decoding says to `prompt`, prompt included.
std::vector<TokenId> Oracle(const std::vector<TokenId>& prompt, int32_t count) {
  SessionOptions options;
  options.draft_tokens = 0;
  auto session = NewSession(options);
  EXPECT_TRUE(session->Prefill(prompt).ok());
  GenerateOptions generate;
  generate.max_new_tokens = count;
  generate.ignore_model_stop_tokens = true;
  EXPECT_TRUE(session->Generate(generate, Ignore).ok());
  return session->tokens();
}

// Continues `session` to the length of `oracle` and expects to arrive there.
void ExpectGoesOnLike(Session& session, const std::vector<TokenId>& oracle) {
  ASSERT_LT(session.tokens().size(), oracle.size());
  GenerateOptions generate;
  generate.max_new_tokens =
      static_cast<int32_t>(oracle.size() - session.tokens().size());
  generate.ignore_model_stop_tokens = true;
  const auto result = session.Generate(generate, Ignore);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(session.tokens(), oracle);
}

GenerateOptions Endless() {
  GenerateOptions options;
  options.max_new_tokens = 1000000;
  options.ignore_model_stop_tokens = true;
  return options;
}

TEST(SessionTest, AnswersAQuestion) {
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(Ask("What is a dog?")).ok());
  std::string text;
  const auto result = session->Generate({}, [&](const TokenEvent& token) {
    text += std::string(token.text);
    return true;
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(text + result->tail,
            "A dog is a member of the genus Canis that has been domesticated "
            "by man since prehistoric times.");
  EXPECT_EQ(result->reason, FinishReason::kStopToken);
  EXPECT_EQ(result->delivered, 27);
  EXPECT_GT(session->stats().tokens_per_step(), 2.0);
}

TEST(SessionTest, NextIsGenerate) {
  const auto prompt = Ask("What is a cat?");
  auto one = NewSession();
  ASSERT_TRUE(one->Prefill(prompt).ok());
  std::vector<TokenEvent> events;
  std::string text;
  ASSERT_TRUE(one->Generate({},
                            [&](const TokenEvent& token) {
                              events.push_back(token);
                              text += std::string(token.text);
                              return true;
                            })
                  .ok());
  auto two = NewSession();
  ASSERT_TRUE(two->Prefill(prompt).ok());
  ASSERT_TRUE(two->Start({}).ok());
  std::string same;
  for (const TokenEvent& expected : events) {
    EXPECT_EQ(two->finish_reason(), FinishReason::kNone);
    const auto token = two->Next();
    ASSERT_TRUE(token.ok() && token->has_value());
    EXPECT_EQ((*token)->id, expected.id);
    EXPECT_EQ((*token)->position, expected.position);
    EXPECT_EQ((*token)->source, expected.source);
    EXPECT_EQ((*token)->position, two->position() - 1);
    EXPECT_EQ(two->tokens().back(), expected.id);
    same += std::string((*token)->text);
  }
  EXPECT_EQ(two->finish_reason(), FinishReason::kStopToken);
  for (int i = 0; i < 2; ++i) {
    const auto token = two->Next();
    ASSERT_TRUE(token.ok());
    EXPECT_FALSE(token->has_value());
  }
  EXPECT_EQ(same, text);
}

TEST(SessionTest, PrefillRefusesBadTokensAndChangesNothing) {
  auto session = NewSession();
  const auto prompt = Ask("Hello!");
  ASSERT_TRUE(session->Prefill(prompt).ok());
  const auto oracle = Oracle(prompt, 12);
  const int32_t vocab_size = DemoEngine().info().vocab_size;
  EXPECT_TRUE(absl::IsInvalidArgument(session->Prefill({})));
  for (const TokenId id : {-1, vocab_size, 1 << 30}) {
    const absl::Status status = session->Prefill({1, id});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(id)));
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(vocab_size - 1)));
  }
  const absl::Status status =
      session->Prefill(std::vector<TokenId>(session->max_context(), 1));
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("2048"));
  EXPECT_EQ(session->tokens(), prompt);
  ExpectGoesOnLike(*session, oracle);
}

// Case C9: prompts shorter than the convolution, and none.
TEST(SessionTest, PromptsOfAnyLengthInAnySplit) {
  const auto prompt = Ask("What is water?");
  const size_t most =
      testing::FewerIfEmulated<size_t>("tokens of a prompt in pieces", 5, 3);
  for (size_t length = 1; length <= most; ++length) {
    const std::vector<TokenId> part(prompt.begin(), prompt.begin() + length);
    const auto oracle = Oracle(part, 8);
    for (uint32_t splits = 0; splits < (1u << (length - 1)); ++splits) {
      auto session = NewSession();
      size_t begin = 0;
      for (size_t end = 1; end <= length; ++end) {
        if (end != length && !(splits >> (end - 1) & 1)) continue;
        ASSERT_TRUE(
            session
                ->Prefill(absl::MakeConstSpan(part).subspan(begin, end - begin))
                .ok());
        EXPECT_EQ(session->position(), static_cast<int64_t>(end));
        begin = end;
      }
      ExpectGoesOnLike(*session, oracle);
    }
  }
}

TEST(SessionTest, NothingToContinueIsSaid) {
  auto session = NewSession();
  EXPECT_TRUE(absl::IsFailedPrecondition(session->Start({})));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(session->Generate({}, Ignore).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(session->Next().status()));
  ASSERT_TRUE(session->Prefill(Ask("Hello!")).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(session->Next().status()));
  ASSERT_TRUE(session->Start({}).ok());
  EXPECT_TRUE(session->Next().ok());
  ASSERT_TRUE(session->Prefill({5}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(session->Next().status()))
      << "a prefill ends the loop";
}

TEST(SessionTest, BadGenerateOptionsAreNamed) {
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(Ask("Hello!")).ok());
  GenerateOptions options;
  for (const int32_t count : {0, -5}) {
    options.max_new_tokens = count;
    const absl::Status status = session->Start(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(status.message(), HasSubstr("max_new_tokens"));
  }
  options = {};
  options.stop_tokens = {3, 4096};
  const absl::Status status = session->Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("stop_tokens[1] is 4096"));
}

TEST(SessionTest, BadSessionOptionsAreNamed) {
  const auto expect = [](SessionOptions options, const char* text) {
    for (const absl::Status& status :
         {DemoEngine().NewSession(options).status(),
          DemoEngine().EstimateMemory(options).status()}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(status.message(), HasSubstr(text));
    }
  };
  SessionOptions options;
  options.max_context = -1;
  expect(options, "max_context is -1");
  options.max_context = 2049;
  expect(options, "max_context is 2049");
  options = {};
  options.draft_tokens = 8;
  expect(options, "draft_tokens is 8; at most 7");
  options.draft_tokens = -1;
  expect(options, "draft_tokens is -1");
  options.draft_tokens = 16;
  expect(options, "draft_tokens is 16");
  options = {};
  options.memory_limit_bytes = -1;
  expect(options, "memory_limit_bytes is -1");
}

TEST(SessionTest, MemoryIsEstimatedAndLimited) {
  SessionOptions plain, drafting;
  plain.draft_tokens = 0;
  const auto small = DemoEngine().EstimateMemory(plain);
  const auto large = DemoEngine().EstimateMemory(drafting);
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(small->draft_bytes, 0) << "a plain session pays nothing for drafts";
  EXPECT_GT(large->draft_bytes, 0);
  EXPECT_LT(small->recurrent_bytes, large->recurrent_bytes);
  EXPECT_EQ(small->kv_bytes, large->kv_bytes);

  drafting.memory_limit_bytes = large->total() - 1;
  const absl::Status status = DemoEngine().NewSession(drafting).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(large->total())));
  drafting.memory_limit_bytes = large->total();
  EXPECT_TRUE(DemoEngine().NewSession(drafting).ok());
}

class EchoDrafter : public Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    drafts->assign(max_drafts, sequence.back());
  }
};

// By sessions of all kinds, at the end of an answer with scores.
TEST(SessionTest, TakesTheMemoryThatWasEstimated) {
  std::vector<SessionOptions> kinds(7);  // The last: drafts of the model.
  kinds[0].draft_tokens = 0;
  kinds[1].draft_tokens = 3;
  kinds[2].draft_tokens = 7;
  kinds[2].rollback = Rollback::kSlots;
  kinds[3].lookup = true;
  kinds[4].lookup = true;
  kinds[4].draft_tokens = 5;
  kinds[5].drafter = std::make_shared<EchoDrafter>();
  GenerateOptions rules;
  rules.max_new_tokens = testing::FewerIfEmulated("tokens with scores", 60, 8);
  rules.ignore_model_stop_tokens = true;
  rules.logits = true;
  std::vector<int32_t> contexts = {100, 0};
  contexts.resize(testing::FewerIfEmulated("contexts to measure", 2, 1));
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (const int32_t context : contexts) {
      SCOPED_TRACE(absl::StrCat("kind ", i, ", max_context ", context));
      SessionOptions options = kinds[i];
      options.max_context = context;
      const auto memory = DemoEngine().EstimateMemory(options);
      ASSERT_TRUE(memory.ok()) << memory.status();
      const auto run = [&] {
        auto session = DemoEngine().NewSession(options);
        EXPECT_TRUE(session.ok()) << session.status();
        EXPECT_TRUE((*session)->Prefill({1, 2, 3}).ok());
        EXPECT_TRUE(
            (*session)
                ->Generate(rules, [](const TokenEvent&) { return true; })
                .ok());
        return *std::move(session);
      };
      run();  // The engine's own buffers grow to what is needed.
      const int64_t before = LiveAllocatedBytes();
      const int64_t allocations = AllocationCount();
      auto session = run();
      const int64_t used = LiveAllocatedBytes() - before;
      const int64_t estimated = memory->total() - memory->token_bytes;
      EXPECT_GE(used, estimated);
      // What the allocator adds to each.
      EXPECT_LE(used, estimated + 128 * (AllocationCount() - allocations));
      EXPECT_EQ(session->tokens().capacity() * sizeof(TokenId),
                memory->token_bytes);
      session.reset();
      EXPECT_EQ(LiveAllocatedBytes(), before);
    }
  }
}

TEST(SessionTest, NoMemoryIsAnErrorWhereverItStrikes) {
  const int64_t before = LiveAllocatedBytes();
  int failures = 0;
  for (int nth = 1;; ++nth) {
    absl::Status status;
    {
      const ScopedAllocationFailure failure(nth);
      status = DemoEngine().NewSession().status();
    }
    EXPECT_EQ(LiveAllocatedBytes(), before);
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    ++failures;
  }
  EXPECT_GT(failures, 10);
}

TEST(SessionTest, NoMemoryAtOpenIsAnErrorWhereverItStrikes) {
  int failures = 0;
  for (int nth = 1;; nth += 1 + nth / 8) {
    absl::Status status;
    {
      const ScopedAllocationFailure failure(nth, /*and_all_after=*/true);
      status = Engine::Open(testing::DemoPair(), {1}).status();
    }
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    ++failures;
  }
  EXPECT_GT(failures, 5);
}

TEST(SessionTest, MaxNewTokensIsExactAndLeavesAUsableSession) {
  const auto prompt = Ask("What is a computer?");
  const auto oracle = Oracle(prompt, 40);
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(prompt).ok());
  for (int32_t count = 1; count <= 8; ++count) {
    GenerateOptions options;
    options.max_new_tokens = count;
    options.ignore_model_stop_tokens = true;
    const auto result = session->Generate(options, Ignore);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->delivered, count);
    EXPECT_EQ(result->reason, FinishReason::kMaxTokens);
  }
  ExpectGoesOnLike(*session, oracle);
}

// Case C11: the end lies inside a block that was accepted whole.
TEST(SessionTest, AStopTokenInsideABlockEndsThere) {
  const auto prompt = Ask("What can you do?");
  const auto oracle = Oracle(prompt, 20);
  const size_t step =
      9 / testing::FewerIfEmulated<size_t>("of nine stops", 9, 3);
  for (size_t at = 0; at < 10; at += step) {
    const TokenId stop = oracle[prompt.size() + at];
    size_t first = 0;
    while (oracle[prompt.size() + first] != stop) ++first;
    auto session = NewSession();
    ASSERT_TRUE(session->Prefill(prompt).ok());
    GenerateOptions options;
    options.stop_tokens = {stop};
    std::vector<std::string> texts;
    const auto result =
        session->Generate(options, [&](const TokenEvent& token) {
          texts.emplace_back(token.text);
          return true;
        });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->reason, FinishReason::kStopToken);
    EXPECT_EQ(result->delivered, static_cast<int32_t>(first + 1));
    EXPECT_EQ(texts.back(), "") << "a stop token is not printed";
    EXPECT_EQ(session->tokens().back(), stop) << "and belongs to the sequence";
    EXPECT_EQ(session->stats().delivered_tokens,
              static_cast<int64_t>(first + 1));
    ExpectGoesOnLike(*session, oracle);
  }
}

// Case C12: the end marker is in the model's context in all later turns.
TEST(SessionTest, TurnsCommitTheSameTokensWithAndWithoutDrafts) {
  SessionOptions plain;
  plain.draft_tokens = 0;
  auto one = NewSession(plain);
  auto two = NewSession();
  std::vector<const char*> texts = {"What is a dog?", "Use it in a sentence.",
                                    "Thanks!", "What is water?", "12 x 10"};
  texts.resize(testing::FewerIfEmulated("turns", 5, 2));
  for (const char* text : texts) {
    for (Session* session : {one.get(), two.get()}) {
      const auto ids = DemoEngine().chat().RenderAfter(session->tokens(),
                                                       {{Role::kUser, text}});
      ASSERT_TRUE(ids.ok());
      ASSERT_TRUE(session->Prefill(*ids).ok());
      ASSERT_TRUE(session->Generate({}, Ignore).ok());
    }
    EXPECT_EQ(one->tokens(), two->tokens());
    EXPECT_EQ(one->tokens().back(), 4092) << "<|im_end|>";
  }
}

// Case C19: the block shrinks, the last token is the oracle's, then the end.
TEST(SessionTest, TheContextFillsToTheLastToken) {
  const auto prompt = Ask("Is a dog a kind of animal?");
  const auto oracle = Oracle(prompt, 32);
  const int32_t context = 32;
  for (const std::optional<int32_t> drafts :
       {std::optional<int32_t>(), std::optional<int32_t>(0)}) {
    std::vector<int32_t> lengths = {1,  28, 31, 32, 10, 20,
                                    24, 25, 26, 27, 29, 30};
    lengths.resize(testing::FewerIfEmulated("lengths of prompts", 12, 4));
    for (const int32_t length : lengths) {
      SessionOptions options;
      options.max_context = context;
      options.draft_tokens = drafts;
      auto session = NewSession(options);
      std::vector<TokenId> start(oracle.begin(), oracle.begin() + length);
      ASSERT_TRUE(session->Prefill(start).ok());
      const auto result = session->Generate(Endless(), Ignore);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->reason, FinishReason::kContextFull);
      EXPECT_EQ(result->delivered, context - length);
      EXPECT_EQ(session->position(), context);
      if (length >= static_cast<int32_t>(prompt.size())) {
        EXPECT_TRUE(std::equal(session->tokens().begin(),
                               session->tokens().end(), oracle.begin()));
      }
      const auto again = session->Generate(Endless(), Ignore);
      ASSERT_TRUE(again.ok());
      EXPECT_EQ(again->delivered, 0);
      EXPECT_EQ(again->reason, FinishReason::kContextFull);
      EXPECT_TRUE(absl::IsOutOfRange(session->Prefill({1})));
    }
  }
}

// Stops at every token, from the callback, and goes on as if nothing happened.
TEST(SessionTest, StoppingAnywhereAndGoingOn) {
  const auto prompt = Ask("What does run mean?");
  const auto oracle = Oracle(prompt, 30);
  for (const bool cancel : {false, true}) {
    auto session = NewSession();
    ASSERT_TRUE(session->Prefill(prompt).ok());
    for (int32_t count = 1; count < 6; ++count) {
      int32_t seen = 0;
      const auto result = session->Generate(Endless(), [&](const TokenEvent&) {
        if (++seen < count) return true;
        if (!cancel) return false;
        session->Cancel();
        return true;
      });
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->reason, FinishReason::kCancelled);
      EXPECT_EQ(result->delivered, count);
    }
    ExpectGoesOnLike(*session, oracle);
  }
}

TEST(SessionTest, CancelEndsALoopOfNext) {
  const auto prompt = Ask("What is a table?");
  const auto oracle = Oracle(prompt, 20);
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(prompt).ok());
  ASSERT_TRUE(session->Start(Endless()).ok());
  ASSERT_TRUE(session->Next().ok());
  session->Cancel();
  const auto token = session->Next();
  ASSERT_TRUE(token.ok());
  EXPECT_FALSE(token->has_value());
  EXPECT_EQ(session->finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(session->position(), static_cast<int64_t>(prompt.size() + 1));
  ExpectGoesOnLike(*session, oracle);
}

// From another thread, at whatever moment: in a prompt, a draft, a block.
TEST(SessionTest, CancelFromAnotherThread) {
  std::vector<TokenId> prompt;
  const size_t most =
      testing::FewerIfEmulated<size_t>("tokens of a cancelled prompt", 400, 80);
  while (prompt.size() < most) {
    const auto part = Ask("What is a dog?");
    prompt.insert(prompt.end(), part.begin(), part.end());
  }
  const auto oracle = Oracle(prompt, 24);
  const int rounds = testing::FewerIfEmulated("rounds of cancels", 4, 2);
  for (int round = 0; round < rounds; ++round) {
    auto session = NewSession();
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 << round));
        session->Cancel();
      }
    });
    // However often it is stopped, it gets there.
    size_t cancels = 0;
    while (session->tokens().size() < oracle.size()) {
      const size_t size = session->tokens().size();
      if (size < prompt.size()) {
        const absl::Status status =
            session->Prefill(absl::MakeConstSpan(prompt).subspan(
                size, std::min<size_t>(40, prompt.size() - size)));
        ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
        cancels += !status.ok();
      } else {
        GenerateOptions options = Endless();
        options.max_new_tokens = static_cast<int32_t>(oracle.size() - size);
        ASSERT_TRUE(session->Generate(options, Ignore).ok());
      }
      if (cancels > 50) done = true;
    }
    done = true;
    other.join();
    EXPECT_EQ(session->tokens(), oracle);
  }
}

TEST(SessionTest, CallsFromInsideACallbackAreRefused) {
  const auto prompt = Ask("Hello!");
  const auto oracle = Oracle(prompt, 10);
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(prompt).ok());
  int calls = 0;
  GenerateOptions options = Endless();
  options.max_new_tokens = 4;
  const auto result = session->Generate(options, [&](const TokenEvent& token) {
    ++calls;
    const std::string text(token.text);
    EXPECT_TRUE(absl::IsFailedPrecondition(session->Prefill({1})));
    EXPECT_TRUE(absl::IsFailedPrecondition(session->Start({})));
    EXPECT_TRUE(absl::IsFailedPrecondition(session->Next().status()));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(session->Generate({}, Ignore).status()));
    EXPECT_EQ(session->TakeTail(), "");
    EXPECT_EQ(token.text, text);
    EXPECT_EQ(session->position(), static_cast<int64_t>(prompt.size() + calls));
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->delivered, 4);
  ExpectGoesOnLike(*session, oracle);
}

TEST(SessionTest, ResetForgetsEverything) {
  const auto prompt = Ask("What is the opposite of hot?");
  const auto oracle = Oracle(prompt, 10);
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(Ask("What is a dog?")).ok());
  ASSERT_TRUE(session->Start(Endless()).ok());
  ASSERT_TRUE(session->Next().ok());
  session->Reset();
  EXPECT_EQ(session->position(), 0);
  EXPECT_EQ(session->stats().delivered_tokens, 0);
  EXPECT_EQ(session->finish_reason(), FinishReason::kNone);
  EXPECT_TRUE(absl::IsFailedPrecondition(session->Start({})));
  ASSERT_TRUE(session->Prefill(prompt).ok());
  ExpectGoesOnLike(*session, oracle);
}

TEST(SessionTest, ResetFromACallbackWaitsForItsEnd) {
  const auto prompt = Ask("Hello!");
  const auto oracle = Oracle(prompt, 10);
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(prompt).ok());
  const auto result = session->Generate(Endless(), [&](const TokenEvent&) {
    session->Reset();
    EXPECT_GT(session->position(), 0);
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kCancelled);
  EXPECT_EQ(result->delivered, 1);
  EXPECT_EQ(session->position(), 0);
  ASSERT_TRUE(session->Prefill(prompt).ok());
  ExpectGoesOnLike(*session, oracle);
}

TEST(SessionTest, OutlivesItsEngine) {
  const auto prompt = Ask("Thanks!");
  const auto oracle = Oracle(prompt, 10);
  auto engine = Engine::Open(testing::DemoPair(), {1});
  ASSERT_TRUE(engine.ok());
  auto session = (*engine)->NewSession();
  ASSERT_TRUE(session.ok());
  engine->reset();
  ASSERT_TRUE((*session)->Prefill(prompt).ok());
  ExpectGoesOnLike(**session, oracle);
}

// Case C7: neighbours, interleaved step by step.
TEST(SessionTest, SessionsDoNotDisturbEachOther) {
  const std::vector<std::string> questions = {
      "What is a dog?", "What is a dog?", "Give me a synonym of big.",
      "What is 12 plus 30?"};
  const int tokens = testing::FewerIfEmulated("tokens beside others", 25, 8);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<TokenId>> oracles;
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto prompt = Ask(questions[i]);
    oracles.push_back(Oracle(prompt, tokens));
    SessionOptions options;
    options.draft_tokens = static_cast<int32_t>(2 * i + 1);
    sessions.push_back(NewSession(options));
    ASSERT_TRUE(sessions[i]->Prefill(prompt).ok());
    GenerateOptions generate = Endless();
    generate.max_new_tokens = tokens;
    ASSERT_TRUE(sessions[i]->Start(generate).ok());
  }
  for (int round = 0; round < tokens; ++round) {
    for (auto& session : sessions) ASSERT_TRUE(session->Next().ok());
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_EQ(sessions[i]->tokens(), oracles[i]) << questions[i];
  }
}

TEST(SessionTest, SessionsOnThreadsOfTheirOwn) {
  const std::vector<std::string> questions = {"What is a dog?",
                                              "What does run mean?", "12 x 10"};
  std::vector<std::vector<TokenId>> prompts, oracles, results(3);
  for (const std::string& question : questions) {
    prompts.push_back(Ask(question));
    oracles.push_back(Oracle(prompts.back(), 20));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < questions.size(); ++i) {
    threads.emplace_back([&, i] {
      auto session = NewSession();
      EXPECT_TRUE(session->Prefill(prompts[i]).ok());
      GenerateOptions generate = Endless();
      generate.max_new_tokens = 20;
      EXPECT_TRUE(session->Generate(generate, Ignore).ok());
      results[i] = session->tokens();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(results[i], oracles[i]);
  }
}

TEST(SessionTest, CountersAddUp) {
  auto session = NewSession();
  for (const char* text : {"What is a dog?", "What is a florbin?"}) {
    const auto ids = DemoEngine().chat().RenderAfter(session->tokens(),
                                                     {{Role::kUser, text}});
    ASSERT_TRUE(session->Prefill(*ids).ok());
    ASSERT_TRUE(session->Generate({}, Ignore).ok());
  }
  const SessionStats s = session->stats();
  EXPECT_EQ(s.prefill_tokens + s.delivered_tokens, session->position());
  EXPECT_EQ(s.delivered_tokens + s.discarded, s.accepted + s.steps);
  int64_t tried = 0, accepted = 0;
  ASSERT_EQ(s.tried_at.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    tried += s.tried_at[i];
    accepted += s.accepted_at[i];
    EXPECT_LE(s.accepted_at[i], s.tried_at[i]);
    if (i > 0) {
      EXPECT_LE(s.accepted_at[i], s.accepted_at[i - 1]);
    }
  }
  EXPECT_EQ(tried, s.drafted);
  EXPECT_EQ(accepted, s.accepted);
  EXPECT_GT(s.verify_time, absl::ZeroDuration());
  EXPECT_GT(s.time_to_first_token, absl::ZeroDuration());
}

// The host app computes in another mode; it gets our bits, and its mode back.
TEST(SessionTest, TheHostsFloatingPointModeChangesNothing) {
  const auto prompt = Ask("What is a computer?");
  const auto run = [&prompt] {
    auto session = NewSession();
    EXPECT_TRUE(session->Prefill(prompt).ok());
    GenerateOptions options = Endless();
    options.max_new_tokens = 10;
    options.logits = true;
    std::vector<float> logits;
    EXPECT_TRUE(session
                    ->Generate(options,
                               [&](const TokenEvent& token) {
                                 logits.insert(logits.end(),
                                               token.logits.begin(),
                                               token.logits.end());
                                 return true;
                               })
                    .ok());
    return logits;
  };
  const std::vector<float> expected = run();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const std::vector<float> logits = run();
    EXPECT_EQ(std::fegetround(), mode);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(logits, expected);
  }
}

TEST(SessionTest, LogitsAreTheTargetsOwn) {
  const auto prompt = Ask("Hello!");
  auto session = NewSession();
  ASSERT_TRUE(session->Prefill(prompt).ok());
  GenerateOptions options = Endless();
  options.max_new_tokens = 12;
  ASSERT_TRUE(session
                  ->Generate(options,
                             [](const TokenEvent& token) {
                               EXPECT_TRUE(token.logits.empty());
                               return true;
                             })
                  .ok());
  options.logits = true;
  ASSERT_TRUE(session
                  ->Generate(options,
                             [](const TokenEvent& token) {
                               EXPECT_EQ(token.logits.size(), 4096u);
                               const auto best = std::max_element(
                                   token.logits.begin(), token.logits.end());
                               EXPECT_EQ(best - token.logits.begin(), token.id);
                               return true;
                             })
                  .ok());
}

class BadDrafter : public Drafter {
 public:
  void Propose(absl::Span<const TokenId>, int32_t,
               std::vector<TokenId>* drafts) override {
    drafts->push_back(good ? 7 : 1 << 20);
  }
  bool good = false;
};

TEST(SessionTest, ADrafterWithNonsenseIsNamedAndTheSessionLives) {
  const auto prompt = Ask("Hello!");
  const auto oracle = Oracle(prompt, 10);
  auto drafter = std::make_shared<BadDrafter>();
  SessionOptions options;
  options.drafter = drafter;
  auto session = NewSession(options);
  ASSERT_TRUE(session->Prefill(prompt).ok());
  const auto result = session->Generate(Endless(), Ignore);
  EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
  EXPECT_THAT(result.status().message(), HasSubstr("1048576"));
  EXPECT_EQ(session->tokens(), prompt);
  drafter->good = true;
  ExpectGoesOnLike(*session, oracle);
}

TEST(EngineTest, OpenNamesWhatIsWrong) {
  const ModelFiles pair = testing::DemoPair();
  const auto expect = [](const ModelFiles& files, absl::StatusCode code,
                         const std::string& text) {
    const absl::Status status = Engine::Open(files).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  expect({"", ""}, absl::StatusCode::kInvalidArgument, "target");
  expect({"/no/such/file.gdn", ""}, absl::StatusCode::kNotFound,
         "/no/such/file.gdn");
  expect({pair.target, "/no/such/draft.gdn"}, absl::StatusCode::kNotFound,
         "/no/such/draft.gdn");
  expect({pair.draft, ""}, absl::StatusCode::kInvalidArgument, "a draft");
  expect({pair.target, pair.target}, absl::StatusCode::kInvalidArgument,
         "a target");
  for (const int threads : {-1, 257}) {
    const absl::Status status = Engine::Open(pair, {threads}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(threads)));
  }
}

TEST(EngineTest, KnowsItsModel) {
  const ModelInfo& info = DemoEngine().info();
  EXPECT_EQ(info.name, "dictionary");
  EXPECT_EQ(info.vocab_size, 4096);
  EXPECT_EQ(info.max_context, 2048);
  EXPECT_EQ(info.draft_block, 8);
  EXPECT_EQ(info.threads, 1);
  EXPECT_TRUE(info.has_tokenizer);
  EXPECT_FALSE(info.cpu_target.empty());
  EXPECT_GT(info.weight_bytes, 4 * (7906080 + 1771264) - 1);
}

// Case S15.
TEST(EngineTest, ADraftChangesNoPrompt) {
  auto plain = Engine::Open({testing::DemoPair().target, ""}, {1});
  ASSERT_TRUE(plain.ok());
  for (const Thinking thinking :
       {Thinking::kUnset, Thinking::kOn, Thinking::kOff}) {
    RenderOptions options;
    options.thinking = thinking;
    auto with = DemoEngine().chat().Render({{Role::kUser, "Why?"}}, options);
    auto without = (*plain)->chat().Render({{Role::kUser, "Why?"}}, options);
    ASSERT_TRUE(with.ok()) << with.status();
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_EQ(*with, *without);
  }
}

TEST(EngineTest, WithoutADraftNothingIsDrafted) {
  auto engine = Engine::Open({testing::DemoPair().target, ""}, {1});
  ASSERT_TRUE(engine.ok());
  SessionOptions options;
  options.draft_tokens = 1;
  EXPECT_TRUE(absl::IsInvalidArgument((*engine)->NewSession(options).status()));
  auto session = (*engine)->NewSession();
  ASSERT_TRUE(session.ok());
  const auto prompt = Ask("Hello!");
  ASSERT_TRUE((*session)->Prefill(prompt).ok());
  ExpectGoesOnLike(**session, Oracle(prompt, 9));
  EXPECT_EQ((*session)->stats().drafted, 0);
}

}  // namespace
}  // namespace deltaedge
