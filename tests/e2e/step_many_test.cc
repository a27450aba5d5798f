// SPDX-License-Identifier: Apache-2.0

// Engine::StepMany: whatever the company, a session's tokens, scores, accepted
// drafts and ends are, to the bit, those of the same session alone.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Random;
using testing::SameBits;
using testing::ScriptedDrafter;

std::unique_ptr<Engine> Open(const std::string& target,
                             const std::string& draft, int threads = 1) {
  const std::string folder = "tests/testdata/models/";
  auto engine = Engine::Open({testing::Runfile(folder + target + ".gdn"),
                              testing::Runfile(folder + draft + ".gdn")},
                             {threads});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<Session> NewSession(const Engine& engine,
                                    const SessionOptions& options = {}) {
  auto session = engine.NewSession(options);
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

std::vector<TokenId> RandomTokens(const Engine& engine, int32_t count,
                                  Random& random) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(random.Int(0, engine.info().vocab_size - 1));
  }
  return tokens;
}

// --- Programs: what a session is told to do, alone or in company -------------

enum class Event { kNothing, kCancel, kFork, kTake, kRestore };

struct Action {
  // Not empty: a prompt, and nothing below matters.
  std::vector<TokenId> prompt;
  bool reset = false;
  // An answer, with events once so many of its tokens have been delivered.
  GenerateOptions generate;
  std::map<int32_t, Event> events;
};

// What comes after a sequence, as far as plain decoding went.
using Future = std::map<std::vector<TokenId>, TokenId>;

// Proposes the future, with a mistake whose place depends on the length of the
// sequence only, so that it is the same alone and in company.
class Clairvoyant : public Drafter {
 public:
  Clairvoyant(const Future& future, int32_t vocab_size, uint64_t seed)
      : future_(future), vocab_size_(vocab_size), seed_(seed) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    std::vector<TokenId> tokens(sequence.begin(), sequence.end());
    Random random(seed_ * 1000 + sequence.size());
    const int32_t propose = random.OneIn(5) ? 0 : random.Int(1, max_drafts);
    const int32_t right = random.OneIn(3) ? propose : random.Int(0, propose);
    for (int32_t i = 0; i < propose; ++i) {
      const auto next = future_.find(tokens);
      const TokenId token = next == future_.end() ? 0 : next->second;
      tokens.push_back(i == right ? (token + 1) % vocab_size_ : token);
      drafts->push_back(tokens.back());
    }
  }

 private:
  const Future& future_;
  const int32_t vocab_size_;
  const uint64_t seed_;
};

// Carries out a program and notes all that can be observed.
class Lane {
 public:
  Lane(std::unique_ptr<Session> session, const std::vector<Action>& program)
      : session_(std::move(session)), program_(program) {}

  // Everything by Prefill() and Next().
  void RunAlone() {
    while (!done()) {
      if (Advance(/*patience=*/1 << 30)) Deliver();
    }
  }

  // Goes on without running the models until they have to run, or until
  // `patience` tokens have been delivered. Whether they have to run.
  bool Advance(int32_t patience) {
    while (!done()) {
      if (action().reset) {
        session_->Reset();
        ++at_;
      } else if (!action().prompt.empty()) {
        if (!begun_ &&
            !Begin(together_ ? session_->StartPrefill(action().prompt)
                             : session_->Prefill(action().prompt))) {
          continue;
        }
        if (session_->prefill_left() > 0) return true;
        EndAction();
      } else {
        if (!begun_ && !Begin(session_->Start(action().generate))) continue;
        if (session_->finish_reason() != FinishReason::kNone) {
          EndAnswer();
        } else if (session_->waiting() == 0) {
          return true;
        } else {
          if (patience-- == 0) return false;
          Deliver();
        }
      }
    }
    return false;
  }

  bool done() const { return at_ == program_.size(); }
  Session* session() { return session_.get(); }
  void set_together() { together_ = true; }

  void ExpectSame(const Lane& other) const {
    EXPECT_EQ(log_, other.log_);
    EXPECT_EQ(session_->tokens(), other.session_->tokens());
    EXPECT_TRUE(SameBits(logits_, other.logits_));
  }
  // The same tokens and scores; drafts may differ.
  void ExpectSameOutput(const Lane& other) const {
    EXPECT_EQ(delivered_, other.delivered_);
    EXPECT_EQ(session_->tokens(), other.session_->tokens());
    EXPECT_TRUE(SameBits(logits_, other.logits_));
  }

  int64_t accepted() const { return accepted_; }
  Future future;

 private:
  const Action& action() const { return program_[at_]; }

  bool Begin(const absl::Status& status) {
    begun_ = true;
    count_ = 0;
    if (status.ok()) return true;
    log_.push_back(status.ToString());
    EndAction();
    return false;
  }

  void EndAction() {
    begun_ = false;
    ++at_;
  }

  void EndAnswer() {
    const auto none = session_->Next();
    EXPECT_TRUE(none.ok() && !none->has_value());
    const SessionStats stats = session_->stats();
    accepted_ += stats.accepted;
    std::string line =
        "reason " + std::to_string(static_cast<int>(session_->finish_reason()));
    for (const int64_t counter :
         {stats.prefill_tokens, stats.delivered_tokens, stats.discarded,
          stats.steps, stats.draft_steps, stats.drafted, stats.accepted,
          static_cast<int64_t>(stats.seed)}) {
      line += " " + std::to_string(counter);
    }
    for (const auto& counters : {stats.tried_at, stats.accepted_at}) {
      line += " |";
      for (const int64_t counter : counters) {
        line += " " + std::to_string(counter);
      }
    }
    log_.push_back(line + " " + session_->TakeTail());
    EndAction();
  }

  // One token by Next(), and what is to happen then.
  void Deliver() {
    const std::vector<TokenId> before = session_->tokens();
    const auto token = session_->Next();
    ASSERT_TRUE(token.ok()) << token.status();
    if (!token->has_value()) return;
    future[before] = (*token)->id;
    delivered_.push_back((*token)->id);
    log_.push_back(std::to_string((*token)->position) + ": " +
                   std::to_string((*token)->id) + " " +
                   std::string((*token)->text) +
                   ((*token)->source == TokenSource::kDraft ? " d" : " t"));
    logits_.insert(logits_.end(), (*token)->logits.begin(),
                   (*token)->logits.end());
    const auto event = action().events.find(++count_);
    if (event != action().events.end()) Happen(event->second);
  }

  void Happen(Event event) {
    if (event == Event::kCancel) {
      session_->Cancel();
    } else if (event == Event::kFork) {
      auto fork = session_->Fork();
      ASSERT_TRUE(fork.ok()) << fork.status();
      session_ = *std::move(fork);
    } else if (event == Event::kTake) {
      auto snapshot = session_->Take();
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      snapshot_ = *std::move(snapshot);
    } else if (event == Event::kRestore && snapshot_.has_value()) {
      const absl::Status status = session_->Restore(*snapshot_);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  std::unique_ptr<Session> session_;
  const std::vector<Action>& program_;
  bool together_ = false;
  size_t at_ = 0;
  bool begun_ = false;  // The action at at_.
  int32_t count_ = 0;   // Tokens delivered of it.
  std::optional<Snapshot> snapshot_;

  std::vector<std::string> log_;
  std::vector<TokenId> delivered_;
  std::vector<float> logits_;
  int64_t accepted_ = 0;
};

GenerateOptions RandomRules(const Engine& engine, Random& random) {
  GenerateOptions options;
  options.max_new_tokens = random.Int(1, random.OneIn(4) ? 40 : 16);
  options.logits = !random.OneIn(4);
  options.ignore_model_stop_tokens = random.OneIn(2);
  if (random.OneIn(3)) options.stop_tokens = RandomTokens(engine, 2, random);
  if (random.OneIn(3) && engine.info().has_tokenizer) {
    options.stop_texts = {
        std::string(1, static_cast<char>(random.Int(32, 126))), "ab"};
  }
  SamplingOptions& sampling = options.sampling;
  sampling.seed = random.Int(0, 5);
  if (random.OneIn(2)) sampling.temperature = random.Uniform(0.1f, 1.5f);
  if (random.OneIn(4)) sampling.top_k = random.Int(1, 9);
  if (random.OneIn(4)) sampling.top_p = random.Uniform(0.3f, 1.0f);
  if (random.OneIn(4)) sampling.min_p = random.Uniform(0.0f, 0.3f);
  if (random.OneIn(4)) sampling.repetition_penalty = 1.3f;
  if (random.OneIn(4)) sampling.presence_penalty = 0.5f;
  if (random.OneIn(4)) sampling.frequency_penalty = 0.2f;
  if (random.OneIn(4)) sampling.logit_bias = {{random.Int(0, 31), 3.0f}};
  return options;
}

std::vector<Action> RandomProgram(const Engine& engine, Random& random) {
  std::vector<Action> program;
  for (int turns = random.Int(1, 3); turns > 0; --turns) {
    program.emplace_back().prompt =
        RandomTokens(engine, random.Int(1, 40), random);
    if (random.OneIn(5)) {
      program.emplace_back().prompt =
          RandomTokens(engine, random.Int(1, 9), random);
    }
    Action& answer = program.emplace_back();
    answer.generate = RandomRules(engine, random);
    const int32_t when = random.Int(1, 8);
    switch (random.Int(0, 5)) {
      case 0:
        answer.events = {{when, Event::kCancel}};
        break;
      case 1:
        answer.events = {{when, Event::kFork}};
        break;
      case 2:
        answer.events = {{when, Event::kTake},
                         {when + random.Int(1, 5), Event::kRestore}};
        break;
      default:
        break;
    }
    if (random.OneIn(5)) program.emplace_back().reset = true;
  }
  return program;
}

struct Model {
  const char* target;
  const char* draft;
  int32_t schedules;
};

class StepManyTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override { engine_ = Open(GetParam().target, GetParam().draft); }
  std::unique_ptr<Engine> engine_;
};

// Case C7, and the middle of everything: prompts arrive while others decode,
// sessions leave early, are left out of a call, or have tokens waiting.
TEST_P(StepManyTest, RandomCompany) {
  const int32_t all = GetParam().schedules;
  const int32_t schedules = testing::FewerIfEmulated(
      std::string("schedules of ") + GetParam().target, all, all / 10);
  int64_t accepted = 0;
  int32_t crowds = 0;
  for (int32_t seed = 0; seed < schedules; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const size_t count = random.Int(1, 8);
    std::vector<std::vector<Action>> programs(count);
    std::vector<Future> futures(count);
    std::vector<std::unique_ptr<Lane>> alone, together;
    std::vector<bool> pinned;
    for (size_t i = 0; i < count; ++i) {
      programs[i] = RandomProgram(*engine_, random);
      SessionOptions options;
      if (random.OneIn(4)) options.max_context = random.Int(12, 90);
      options.draft_tokens = 0;
      Lane plain(NewSession(*engine_, options), programs[i]);
      plain.RunAlone();
      futures[i] = std::move(plain.future);
      options.rollback =
          random.OneIn(3) ? Rollback::kSlots : Rollback::kJournal;
      if (!random.OneIn(5)) {
        options.draft_tokens = engine_->info().draft_block - 1;
        if (random.OneIn(2)) {
          options.draft_tokens = 15;
          options.drafter = std::make_shared<Clairvoyant>(
              futures[i], engine_->info().vocab_size, seed + i);
        }
        if (random.OneIn(2)) options.draft_tokens = random.Int(1, 6);
        // How much to draft is then decided by the clock.
        if (random.OneIn(5)) {
          options.draft_tokens.reset();
          options.lookup = options.drafter == nullptr;
        }
      }
      pinned.push_back(options.draft_tokens.has_value());
      alone.push_back(
          std::make_unique<Lane>(NewSession(*engine_, options), programs[i]));
      alone.back()->RunAlone();
      alone.back()->ExpectSameOutput(plain);
      accepted += alone.back()->accepted();
      together.push_back(
          std::make_unique<Lane>(NewSession(*engine_, options), programs[i]));
      together.back()->set_together();
    }
    while (true) {
      std::vector<Session*> sessions;
      int32_t running = 0;
      bool all_done = true;
      for (const auto& lane : together) {
        if (!lane->done() && random.OneIn(5)) {
          all_done = false;  // Left out.
          continue;
        }
        running += lane->Advance(random.Int(0, 20));
        if (lane->done()) continue;
        all_done = false;
        sessions.push_back(lane->session());
      }
      if (all_done) break;
      if (running > 5) ++crowds;
      std::rotate(
          sessions.begin(),
          sessions.begin() +
              (sessions.empty() ? 0 : random.Int(0, sessions.size() - 1)),
          sessions.end());
      const auto statuses = engine_->StepMany(sessions);
      ASSERT_TRUE(statuses.ok()) << statuses.status();
      ASSERT_EQ(statuses->size(), sessions.size());
      for (const absl::Status& status : *statuses) {
        ASSERT_TRUE(status.ok()) << status;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      if (pinned[i]) {
        together[i]->ExpectSame(*alone[i]);
      } else {
        together[i]->ExpectSameOutput(*alone[i]);
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, schedules);
  EXPECT_GT(crowds, schedules / 4);
}

INSTANTIATE_TEST_SUITE_P(Models, StepManyTest,
                         ::testing::Values(Model{"t", "t_draft", 150},
                                           Model{"odd", "odd_draft", 40},
                                           Model{"moe", "moe_draft", 40},
                                           Model{"wide", "wide_draft", 40}),
                         [](const auto& info) {
                           return std::string(info.param.target);
                         });

// --- The contract, sentence by sentence --------------------------------------

class StepManyContractTest : public ::testing::Test {
 protected:
  static constexpr int32_t kNew = 20;

  GenerateOptions Rules(int32_t max_new_tokens = kNew) const {
    GenerateOptions options;
    options.max_new_tokens = max_new_tokens;
    options.ignore_model_stop_tokens = true;
    return options;
  }

  std::vector<TokenId> Prompt(int32_t tokens, uint64_t seed = 1) const {
    Random random(seed);
    return RandomTokens(*engine_, tokens, random);
  }

  // What plain decoding makes of a prompt, prompt included.
  std::vector<TokenId> Oracle(const std::vector<TokenId>& prompt,
                              const GenerateOptions& rules) const {
    SessionOptions options;
    options.draft_tokens = 0;
    const auto session = NewSession(*engine_, options);
    EXPECT_TRUE(session->Prefill(prompt).ok());
    EXPECT_TRUE(
        session->Generate(rules, [](const TokenEvent&) { return true; }).ok());
    return session->tokens();
  }
  std::vector<TokenId> Oracle(const std::vector<TokenId>& prompt) const {
    return Oracle(prompt, Rules());
  }

  std::unique_ptr<Session> Started(const std::vector<TokenId>& prompt,
                                   const SessionOptions& options = {}) const {
    auto session = NewSession(*engine_, options);
    EXPECT_TRUE(session->Prefill(prompt).ok());
    EXPECT_TRUE(session->Start(Rules()).ok());
    return session;
  }

  static void Drain(Session* session) {
    while (session->waiting() > 0) ASSERT_TRUE(session->Next().ok());
  }

  // Steps all of `sessions` to the end of their loops.
  void Finish(std::vector<Session*> sessions) const {
    while (!sessions.empty()) {
      const auto statuses = engine_->StepMany(sessions);
      ASSERT_TRUE(statuses.ok()) << statuses.status();
      for (const absl::Status& status : *statuses) {
        ASSERT_TRUE(status.ok()) << status;
      }
      for (Session* session : sessions) Drain(session);
      sessions.erase(std::remove_if(sessions.begin(), sessions.end(),
                                    [](Session* session) {
                                      return session->finish_reason() !=
                                             FinishReason::kNone;
                                    }),
                     sessions.end());
    }
  }

  std::vector<absl::Status> Step(const std::vector<Session*>& sessions) const {
    auto statuses = engine_->StepMany(sessions);
    EXPECT_TRUE(statuses.ok()) << statuses.status();
    return *std::move(statuses);
  }

  std::unique_ptr<Engine> engine_ = Open("t", "t_draft");
};

// Case C7: one prompt, four histories; then four prompts.
TEST_F(StepManyContractTest, NeighboursDoNotLeak) {
  for (const bool one_prompt : {true, false}) {
    std::vector<std::vector<TokenId>> truths;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> all;
    for (int32_t i = 0; i < 4; ++i) {
      const auto prompt = one_prompt ? Prompt(9) : Prompt(1 + 7 * i, i);
      truths.push_back(Oracle(prompt));
      SessionOptions options;
      options.draft_tokens = 3;
      options.drafter = std::make_shared<ScriptedDrafter>(
          truths[i], engine_->info().vocab_size,
          [i](int round, int32_t max_drafts) {
            const int32_t drafts = std::min(3, max_drafts);
            return ScriptedDrafter::Round{drafts,
                                          std::min(drafts, (i + round) % 4)};
          });
      sessions.push_back(Started(prompt, options));
      all.push_back(sessions.back().get());
    }
    for (int32_t round = 0; round < 4; ++round) {
      for (const absl::Status& status : Step(all)) ASSERT_TRUE(status.ok());
      for (int32_t i = 0; i < 4; ++i) {
        EXPECT_EQ(all[i]->waiting(), (i + round) % 4 + 1);
        Drain(all[i]);
      }
    }
    Finish(all);
    for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(all[i]->tokens(), truths[i]);
  }
}

// Case C26.
TEST_F(StepManyContractTest, ASeedSaysTheSameInAnyCompany) {
  GenerateOptions rules = Rules();
  rules.sampling.temperature = 1.0f;
  rules.sampling.seed = 77;
  const auto truth = Oracle(Prompt(5), rules);
  for (const int32_t drafts : {0, 1, 7}) {
    SessionOptions options;
    options.draft_tokens = drafts;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> all;
    for (int32_t i = 0; i < 4; ++i) {
      sessions.push_back(NewSession(*engine_, options));
      all.push_back(sessions.back().get());
      ASSERT_TRUE(all[i]->Prefill(i == 2 ? Prompt(5) : Prompt(3 + i, i)).ok());
      GenerateOptions own = rules;
      if (i != 2) own.sampling.seed = i;
      ASSERT_TRUE(all[i]->Start(own).ok());
    }
    Finish(all);
    EXPECT_EQ(all[2]->tokens(), truth);
    EXPECT_EQ(all[2]->stats().seed, 77u);
  }
}

TEST_F(StepManyContractTest, WrongListsRunNothing) {
  const auto one = Started(Prompt(4));
  const auto two = Started(Prompt(5));
  const auto other_engine = Open("t", "t_draft");
  const auto other = NewSession(*other_engine);
  ASSERT_TRUE(other->Prefill({1, 2}).ok());
  ASSERT_TRUE(other->Start(Rules()).ok());
  struct Case {
    std::vector<Session*> sessions;
    const char* message;
  };
  for (const Case& c :
       {Case{{one.get(), nullptr}, "sessions[1] is null"},
        Case{{one.get(), two.get(), one.get()}, "sessions[0] is there twice"},
        Case{{other.get(), one.get()},
             "sessions[0] belongs to another engine"}}) {
    const auto statuses = engine_->StepMany(c.sessions);
    EXPECT_TRUE(absl::IsInvalidArgument(statuses.status()));
    EXPECT_THAT(statuses.status().message(), HasSubstr(c.message));
    for (Session* session : {one.get(), two.get(), other.get()}) {
      EXPECT_EQ(session->waiting(), 0);
      EXPECT_EQ(session->stats().steps, 0);
    }
  }
  EXPECT_TRUE(Step({}).empty());
}

TEST_F(StepManyContractTest, StatusesAreInOrder) {
  const auto good = Started(Prompt(4));
  const auto idle = NewSession(*engine_);
  ASSERT_TRUE(idle->Prefill(Prompt(3)).ok());
  const auto empty = NewSession(*engine_);
  SessionOptions bad_options;
  bad_options.draft_tokens = 2;
  bad_options.drafter = std::make_shared<ScriptedDrafter>(
      std::vector<TokenId>(100, 1234), 1 << 30, [](int, int32_t) {
        return ScriptedDrafter::Round{2, 2};
      });
  const auto bad = Started(Prompt(4), bad_options);
  const auto statuses = Step({idle.get(), bad.get(), good.get(), empty.get()});
  EXPECT_TRUE(absl::IsFailedPrecondition(statuses[0])) << statuses[0];
  EXPECT_THAT(statuses[0].message(), HasSubstr("nothing to run"));
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[1])) << statuses[1];
  EXPECT_THAT(statuses[1].message(), HasSubstr("1234"));
  EXPECT_TRUE(statuses[2].ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(statuses[3])) << statuses[3];
  // What its own Next() says, and where it was.
  EXPECT_EQ(bad->Next().status(), statuses[1]);
  EXPECT_EQ(bad->tokens(), Prompt(4));
  EXPECT_EQ(bad->finish_reason(), FinishReason::kNone);
  Finish({good.get()});
  EXPECT_EQ(good->tokens(), Oracle(Prompt(4)));
}

TEST_F(StepManyContractTest, TokensWaitingOrAnEndRunNothing) {
  const auto one = Started(Prompt(4));
  const auto two = Started(Prompt(6));
  Finish({two.get()});
  ASSERT_TRUE(Step({one.get()})[0].ok());
  const int32_t waiting = one->waiting();
  ASSERT_GT(waiting, 0);
  for (int i = 0; i < 3; ++i) {
    for (const absl::Status& status : Step({one.get(), two.get()})) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_EQ(one->waiting(), waiting);
  EXPECT_EQ(one->stats().steps, 1);
  EXPECT_EQ(two->waiting(), 0);
  EXPECT_EQ(two->finish_reason(), FinishReason::kMaxTokens);
  Drain(one.get());
  Finish({one.get()});
  EXPECT_EQ(one->tokens(), Oracle(Prompt(4)));
}

TEST_F(StepManyContractTest, InsideACall) {
  const auto one = Started(Prompt(4));
  const auto two = Started(Prompt(6));
  int calls = 0;
  const auto result = one->Generate(Rules(), [&](const TokenEvent&) {
    if (++calls > 1) return true;
    const auto statuses = Step({one.get(), two.get()});
    EXPECT_TRUE(absl::IsFailedPrecondition(statuses[0])) << statuses[0];
    EXPECT_THAT(statuses[0].message(), HasSubstr("inside a call"));
    EXPECT_TRUE(statuses[1].ok()) << statuses[1];
    EXPECT_GT(two->waiting(), 0);
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(one->tokens(), Oracle(Prompt(4)));
  Drain(two.get());
  Finish({two.get()});
  EXPECT_EQ(two->tokens(), Oracle(Prompt(6)));
}

// Tries to start other answers in the middle of a step.
class Meddler : public Drafter {
 public:
  void Propose(absl::Span<const TokenId>, int32_t,
               std::vector<TokenId>*) override {
    for (Session* session : sessions) answers.push_back(session->Start({}));
  }
  std::vector<Session*> sessions;
  std::vector<absl::Status> answers;
};

TEST_F(StepManyContractTest, ItIsACallOfEach) {
  const auto meddler = std::make_shared<Meddler>();
  SessionOptions options;
  options.drafter = meddler;
  options.draft_tokens = 1;
  const auto one = Started(Prompt(4), options);
  const auto two = Started(Prompt(6));
  const auto waiting = Started(Prompt(7));
  ASSERT_TRUE(Step({waiting.get()})[0].ok());
  ASSERT_GT(waiting->waiting(), 0);
  meddler->sessions = {one.get(), two.get(), waiting.get()};
  for (const absl::Status& status : Step(meddler->sessions)) {
    EXPECT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(meddler->answers.size(), 3u);
  for (const absl::Status& answer : meddler->answers) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer)) << answer;
  }
  meddler->sessions.clear();
  Drain(one.get());
  Drain(two.get());
  Drain(waiting.get());
  Finish({one.get(), two.get(), waiting.get()});
  EXPECT_EQ(one->tokens(), Oracle(Prompt(4)));
  EXPECT_EQ(two->tokens(), Oracle(Prompt(6)));
  EXPECT_EQ(waiting->tokens(), Oracle(Prompt(7)));
}

// A prompt of several chunks among the blocks of another.
TEST_F(StepManyContractTest, APromptInTheMiddle) {
  const auto prompt = Prompt(500, 8);
  const auto truth = Oracle(prompt);
  const auto reader = NewSession(*engine_);
  const auto speaker = Started(Prompt(4));
  ASSERT_TRUE(Step({speaker.get()})[0].ok());
  ASSERT_TRUE(reader->StartPrefill(prompt).ok());
  EXPECT_EQ(reader->prefill_left(), 499);
  EXPECT_EQ(reader->position(), 1);
  int64_t left = reader->prefill_left();
  int calls = 0;
  while (left > 0) {
    for (const absl::Status& status :
         {reader->Prefill({1}), reader->StartPrefill({1}),
          reader->Start(Rules()), reader->Next().status(),
          reader->Generate(Rules(), [](const TokenEvent&) { return true; })
              .status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(left)));
    }
    Drain(speaker.get());
    for (const absl::Status& status : Step({speaker.get(), reader.get()})) {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_LT(reader->prefill_left(), left);
    left = reader->prefill_left();
    EXPECT_EQ(reader->position(), 500 - left);
    ++calls;
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(reader->tokens(), prompt);
  EXPECT_EQ(reader->stats().prefill_tokens, 500);
  ASSERT_TRUE(reader->Start(Rules()).ok());
  Drain(speaker.get());
  Finish({reader.get(), speaker.get()});
  EXPECT_EQ(reader->tokens(), truth);
  EXPECT_EQ(speaker->tokens(), Oracle(Prompt(4)));
}

TEST_F(StepManyContractTest, PromptsAreCheckedLikePrefills) {
  SessionOptions options;
  options.max_context = 8;
  const auto session = NewSession(*engine_, options);
  EXPECT_TRUE(absl::IsInvalidArgument(session->StartPrefill({})));
  EXPECT_TRUE(absl::IsInvalidArgument(session->StartPrefill({1, 32})));
  EXPECT_TRUE(absl::IsOutOfRange(session->StartPrefill(Prompt(9))));
  EXPECT_EQ(session->prefill_left(), 0);
  EXPECT_EQ(session->position(), 0);
  // One token is there at once: the state lacks the last one anyway.
  ASSERT_TRUE(session->StartPrefill({5}).ok());
  EXPECT_EQ(session->prefill_left(), 0);
  EXPECT_EQ(session->tokens(), std::vector<TokenId>{5});
}

// Whether StepMany() is called first, or only while something is left.
TEST_F(StepManyContractTest, PromptsOfAnyLength) {
  for (const int32_t length : {1, 2, 3}) {
    for (const bool first : {true, false}) {
      SCOPED_TRACE(length);
      const auto session = NewSession(*engine_);
      ASSERT_TRUE(session->StartPrefill(Prompt(length)).ok());
      EXPECT_EQ(session->prefill_left(), length - 1);
      if (first || length > 1) {
        do {
          const absl::Status status = Step({session.get()})[0];
          ASSERT_TRUE(status.ok()) << status;
        } while (session->prefill_left() > 0);
        // The prompt is there; what comes next is not said.
        const absl::Status status = Step({session.get()})[0];
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        EXPECT_THAT(status.message(), HasSubstr("nothing to run"));
      }
      EXPECT_EQ(session->tokens(), Prompt(length));
      EXPECT_EQ(session->stats().prefill_tokens, length);
      ASSERT_TRUE(session->Start(Rules()).ok());
      Finish({session.get()});
      EXPECT_EQ(session->tokens(), Oracle(Prompt(length)));
    }
  }
  const auto session = NewSession(*engine_);
  ASSERT_TRUE(session->Prefill(Prompt(1)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Step({session.get()})[0]));
  session->Reset();
  ASSERT_TRUE(session->StartPrefill(Prompt(1)).ok());
  session->Reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(Step({session.get()})[0]));
}

TEST_F(StepManyContractTest, CancelAndResetDropWhatIsLeftOfAPrompt) {
  for (const bool step : {false, true}) {
    const auto session = NewSession(*engine_);
    const auto neighbour = Started(Prompt(6));
    ASSERT_TRUE(session->Prefill(Prompt(4)).ok());
    ASSERT_TRUE(session->StartPrefill(Prompt(9, 2)).ok());
    session->Cancel();
    EXPECT_EQ(session->prefill_left(), 0);
    if (step) {
      const auto statuses = Step({session.get(), neighbour.get()});
      EXPECT_TRUE(absl::IsCancelled(statuses[0])) << statuses[0];
      EXPECT_TRUE(statuses[1].ok());
    }
    EXPECT_EQ(session->tokens(), Prompt(4));
    ASSERT_TRUE(session->Start(Rules()).ok());
    Drain(neighbour.get());
    Finish({session.get(), neighbour.get()});
    EXPECT_EQ(session->tokens(), Oracle(Prompt(4)));
    EXPECT_EQ(neighbour->tokens(), Oracle(Prompt(6)));
    ASSERT_TRUE(session->StartPrefill(Prompt(9, 2)).ok());
    session->Reset();
    EXPECT_EQ(session->prefill_left(), 0);
    ASSERT_TRUE(session->StartPrefill(Prompt(4)).ok());
    ASSERT_TRUE(Step({session.get()})[0].ok());
    ASSERT_TRUE(session->Start(Rules()).ok());
    Finish({session.get()});
    EXPECT_EQ(session->tokens(), Oracle(Prompt(4)));
  }
}

// Cancels its session, and others, in the middle of a step.
class Canceller : public Drafter {
 public:
  void Propose(absl::Span<const TokenId>, int32_t,
               std::vector<TokenId>* drafts) override {
    drafts->assign(1, 0);
    for (Session* session : sessions) session->Cancel();
  }
  std::vector<Session*> sessions;
};

TEST_F(StepManyContractTest, ACancelInAStepIsOnesOwn) {
  for (const bool all : {false, true}) {
    SessionOptions options;
    options.draft_tokens = 1;
    const auto canceller = std::make_shared<Canceller>();
    options.drafter = canceller;
    const auto one = Started(Prompt(4), options);
    const auto two = Started(Prompt(6));
    const auto three = NewSession(*engine_);
    ASSERT_TRUE(three->StartPrefill(Prompt(8)).ok());
    canceller->sessions = {one.get()};
    if (all) canceller->sessions = {one.get(), two.get(), three.get()};
    const auto statuses = Step({one.get(), two.get(), three.get()});
    EXPECT_TRUE(statuses[0].ok()) << "a cancel is a result";
    EXPECT_TRUE(statuses[1].ok());
    EXPECT_EQ(absl::IsCancelled(statuses[2]), all) << statuses[2];
    EXPECT_EQ(one->finish_reason(), FinishReason::kCancelled);
    EXPECT_EQ(one->waiting(), 0);
    EXPECT_EQ(two->waiting() > 0, !all);
    EXPECT_EQ(two->finish_reason(),
              all ? FinishReason::kCancelled : FinishReason::kNone);
    EXPECT_EQ(three->position(), all ? 1 : 8);
    canceller->sessions.clear();
    ASSERT_TRUE(one->Start(Rules()).ok());
    if (all) {
      ASSERT_TRUE(two->Start(Rules()).ok());
      three->Reset();
      ASSERT_TRUE(three->Prefill(Prompt(8)).ok());
    }
    ASSERT_TRUE(three->Start(Rules()).ok());
    Drain(two.get());
    Finish({one.get(), two.get(), three.get()});
    EXPECT_EQ(one->tokens(), Oracle(Prompt(4)));
    EXPECT_EQ(two->tokens(), Oracle(Prompt(6)));
    EXPECT_EQ(three->tokens(), Oracle(Prompt(8)));
  }
}

// Whatever allocation is refused, and if all are, from the first call on in
// which an engine has company: a session goes on from where it was. Together
// they do with the memory that each needs alone.
TEST_F(StepManyContractTest, MemoryRefused) {
  std::vector<std::vector<TokenId>> truths;
  for (int32_t i = 0; i < 4; ++i) truths.push_back(Oracle(Prompt(5 + i)));
  for (int64_t nth = 1; nth <= 5; ++nth) {
    for (const bool and_all_after : {false, true}) {
      engine_ = Open("t", "t_draft");
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<Session*> all;
      for (int32_t i = 0; i < 4; ++i) {
        SessionOptions options;
        options.draft_tokens = engine_->info().draft_block - 1;
        sessions.push_back(Started(Prompt(5 + i), options));
        all.push_back(sessions.back().get());
      }
      // The first step alone: it may have to make room for itself.
      ASSERT_TRUE(Step({all[3]})[0].ok());
      {
        const ScopedAllocationFailure failure(nth, and_all_after);
        for (const absl::Status& status : Step(all)) {
          EXPECT_TRUE(status.ok()) << status;
        }
      }
      for (Session* session : all) {
        EXPECT_GT(session->waiting(), 0);
        Drain(session);
      }
      Finish(all);
      for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(all[i]->tokens(), truths[i]);
    }
  }
}

// Case S12. Very few tokens: threads that share cores wait for one another.
TEST(StepManyThreadsTest, AnyNumberOfThreads) {
  constexpr int32_t kSessions = 2;
  std::vector<std::vector<TokenId>> tokens(kSessions);
  std::vector<std::vector<float>> logits(kSessions);
  for (const int threads : {1, 2, 3, 8}) {
    const auto engine = Open("wide", "wide_draft", threads);
    ASSERT_EQ(engine->info().threads, threads);
    GenerateOptions rules;
    rules.max_new_tokens = 2;
    rules.ignore_model_stop_tokens = true;
    rules.logits = true;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> all;
    for (int32_t i = 0; i < kSessions; ++i) {
      Random random(i);
      sessions.push_back(NewSession(*engine));
      all.push_back(sessions.back().get());
      ASSERT_TRUE(
          all[i]->StartPrefill(RandomTokens(*engine, 4 + 5 * i, random)).ok());
    }
    ASSERT_TRUE(engine->StepMany(all).ok());
    for (Session* session : all) ASSERT_TRUE(session->Start(rules).ok());
    std::vector<std::vector<float>> scores(kSessions);
    const auto next = [&](int32_t i) {
      const auto token = all[i]->Next();
      ASSERT_TRUE(token.ok() && token->has_value());
      scores[i].insert(scores[i].end(), (*token)->logits.begin(),
                       (*token)->logits.end());
    };
    for (int32_t count = 0; count < kSessions * rules.max_new_tokens;) {
      // The truth: alone.
      if (threads > 1) {
        ASSERT_TRUE(engine->StepMany(all).ok());
      }
      for (int32_t i = 0; i < kSessions; ++i) {
        do {
          if (all[i]->finish_reason() != FinishReason::kNone) break;
          ASSERT_NO_FATAL_FAILURE(next(i));
          ++count;
        } while (all[i]->waiting() > 0);
      }
    }
    for (int32_t i = 0; i < kSessions; ++i) {
      if (threads == 1) {
        tokens[i] = all[i]->tokens();
        logits[i] = scores[i];
      }
      EXPECT_EQ(all[i]->tokens(), tokens[i]);
      EXPECT_TRUE(SameBits(scores[i], logits[i]));
    }
  }
}

}  // namespace
}  // namespace deltaedge
