// SPDX-License-Identifier: Apache-2.0

// However much is drafted and by whom, chosen step by step from times that no
// two runs share: tokens and scores are those of plain decoding.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/spec/drafter_wrapper.h"
#include "engine/stats.h"
#include "engine/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::SameBits;
using testing::ScriptedDrafter;

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  SessionStats stats;
};

// Replaces every second round of drafts by nonsense and cuts the others.
class Meddler : public ForwardingDrafter {
 public:
  using ForwardingDrafter::ForwardingDrafter;
  void Review(absl::Span<const TokenId> sequence, const CostCurve& verifying,
              std::vector<TokenId>* drafts) override {
    ForwardingDrafter::Review(sequence, verifying, drafts);
    if (++rounds_ % 2 == 0) {
      std::fill(drafts->begin(), drafts->end(), rounds_ % 100);
    } else {
      drafts->resize(drafts->size() / 2);
    }
  }

 private:
  int32_t rounds_ = 0;
};

class AdaptiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.num_threads = 1;
    auto engine = Engine::Open(testing::DemoPair(), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    auto ids = engine_->chat().Render({{Role::kUser, "What is a dog?"}});
    ASSERT_TRUE(ids.ok()) << ids.status();
    prompt_ = *std::move(ids);
  }

  static int32_t Some(int32_t tokens) {
    return testing::FewerIfEmulated("tokens of " + std::to_string(tokens),
                                    tokens, tokens / 6);
  }

  GenerateOptions Rules(int32_t tokens) const {
    GenerateOptions options;
    options.max_new_tokens = tokens;
    options.ignore_model_stop_tokens = true;
    options.logits = true;
    return options;
  }

  Answer Ask(SessionOptions options, const GenerateOptions& rules) {
    options.max_context = 512;
    auto session = engine_->NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE((*session)->Prefill(prompt_).ok());
    Answer answer;
    auto result = (*session)->Generate(rules, [&](const TokenEvent& event) {
      answer.tokens.push_back(event.id);
      answer.logits.insert(answer.logits.end(), event.logits.begin(),
                           event.logits.end());
      return true;
    });
    EXPECT_TRUE(result.ok()) << result.status();
    answer.stats = (*session)->stats();
    return answer;
  }

  Answer Plain(const GenerateOptions& rules) {
    SessionOptions options;
    options.draft_tokens = 0;
    return Ask(options, rules);
  }

  static void ExpectEqual(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_TRUE(SameBits(a.logits, b.logits));
  }

  std::shared_ptr<ScriptedDrafter> Script(const Answer& plain, int32_t right) {
    std::vector<TokenId> all = prompt_;
    all.insert(all.end(), plain.tokens.begin(), plain.tokens.end());
    return std::make_shared<ScriptedDrafter>(
        all, engine_->info().vocab_size, [right](int, int32_t max_drafts) {
          return ScriptedDrafter::Round{max_drafts, right};
        });
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> prompt_;
};

TEST_F(AdaptiveTest, TheModelsDraftsWithTheLookupBesideThem) {
  // Of all sessions: what the first one learns may keep others from drafting.
  int64_t drafted = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    GenerateOptions rules = Rules(Some(120));
    rules.sampling.temperature = temperature;
    rules.sampling.seed = 11;
    const Answer plain = Plain(rules);
    for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
      SessionOptions options;
      options.rollback = rollback;
      const Answer adaptive = Ask(options, rules);
      ExpectEqual(adaptive, plain);
      drafted += adaptive.stats.drafted;
    }
  }
  EXPECT_GT(drafted, 0);
}

// Greedy picks without scores are made on the way through the vocabulary.
TEST_F(AdaptiveTest, TheSameTokensWithoutScores) {
  GenerateOptions rules = Rules(Some(80));
  const Answer plain = Plain(rules);
  rules.logits = false;
  EXPECT_EQ(Plain(rules).tokens, plain.tokens);
  EXPECT_EQ(Ask(SessionOptions(), rules).tokens, plain.tokens);
  SessionOptions pinned;
  pinned.draft_tokens = 7;
  EXPECT_EQ(Ask(pinned, rules).tokens, plain.tokens);
}

// As applications run it: drafts are cut by how sure the draft model is, and
// where an answer ends.
TEST_F(AdaptiveTest, AnswersThatEndByThemselves) {
  int64_t cut = 0;
  std::vector<const char*> questions = {
      "What is a dog?",         "What is a florbin?", "Count from 4 to 7.",
      "What does winter mean?", "Who are you?",       "What is a dog?"};
  questions.resize(testing::FewerIfEmulated("questions", 6, 2));
  for (const char* question : questions) {
    SCOPED_TRACE(question);
    auto ids = engine_->chat().Render({{Role::kUser, question}});
    ASSERT_TRUE(ids.ok()) << ids.status();
    prompt_ = *std::move(ids);
    GenerateOptions rules = Rules(100);
    rules.ignore_model_stop_tokens = false;
    const Answer plain = Plain(rules);
    ASSERT_LT(plain.tokens.size(), 100u);
    SessionOptions pinned;
    pinned.draft_tokens = 7;
    const Answer drafted = Ask(pinned, rules);
    ExpectEqual(drafted, plain);
    cut += 7 * drafted.stats.steps - drafted.stats.drafted;
    EXPECT_EQ(drafted.stats.discarded, 0) << "nothing is computed behind it";
    ExpectEqual(Ask(SessionOptions(), rules), plain);
  }
  EXPECT_GT(cut, 0);
}

TEST_F(AdaptiveTest, TheLookupAlone) {
  // Twice the same, so that there is something to look up.
  prompt_.insert(prompt_.end(), prompt_.begin(), prompt_.end());
  const Answer plain = Plain(Rules(Some(120)));
  for (const int32_t drafts : {-1, 1, 4, 15}) {
    SessionOptions options;
    options.lookup = true;
    if (drafts > 0) options.draft_tokens = drafts;
    const Answer looked_up = Ask(options, Rules(Some(120)));
    ExpectEqual(looked_up, plain);
    EXPECT_GT(looked_up.stats.drafted, 0);
    EXPECT_EQ(looked_up.stats.lookup_drafted, looked_up.stats.drafted);
    EXPECT_EQ(looked_up.stats.lookup_accepted, looked_up.stats.accepted);
    if (drafts > 0) {
      EXPECT_EQ(looked_up.stats.last_choice.source, DraftSource::kLookup);
    }
  }
}

TEST_F(AdaptiveTest, AnApplicationsDrafter) {
  const Answer plain = Plain(Rules(Some(150)));
  int64_t drafted = 0;
  for (const int32_t right : {15, 3, 1, 0}) {
    SessionOptions options;
    options.drafter = Script(plain, right);
    const Answer answer = Ask(options, Rules(Some(150)));
    ExpectEqual(answer, plain);
    drafted += answer.stats.drafted;
  }
  EXPECT_GT(drafted, 0);
}

TEST_F(AdaptiveTest, GivesUpDraftsThatNeverAgree) {
  const Answer plain = Plain(Rules(Some(300)));
  SessionOptions options;
  options.drafter = Script(plain, 0);
  const Answer drafted = Ask(options, Rules(Some(300)));
  ExpectEqual(drafted, plain);
  const SessionStats& stats = drafted.stats;
  // Fifteen a step would be thousands. What takes their place is up to the
  // clock: nothing, or what the look-up finds.
  EXPECT_LT(stats.drafted - stats.lookup_drafted, 500);
  EXPECT_LE(stats.plain_by_choice + stats.probes, stats.steps);
}

TEST_F(AdaptiveTest, DraftsThatSomebodyElseMeddlesWith) {
  const Answer plain = Plain(Rules(Some(120)));
  int wrapped = 0;
  const ScopedDrafterWrapper wrapper(
      [&wrapped](std::unique_ptr<BlockDrafter> drafter) {
        ++wrapped;
        return std::make_unique<Meddler>(std::move(drafter));
      });
  SessionOptions options;
  options.draft_tokens = 6;
  const Answer drafted = Ask(options, Rules(Some(120)));
  EXPECT_EQ(wrapped, 1);
  ExpectEqual(drafted, plain);
  EXPECT_GT(drafted.stats.accepted, 0);
  EXPECT_GT(drafted.stats.tried_at[2], drafted.stats.tried_at[3]);
  EXPECT_EQ(drafted.stats.accepted_at[3], 0) << "only nonsense goes so far";
}

TEST_F(AdaptiveTest, SaysWhatItChose) {
  SessionOptions options;
  const Answer free = Ask(options, Rules(Some(60)));
  EXPECT_NE(free.stats.last_choice.reason, DraftReason::kPinned);
  options.draft_tokens = 3;
  const Answer pinned = Ask(options, Rules(Some(60)));
  EXPECT_EQ(pinned.stats.last_choice.reason, DraftReason::kPinned);
  EXPECT_EQ(pinned.stats.last_choice.source, DraftSource::kModel);
  EXPECT_EQ(pinned.stats.lookup_drafted, 0);
  EXPECT_EQ(pinned.stats.plain_by_choice, 0);
  EXPECT_EQ(pinned.stats.probes, 0);
  for (size_t i = 0; i < pinned.stats.tried_at.size(); ++i) {
    EXPECT_GT(pinned.stats.tried_at[i], 0);
  }
}

TEST_F(AdaptiveTest, LookupAndADrafterExcludeEachOther) {
  SessionOptions options;
  options.lookup = true;
  options.drafter = Script({}, 0);
  const absl::Status status = engine_->NewSession(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("lookup"));
}

TEST_F(AdaptiveTest, ALookupNeedsNoDraftFile) {
  EngineOptions options;
  options.num_threads = 1;
  auto engine = Engine::Open({testing::DemoPair().target, ""}, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  SessionOptions with, without;
  with.lookup = true;
  with.max_context = 1024;
  EXPECT_EQ((*engine)->EstimateMemory(with)->draft_bytes, 3 * 2048 * 4);
  EXPECT_TRUE((*engine)->NewSession(with).ok());
  without.draft_tokens = 1;
  const absl::Status status = (*engine)->NewSession(without).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("lookup"));
}

// Cases C1, C3, C4 with look-up drafts: rounds with drafts, wrong ones and
// rounds without any in between.
TEST_F(AdaptiveTest, ForksAndRestoresGoOn) {
  prompt_.insert(prompt_.end(), prompt_.begin(), prompt_.end());
  const Answer plain = Plain(Rules(Some(80)));
  SessionOptions options;
  options.lookup = true;
  options.max_context = 512;
  auto session = engine_->NewSession(options);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->Prefill(prompt_).ok());
  ASSERT_TRUE((*session)->Start(Rules(Some(80))).ok());
  auto snapshot = (*session)->Take();
  ASSERT_TRUE(snapshot.ok());
  const size_t middle = plain.tokens.size() / 2 - 3;
  for (int round = 0; round < 3; ++round) {
    std::vector<TokenId> said;
    while (true) {
      auto event = (*session)->Next();
      ASSERT_TRUE(event.ok()) << event.status();
      if (!event->has_value()) break;
      said.push_back((*event)->id);
      if (said.size() != middle) continue;
      auto fork = (*session)->Fork();
      ASSERT_TRUE(fork.ok());
      std::vector<TokenId> rest;
      for (auto e = (*fork)->Next(); e.ok() && e->has_value();
           e = (*fork)->Next()) {
        rest.push_back((*e)->id);
      }
      EXPECT_TRUE(std::equal(rest.begin(), rest.end(),
                             plain.tokens.begin() + middle,
                             plain.tokens.end()));
    }
    EXPECT_EQ(said, plain.tokens);
    ASSERT_TRUE((*session)->Restore(*snapshot).ok());
  }
}

}  // namespace
}  // namespace deltaedge
