// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_ENGINE_SESSION_RUNS_H_
#define DELTAEDGE_TESTS_ENGINE_SESSION_RUNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/emulated.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge::testing {

// --- Running sessions --------------------------------------------------------

// What a session said since Start(), kept.
struct Answer {
  std::vector<TokenId> ids;
  std::vector<std::string> texts;  // Of each token.
  std::vector<float> logits;       // [ids.size(), vocab_size]
  FinishReason reason = FinishReason::kNone;
  std::string tail;
  absl::Status status;

  // Of the first `count` tokens.
  std::string Text(size_t count) const {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += texts[i];
    return text;
  }
  std::string Text() const { return Text(texts.size()); }
};

// Who drives it.
enum class By { kGenerate, kNext, kStepMany };

// Everything but the sequence's length, which only prefills and tokens change.
inline int64_t Unaccounted(const Session& session) {
  const SessionStats s = session.stats();
  return session.position() - s.prefill_tokens - s.delivered_tokens;
}

inline void ExpectCountersAddUp(const Session& session) {
  const SessionStats s = session.stats();
  EXPECT_EQ(s.accepted + s.steps,
            s.delivered_tokens + s.discarded + session.waiting());
  EXPECT_EQ(std::accumulate(s.tried_at.begin(), s.tried_at.end(), int64_t{0}),
            s.drafted);
  EXPECT_EQ(
      std::accumulate(s.accepted_at.begin(), s.accepted_at.end(), int64_t{0}),
      s.accepted);
  for (size_t i = 0; i < s.tried_at.size(); ++i) {
    EXPECT_LE(s.accepted_at[i], s.tried_at[i]);
  }
  EXPECT_LE(s.draft_steps, s.steps);
}

// Runs `session` to an end and checks at every token what holds at all times:
// where it is, and what is counted. `on_token` is what a Generate's callback
// is; with the others, false calls Cancel().
inline Answer Say(const Engine& engine, Session& session,
                  const GenerateOptions& rules, By by = By::kGenerate,
                  const std::function<bool(const TokenEvent&)>& on_token = {}) {
  Answer answer;
  const int64_t unaccounted = Unaccounted(session);
  const int64_t delivered = session.stats().delivered_tokens;
  const auto keep = [&](const TokenEvent& token) {
    answer.ids.push_back(token.id);
    answer.texts.emplace_back(token.text);
    answer.logits.insert(answer.logits.end(), token.logits.begin(),
                         token.logits.end());
    EXPECT_EQ(token.position, session.position() - 1);
    EXPECT_EQ(token.id, session.tokens().back());
    EXPECT_EQ(Unaccounted(session), unaccounted);
    ExpectCountersAddUp(session);
    return !on_token || on_token(token);
  };
  if (by == By::kGenerate) {
    const auto result = session.Generate(rules, keep);
    answer.status = result.status();
    if (!result.ok()) {
      answer.tail = session.TakeTail();
    } else {
      answer.tail = result->tail;
      EXPECT_EQ(result->delivered, static_cast<int32_t>(answer.ids.size()));
      EXPECT_EQ(result->reason, session.finish_reason());
    }
  } else {
    answer.status = session.Start(rules);
    while (answer.status.ok() &&
           session.finish_reason() == FinishReason::kNone) {
      if (by == By::kStepMany && session.waiting() == 0) {
        const auto each = engine.StepMany({&session});
        EXPECT_TRUE(each.ok()) << each.status();
        answer.status = each->front();
        continue;
      }
      const auto token = session.Next();
      answer.status = token.status();
      if (token.ok() && token->has_value() && !keep(**token)) session.Cancel();
    }
    if (answer.status.ok()) {
      const auto token = session.Next();
      EXPECT_TRUE(token.ok() && !token->has_value()) << token.status();
    }
    answer.tail = session.TakeTail();
  }
  answer.reason = session.finish_reason();
  EXPECT_EQ(session.TakeTail(), "");
  EXPECT_EQ(session.stats().delivered_tokens - delivered,
            static_cast<int64_t>(answer.ids.size()));
  EXPECT_EQ(Unaccounted(session), unaccounted);
  ExpectCountersAddUp(session);
  return answer;
}

// That `answer` is what `truth` says first, by the same bits of the scores.
inline void ExpectBeginning(const Answer& answer, const Answer& truth,
                            size_t count) {
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_LE(count, truth.ids.size());
  EXPECT_EQ(answer.ids,
            std::vector<TokenId>(truth.ids.begin(), truth.ids.begin() + count));
  const size_t vocab_size = truth.logits.size() / truth.ids.size();
  ASSERT_EQ(answer.logits.size(), count * vocab_size);
  EXPECT_TRUE(SameBits(answer.logits.data(), truth.logits.data(),
                       answer.logits.size()));
}

// --- Ways to draft -----------------------------------------------------------

struct Way {
  std::string name;
  int32_t rows;  // Of a block.
  // Options of a session whose tokens will be `truth`, prompt included.
  std::function<SessionOptions(const std::vector<TokenId>& truth,
                               int32_t vocab_size)>
      options;
};

inline Way Plain(Rollback rollback = Rollback::kJournal) {
  return {"plain", 1, [rollback](const std::vector<TokenId>&, int32_t) {
            SessionOptions options;
            options.draft_tokens = 0;
            options.rollback = rollback;
            return options;
          }};
}

// The draft model, as it comes.
inline Way DFlash(Rollback rollback = Rollback::kJournal) {
  return {"dflash", 8, [rollback](const std::vector<TokenId>&, int32_t) {
            SessionOptions options;
            options.rollback = rollback;
            return options;
          }};
}

// `drafts` a block, the first right(round) of them right.
inline Way Scripted(const std::string& name, int32_t drafts,
                    const std::function<int32_t(int round)>& right,
                    Rollback rollback = Rollback::kJournal) {
  return {absl::StrCat(name, " of ", drafts), 1 + drafts,
          [=](const std::vector<TokenId>& truth, int32_t vocab_size) {
            SessionOptions options;
            options.draft_tokens = drafts;
            options.rollback = rollback;
            options.drafter = std::make_shared<ScriptedDrafter>(
                truth, vocab_size, [right](int round, int32_t max_drafts) {
                  return ScriptedDrafter::Round{max_drafts, right(round)};
                });
            return options;
          }};
}

inline Way Right(int32_t drafts, Rollback rollback = Rollback::kJournal) {
  return Scripted(
      "right", drafts, [](int) { return 100; }, rollback);
}
inline Way Wrong(int32_t drafts, Rollback rollback = Rollback::kJournal) {
  return Scripted(
      "wrong", drafts, [](int) { return 0; }, rollback);
}
// Right until i, for every i in turn.
inline Way Until(int32_t drafts, Rollback rollback = Rollback::kJournal) {
  return Scripted(
      "until", drafts,
      [drafts](int round) { return (3 + 5 * round) % (drafts + 1); }, rollback);
}

// Of each kind some.
inline std::vector<Way> SomeWays() {
  // One of each kind, then others.
  std::vector<Way> ways = {
      Plain(),  DFlash(),  DFlash(Rollback::kSlots),    Right(7),
      Wrong(7), Until(15), Until(15, Rollback::kSlots), Right(1),
      Right(3), Right(15), Right(7, Rollback::kSlots),  Wrong(2),
      Until(7)};
  ways.resize(FewerIfEmulated<size_t>("ways of drafting", ways.size(), 7));
  return ways;
}

// Blocks of 1 to 16 rows.
inline std::vector<Way> AllWays() {
  std::vector<Way> ways = {Plain(), Plain(Rollback::kSlots), DFlash(),
                           DFlash(Rollback::kSlots)};
  // From 1 to 15.
  const int32_t step = 14 / (FewerIfEmulated("numbers of drafts", 15, 3) - 1);
  for (int32_t drafts = 1; drafts <= 15; drafts += step) {
    ways.push_back(Right(drafts));
    ways.push_back(Until(drafts));
    if (drafts % 8 == 7) {
      ways.push_back(Wrong(drafts));
      ways.push_back(Right(drafts, Rollback::kSlots));
      ways.push_back(Until(drafts, Rollback::kSlots));
    }
  }
  return ways;
}

// --- A model and what it says ------------------------------------------------

// A prompt, and what plain decoding says to it.
class Truth {
 public:
  // `sampling` holds for every run.
  Truth(const Engine* engine, std::vector<TokenId> prompt,
        const SamplingOptions& sampling, int32_t count)
      : engine_(engine), prompt_(std::move(prompt)) {
    rules_.max_new_tokens = count;
    rules_.sampling = sampling;
    rules_.ignore_model_stop_tokens = true;
    rules_.logits = true;
    tokens_ = prompt_;
    const auto session = Prefilled(Plain());
    answer_ = Say(*session, rules_);
    tokens_ = session->tokens();
    EXPECT_EQ(static_cast<int32_t>(answer_.ids.size()), count);
  }

  const Engine& engine() const { return *engine_; }
  const std::vector<TokenId>& prompt() const { return prompt_; }
  const Answer& answer() const { return answer_; }
  // Prompt and answer.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  // Those of the answer; tests add ends.
  const GenerateOptions& rules() const { return rules_; }

  // `max_context` 0: the answer fits, and some more. Less is quicker.
  std::unique_ptr<Session> NewSession(const Way& way,
                                      int32_t max_context = 0) const {
    SessionOptions options = way.options(tokens_, engine_->info().vocab_size);
    options.max_context = max_context > 0 ? max_context : Room();
    auto session = engine_->NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  std::unique_ptr<Session> Prefilled(const Way& way,
                                     int32_t max_context = 0) const {
    auto session = NewSession(way, max_context);
    const absl::Status status = session->Prefill(prompt_);
    EXPECT_TRUE(status.ok()) << status;
    return session;
  }

  Answer Say(
      Session& session, const GenerateOptions& rules, By by = By::kGenerate,
      const std::function<bool(const TokenEvent&)>& on_token = {}) const {
    return testing::Say(*engine_, session, rules, by, on_token);
  }

  // That nothing but its tokens can be observed of `session`: it goes on like a
  // plain one to which they are a prompt. Needs rules without penalties.
  void ExpectGoesOn(Session& session, int32_t count = 3) const {
    GenerateOptions rules = rules_;
    rules.max_new_tokens = count;
    const auto other =
        NewSession(Plain(), static_cast<int32_t>(session.max_context()));
    ASSERT_TRUE(other->Prefill(session.tokens()).ok());
    const Answer expected = Say(*other, rules);
    const Answer answer = Say(session, rules);
    ExpectBeginning(answer, expected, expected.ids.size());
    EXPECT_EQ(answer.texts, expected.texts);
    EXPECT_EQ(answer.reason, expected.reason);
  }

 private:
  int32_t Room() const {
    return static_cast<int32_t>(prompt_.size()) + rules_.max_new_tokens + 20;
  }

  const Engine* const engine_;
  const std::vector<TokenId> prompt_;
  GenerateOptions rules_;
  Answer answer_;
  std::vector<TokenId> tokens_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_ENGINE_SESSION_RUNS_H_
