// SPDX-License-Identifier: Apache-2.0

// A fork, the session it came from, and a session that a snapshot was restored
// into go on as a session does that was never forked: tokens, texts, scores by
// memcmp, and the drafts that each step tried and kept.

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
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

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Random;
using testing::SameBits;

struct Model {
  std::string name, target, draft;
  int32_t prompt_tokens;  // Random ones, or a question.
  int32_t new_tokens;
};

Model RandomModel(const std::string& name, int32_t prompt_tokens,
                  int32_t new_tokens) {
  const std::string path = "tests/testdata/models/" + name;
  return {name, path + ".gdn", path + "_draft.gdn", prompt_tokens, new_tokens};
}

const Model kToy = RandomModel("t", 21, 24);
const Model kOdd = RandomModel("odd", 30, 16);
const Model kWide = RandomModel("wide", 3, 16);
const Model kBroad = RandomModel("broad", 5, 7);
const Model kDemo = {"demo", "examples/chat/model/target.gdn",
                     "examples/chat/model/draft.gdn", 0, 7};

std::unique_ptr<Engine> Open(const Model& model, int threads = 1) {
  auto engine = Engine::Open(
      {testing::Runfile(model.target), testing::Runfile(model.draft)},
      {threads});
  if (!engine.ok()) {
    ADD_FAILURE() << engine.status();
    std::abort();
  }
  return *std::move(engine);
}

// With one thread; opened once.
Engine& EngineOf(const Model& model) {
  static auto* const engines =
      new std::map<std::string, std::unique_ptr<Engine>>();
  std::unique_ptr<Engine>& engine = (*engines)[model.name];
  if (engine == nullptr) engine = Open(model);
  return *engine;
}

std::vector<TokenId> PromptOf(const Model& model) {
  if (model.prompt_tokens == 0) {
    return *EngineOf(model).chat().Render({{Role::kUser, "What is a dog?"}});
  }
  Random random(11);
  std::vector<TokenId> prompt(model.prompt_tokens);
  for (TokenId& id : prompt) {
    id = random.Int(0, EngineOf(model).info().vocab_size - 1);
  }
  return prompt;
}

// Drafted and accepted in one step.
using Step = std::pair<int64_t, int64_t>;

// What a session says from some token on.
struct Said {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  std::vector<std::string> texts;
  std::vector<TokenSource> sources;
  std::vector<Step> steps;
  FinishReason reason = FinishReason::kNone;
  std::string tail;
};

// At most `count` more tokens of a loop since Start().
void Listen(Session& session, Said* said, int32_t count = 100000) {
  for (; count > 0; --count) {
    const SessionStats before = session.stats();
    const auto token = session.Next();
    ASSERT_TRUE(token.ok()) << token.status();
    const SessionStats after = session.stats();
    if (after.steps > before.steps) {
      said->steps.emplace_back(after.drafted - before.drafted,
                               after.accepted - before.accepted);
    }
    if (!token->has_value()) {
      said->reason = session.finish_reason();
      said->tail += session.TakeTail();
      return;
    }
    said->tokens.push_back((*token)->id);
    said->sources.push_back((*token)->source);
    said->texts.emplace_back((*token)->text);
    said->logits.insert(said->logits.end(), (*token)->logits.begin(),
                        (*token)->logits.end());
  }
}

// Enough for a few blocks more.
constexpr int32_t kAWhile = 7;

Said ListenToTheEnd(Session& session) {
  Said said;
  Listen(session, &said);
  return said;
}

// Knows the answer. How many drafts it makes, and how many of them are right,
// depends on the position alone, as what the draft model proposes depends on
// the sequence alone.
class Oracle : public Drafter {
 public:
  Oracle(std::vector<TokenId> sequence, int32_t vocab_size)
      : sequence_(std::move(sequence)), vocab_size_(vocab_size) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    if (on_propose) on_propose();
    Random random(sequence.size());
    const int32_t count = random.OneIn(4) ? 0 : random.Int(1, max_drafts);
    const int32_t right = random.Int(0, count);
    for (int32_t i = 0; i < count; ++i) {
      const size_t position = sequence.size() + i;
      TokenId token = position < sequence_.size() ? sequence_[position] : 0;
      if (i == right) token = (token + 1) % vocab_size_;
      drafts->push_back(token);
    }
  }

  std::function<void()> on_propose;

 private:
  const std::vector<TokenId> sequence_;
  const int32_t vocab_size_;
};

enum class Drafts { kNone, kModel, kScripted, kLookup };

// A prompt and its answer, by sessions that are never forked.
class Scenario {
 public:
  Scenario(Engine& engine, std::vector<TokenId> prompt,
           GenerateOptions generate, Drafts drafts = Drafts::kModel,
           Rollback rollback = Rollback::kJournal)
      : engine_(engine),
        prompt_(std::move(prompt)),
        generate_(std::move(generate)) {
    generate_.ignore_model_stop_tokens = true;
    generate_.logits = true;
    options_.max_context =
        static_cast<int32_t>(prompt_.size()) + generate_.max_new_tokens + 60;
    SessionOptions plain = options_;
    plain.draft_tokens = 0;
    truth_ = ListenToTheEnd(*Started(plain));
    std::vector<TokenId> all = prompt_;
    all.insert(all.end(), truth_.tokens.begin(), truth_.tokens.end());
    oracle_ = std::make_shared<Oracle>(all, engine.info().vocab_size);
    options_.rollback = rollback;
    // A fixed number, so that steps depend on the sequence alone.
    switch (drafts) {
      case Drafts::kNone:
        options_.draft_tokens = 0;
        break;
      case Drafts::kModel:
        options_.draft_tokens = engine.info().draft_block - 1;
        break;
      case Drafts::kScripted:
        options_.draft_tokens = 15;
        options_.drafter = oracle_;
        break;
      case Drafts::kLookup:
        options_.draft_tokens = 6;
        options_.lookup = true;
        break;
    }
    alone_ = ListenToTheEnd(*Started());
    ExpectRest(alone_, 0);
  }

  Engine& engine() const { return engine_; }
  const std::vector<TokenId>& prompt() const { return prompt_; }
  const GenerateOptions& generate() const { return generate_; }
  const SessionOptions& options() const { return options_; }
  const std::shared_ptr<Oracle>& oracle() const { return oracle_; }
  int32_t count() const { return static_cast<int32_t>(truth_.tokens.size()); }
  // By plain decoding, and by a session with options().
  const Said& truth() const { return truth_; }
  const Said& alone() const { return alone_; }

  std::unique_ptr<Session> NewSession(const SessionOptions& options) const {
    auto session = engine_.NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }
  // That goes on behind the first `from` tokens of the answer.
  std::unique_ptr<Session> Started(const SessionOptions& options,
                                   int32_t from = 0) const {
    auto session = NewSession(options);
    std::vector<TokenId> prompt = prompt_;
    prompt.insert(prompt.end(), truth_.tokens.begin(),
                  truth_.tokens.begin() + from);
    EXPECT_TRUE(session->Prefill(prompt).ok());
    EXPECT_TRUE(session->Start(Rest(from)).ok());
    return session;
  }
  std::unique_ptr<Session> Started() const { return Started(options_); }

  // For a new Start() behind the first `from` tokens.
  GenerateOptions Rest(int32_t from) const {
    GenerateOptions rest = generate_;
    rest.max_new_tokens -= from;
    return rest;
  }

  // `said` is the answer from token `from` on, or the beginning of that. No
  // texts: they are not looked at.
  void ExpectRest(const Said& said, int32_t from) const {
    const int32_t size = static_cast<int32_t>(said.tokens.size());
    ASSERT_LE(from + size, count());
    const auto part = [&](const auto& all) {
      return std::vector(all.begin() + from, all.begin() + from + size);
    };
    EXPECT_EQ(said.tokens, part(truth_.tokens)) << "from " << from;
    if (!said.texts.empty()) {
      EXPECT_EQ(said.texts, part(truth_.texts)) << "from " << from;
    }
    const int64_t vocab_size = engine_.info().vocab_size;
    EXPECT_TRUE(SameBits(said.logits,
                         absl::MakeConstSpan(truth_.logits)
                             .subspan(from * vocab_size, size * vocab_size)))
        << "from " << from;
    if (said.reason == FinishReason::kNone) return;
    EXPECT_EQ(from + size, count());
    EXPECT_EQ(said.reason, truth_.reason);
    if (size > 0 && said.texts.empty()) return;
    EXPECT_EQ(said.tail, truth_.tail) << "from " << from;
  }

  // ... and was drafted in the steps in which a session with `options` does it
  // that was given the first `from` tokens as a prompt. That has no history of
  // an answer, so says something else if penalties look at one.
  void ExpectSteps(const Said& said, int32_t from,
                   const SessionOptions& options) const {
    if (!options.draft_tokens.has_value()) return;  // Steps depend on time.
    const SamplingOptions& sampling = generate_.sampling;
    if (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0) {
      return;
    }
    Reference& reference = ReferenceFrom(from, options);
    const size_t heard = reference.said.tokens.size();
    if (heard < said.tokens.size()) {
      Listen(*reference.session, &reference.said,
             static_cast<int32_t>(said.tokens.size() - heard));
    }
    std::vector<Step> expected = reference.said.steps;
    ASSERT_LE(said.steps.size(), expected.size()) << "from " << from;
    expected.resize(said.steps.size());
    EXPECT_EQ(said.steps, expected) << "from " << from;
  }

  // The loop of `session` stands behind `from` tokens: the next ones, `most` of
  // them, are as they should be.
  void ExpectGoesOn(Session& session, int32_t from,
                    const SessionOptions& options,
                    int32_t most = kAWhile) const {
    Said said;
    Listen(session, &said, most);
    ExpectHeard(said, from, most, options);
  }
  void ExpectGoesOn(Session& session, int32_t from) const {
    ExpectGoesOn(session, from, options_);
  }
  // `session` stands behind `from` tokens and is asked for the next ones.
  void ExpectAnswers(Session& session, int32_t from,
                     const SessionOptions& options) const {
    ASSERT_TRUE(session.Start(Rest(from)).ok());
    Said said;
    Listen(session, &said, kAWhile);
    said.texts.clear();  // A character may have been cut.
    ExpectHeard(said, from, kAWhile, options);
  }
  void ExpectAnswers(Session& session, int32_t from) const {
    ExpectAnswers(session, from, options_);
  }
  // `said` is what was heard of `most` tokens from `from` on.
  void ExpectHeard(const Said& said, int32_t from, int32_t most,
                   const SessionOptions& options) const {
    EXPECT_EQ(static_cast<int32_t>(said.tokens.size()),
              std::min(most, count() - from));
    ExpectRest(said, from);
    ExpectSteps(said, from, options);
  }

 private:
  struct Reference {
    std::unique_ptr<Session> session;
    Said said;
  };

  Reference& ReferenceFrom(int32_t from, const SessionOptions& options) const {
    Reference& reference = references_[std::make_tuple(
        from, *options.draft_tokens, options.drafter.get(), options.lookup)];
    if (reference.session == nullptr && from < count()) {
      reference.session = Started(options, from);
    }
    return reference;
  }

  Engine& engine_;
  const std::vector<TokenId> prompt_;
  GenerateOptions generate_;
  SessionOptions options_;
  std::shared_ptr<Oracle> oracle_;
  Said truth_, alone_;
  // By token, number of drafts and who makes them.
  mutable std::map<std::tuple<int32_t, int32_t, Drafter*, bool>, Reference>
      references_;
};

std::unique_ptr<Session> Fork(const Session& session) {
  auto fork = session.Fork();
  EXPECT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ((*fork)->tokens(), session.tokens());
  EXPECT_EQ((*fork)->finish_reason(), session.finish_reason());
  EXPECT_EQ((*fork)->max_context(), session.max_context());
  EXPECT_EQ((*fork)->waiting(), 0);
  EXPECT_EQ((*fork)->stats().seed, session.stats().seed);
  EXPECT_EQ((*fork)->stats().delivered_tokens, 0);
  EXPECT_EQ((*fork)->stats().steps, 0);
  return *std::move(fork);
}

Snapshot Take(const Session& session) {
  auto snapshot = session.Take();
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->position(), session.position());
  return *std::move(snapshot);
}

void Restore(Session& session, const Snapshot& snapshot) {
  const absl::Status status = session.Restore(snapshot);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(session.position(), snapshot.position());
  EXPECT_EQ(session.waiting(), 0);
  const SessionStats stats = session.stats();
  EXPECT_EQ(stats.accepted + stats.steps,
            stats.delivered_tokens + stats.discarded);
}

GenerateOptions Answer(int32_t count) {
  GenerateOptions generate;
  generate.max_new_tokens = count;
  return generate;
}

Scenario Greedy(const Model& model, Drafts drafts = Drafts::kModel,
                Rollback rollback = Rollback::kJournal) {
  return Scenario(EngineOf(model), PromptOf(model), Answer(model.new_tokens),
                  drafts, rollback);
}

enum class Picks { kGreedy, kSampled, kPenalised };

struct Case {
  Model model;
  Drafts drafts;
  Rollback rollback;
  Picks picks;
};

std::vector<Case> Cases() {
  if (testing::FewerIfEmulated<std::string>("cases", "all",
                                            "one of each kind") != "all") {
    return {
        {kToy, Drafts::kModel, Rollback::kJournal, Picks::kGreedy},
        {kToy, Drafts::kScripted, Rollback::kSlots, Picks::kPenalised},
        {kToy, Drafts::kNone, Rollback::kSlots, Picks::kPenalised},
        {kToy, Drafts::kLookup, Rollback::kJournal, Picks::kGreedy},
        {kOdd, Drafts::kModel, Rollback::kSlots, Picks::kSampled},
        {kOdd, Drafts::kScripted, Rollback::kJournal, Picks::kPenalised},
    };
  }
  std::vector<Case> cases;
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    for (const Picks picks :
         {Picks::kGreedy, Picks::kSampled, Picks::kPenalised}) {
      cases.push_back({kToy, Drafts::kModel, rollback, picks});
      cases.push_back({kToy, Drafts::kScripted, rollback, picks});
    }
    cases.push_back({kToy, Drafts::kNone, rollback, Picks::kPenalised});
    cases.push_back({kToy, Drafts::kLookup, rollback, Picks::kGreedy});
    cases.push_back({kOdd, Drafts::kModel, rollback, Picks::kSampled});
    cases.push_back({kOdd, Drafts::kScripted, rollback, Picks::kPenalised});
    cases.push_back({kWide, Drafts::kModel, rollback, Picks::kPenalised});
    cases.push_back({kWide, Drafts::kScripted, rollback, Picks::kGreedy});
  }
  cases.push_back({kDemo, Drafts::kModel, Rollback::kSlots, Picks::kGreedy});
  cases.push_back({kBroad, Drafts::kModel, Rollback::kJournal, Picks::kGreedy});
  cases.push_back(
      {kBroad, Drafts::kScripted, Rollback::kSlots, Picks::kSampled});
  return cases;
}

class ForkRestoreTest : public ::testing::TestWithParam<Case> {
 protected:
  static Scenario Make() {
    const Case& c = GetParam();
    GenerateOptions generate = Answer(c.model.new_tokens);
    SamplingOptions& sampling = generate.sampling;
    sampling.seed = 7;
    if (c.picks != Picks::kGreedy) {
      sampling.temperature = 0.9f;
      sampling.top_k = 20;
      sampling.repetition_penalty = 1.2f;
    }
    if (c.picks == Picks::kPenalised) {
      sampling.presence_penalty = 0.3f;
      sampling.frequency_penalty = 0.4f;
    }
    return Scenario(EngineOf(c.model), PromptOf(c.model), generate, c.drafts,
                    c.rollback);
  }

  // Of sessions that can be given a snapshot of one with `scenario.options()`.
  static std::vector<SessionOptions> Others(const Scenario& scenario) {
    std::vector<SessionOptions> others(5, scenario.options());
    others[1].rollback = GetParam().rollback == Rollback::kJournal
                             ? Rollback::kSlots
                             : Rollback::kJournal;
    others[2].drafter = nullptr;
    others[2].lookup = false;
    others[2].draft_tokens = 0;
    others[3].drafter = scenario.oracle();
    others[3].lookup = false;
    others[3].draft_tokens = 5;
    others[4].drafter = nullptr;
    others[4].lookup = true;
    others[4].draft_tokens = 4;
    if (GetParam().drafts == Drafts::kModel) {
      others.resize(8, others[0]);
      others[5].draft_tokens = 1;
      others[6].draft_tokens = 3;
      others[6].rollback = others[1].rollback;
      // Just enough.
      others[6].max_context =
          static_cast<int32_t>(scenario.prompt().size()) + scenario.count();
      others[7].draft_tokens.reset();
    }
    return others;
  }
};

// Some forks go on at once, some when their source is at its end, some a little
// now and the rest then.
TEST_P(ForkRestoreTest, ForksBetweenTokens) {
  const Scenario scenario = Make();
  auto source = scenario.Started();
  std::vector<std::pair<std::unique_ptr<Session>, Said>> later;
  std::vector<int32_t> later_from;
  Said said;
  bool inside_a_block = false;
  for (int32_t i = 0; i <= scenario.count(); ++i) {
    inside_a_block |= source->waiting() > 0;
    auto fork = Fork(*source);
    if (i % 3 == 0) {
      scenario.ExpectGoesOn(*fork, i);
    } else {
      Said beginning;
      if (i % 3 == 1) Listen(*fork, &beginning, 2);
      later.emplace_back(std::move(fork), beginning);
      later_from.push_back(i);
    }
    Listen(*source, &said, 1);
  }
  EXPECT_TRUE(inside_a_block || scenario.alone().steps.size() ==
                                    static_cast<size_t>(scenario.count()));
  scenario.ExpectRest(said, 0);
  EXPECT_EQ(said.reason, scenario.truth().reason);
  EXPECT_EQ(said.steps, scenario.alone().steps);
  EXPECT_EQ(said.sources, scenario.alone().sources);
  source.reset();
  for (size_t i = 0; i < later.size(); ++i) {
    auto& [fork, rest] = later[i];
    const int32_t begun = static_cast<int32_t>(rest.tokens.size());
    const int32_t more = i % 5 == 0 ? scenario.count() : kAWhile;
    Listen(*fork, &rest, more);
    scenario.ExpectHeard(rest, later_from[i], begun + more, scenario.options());
  }
}

TEST_P(ForkRestoreTest, ForksInsideTheCallback) {
  const Scenario scenario = Make();
  auto source = scenario.NewSession(scenario.options());
  ASSERT_TRUE(source->Prefill(scenario.prompt()).ok());
  std::vector<std::unique_ptr<Session>> forks;
  Said said;
  const auto result =
      source->Generate(scenario.generate(), [&](const TokenEvent& token) {
        forks.push_back(Fork(*source));
        if (forks.size() % 3 == 0) {
          scenario.ExpectGoesOn(*forks.back(),
                                static_cast<int32_t>(forks.size()));
        }
        // The event is still what it was.
        said.tokens.push_back(token.id);
        said.texts.emplace_back(token.text);
        said.logits.insert(said.logits.end(), token.logits.begin(),
                           token.logits.end());
        return true;
      });
  ASSERT_TRUE(result.ok()) << result.status();
  said.reason = result->reason;
  said.tail = result->tail;
  scenario.ExpectRest(said, 0);
  EXPECT_EQ(source->stats().steps,
            static_cast<int64_t>(scenario.alone().steps.size()));
  EXPECT_EQ(source->stats().discarded, 0);
  for (size_t i = 0; i < forks.size(); ++i) {
    if ((i + 1) % 3 == 0) continue;
    scenario.ExpectGoesOn(*forks[i], static_cast<int32_t>(i) + 1);
  }
}

// Every snapshot into two sessions, which are new or in the midst of something,
// of its own kind or another; one of them is the session that it was taken of.
TEST_P(ForkRestoreTest, SnapshotsOfEveryToken) {
  const Scenario scenario = Make();
  auto source = scenario.Started();
  std::vector<std::pair<int32_t, Snapshot>> snapshots;
  Said said;
  for (int32_t i = 0; i <= scenario.count(); ++i) {
    snapshots.emplace_back(i, Take(*source));
    Listen(*source, &said, 1);
  }
  scenario.ExpectRest(said, 0);
  EXPECT_EQ(said.steps, scenario.alone().steps);

  const std::vector<SessionOptions> options = Others(scenario);
  std::vector<std::unique_ptr<Session>> sessions;
  for (const SessionOptions& o : options) {
    sessions.push_back(scenario.NewSession(o));
  }
  sessions[0] = std::move(source);
  Random random(3);
  for (size_t i = 0; i < snapshots.size(); ++i) {
    std::swap(snapshots[i],
              snapshots[random.Int(0, static_cast<int>(snapshots.size()) - 1)]);
  }
  size_t turn = 0;
  for (const auto& [from, snapshot] : snapshots) {
    Session& first = *sessions[turn % sessions.size()];
    Restore(first, snapshot);
    Said part;
    Listen(first, &part, random.Int(0, 9));
    scenario.ExpectRest(part, from);
    const size_t second = ++turn % sessions.size();
    Restore(*sessions[second], snapshot);
    scenario.ExpectGoesOn(*sessions[second], from, options[second]);
  }
}

// Case C17. A turn that ends, a checkpoint, another turn; back and again; a
// fork; a new turn: as a session says it all in one go, with the same drafts
// kept in the same steps.
TEST_P(ForkRestoreTest, TurnsAfterARestoreAndAFork) {
  const Scenario scenario = Make();
  const int32_t first = scenario.count() * 2 / 3;
  const auto turn = [&](Session& session, int32_t count) {
    GenerateOptions generate = scenario.generate();
    generate.max_new_tokens = count;
    EXPECT_TRUE(session.Start(generate).ok());
    return ListenToTheEnd(session);
  };
  const std::vector<TokenId> question = {1, 2, 3, 4, 5};
  const auto equal = [](const Said& a, const Said& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.texts, b.texts);
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.sources, b.sources);
    EXPECT_TRUE(SameBits(a.logits, b.logits));
  };

  auto alone = scenario.NewSession(scenario.options());
  ASSERT_TRUE(alone->Prefill(scenario.prompt()).ok());
  const Said first_turn = turn(*alone, first);
  const Said second_turn = turn(*alone, first / 2);
  ASSERT_TRUE(alone->Prefill(question).ok());
  const Said third_turn = turn(*alone, first / 2);

  auto session = scenario.NewSession(scenario.options());
  ASSERT_TRUE(session->Prefill(scenario.prompt()).ok());
  equal(turn(*session, first), first_turn);
  const Snapshot snapshot = Take(*session);
  equal(turn(*session, first / 2), second_turn);
  Restore(*session, snapshot);
  equal(turn(*session, first / 2), second_turn);
  auto fork = Fork(*session);
  for (Session* each : {fork.get(), session.get()}) {
    ASSERT_TRUE(each->Prefill(question).ok());
    equal(turn(*each, first / 2), third_turn);
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  static const char* const kDrafts[] = {"plain", "drafting", "scripted",
                                        "lookup"};
  static const char* const kPicks[] = {"greedy", "sampled", "penalised"};
  const Case& c = info.param;
  return c.model.name + "_" + kDrafts[static_cast<int>(c.drafts)] + "_" +
         (c.rollback == Rollback::kSlots ? "slots" : "journal") + "_" +
         kPicks[static_cast<int>(c.picks)];
}

INSTANTIATE_TEST_SUITE_P(Sessions, ForkRestoreTest,
                         ::testing::ValuesIn(Cases()), CaseName);

TEST(ForkTest, ScriptedDraftsAreKeptInAllDegrees) {
  const Scenario scenario = Greedy(kToy, Drafts::kScripted);
  bool none = false, some = false, all = false;
  for (const auto& [drafted, accepted] : scenario.alone().steps) {
    none |= drafted > 0 && accepted == 0;
    some |= accepted > 0 && accepted < drafted;
    all |= accepted > 0 && accepted == drafted;
  }
  EXPECT_TRUE(none && some && all);
}

// Case S2.
TEST(ForkTest, OneForkDoesNotDisturbTheNext) {
  for (const Model& model : {kToy, kOdd}) {
    const Scenario scenario = Greedy(model);
    auto source = scenario.Started();
    Said said;
    Listen(*source, &said, 5);
    auto first = Fork(*source);
    auto second = Fork(*source);
    scenario.ExpectGoesOn(*first, 5);
    auto third = Fork(*source);
    scenario.ExpectGoesOn(*third, 5);
    scenario.ExpectGoesOn(*second, 5);
    Listen(*source, &said);
    scenario.ExpectRest(said, 0);
    EXPECT_EQ(said.steps, scenario.alone().steps);
  }
}

// Each from the one before, which is gone by then.
TEST(ForkTest, OfAForkOfAFork) {
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    const Scenario scenario = Greedy(kOdd, Drafts::kScripted, rollback);
    auto session = scenario.Started();
    Said said;
    for (int32_t i = 0; i < scenario.count(); ++i) {
      session = Fork(*session);
      Listen(*session, &said, 1);
    }
    Listen(*session, &said);
    scenario.ExpectRest(said, 0);
    EXPECT_EQ(said.reason, FinishReason::kMaxTokens);
  }
}

TEST(ForkTest, OfAnEmptySession) {
  for (const Drafts drafts : {Drafts::kNone, Drafts::kModel}) {
    const Scenario scenario = Greedy(kToy, drafts);
    auto source = scenario.NewSession(scenario.options());
    auto fork = Fork(*source);
    const Snapshot snapshot = Take(*source);
    EXPECT_EQ(snapshot.position(), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(fork->Start({})));
    // Also a session that was filled and emptied, or is full.
    auto reset = scenario.Started();
    ListenToTheEnd(*reset);
    auto full = Fork(*reset);
    reset->Reset();
    auto forked = Fork(*reset);
    Restore(*full, snapshot);
    for (Session* session :
         {source.get(), fork.get(), reset.get(), forked.get(), full.get()}) {
      ASSERT_TRUE(session->Prefill(scenario.prompt()).ok());
      scenario.ExpectAnswers(*session, 0);
    }
  }
}

// Of a prompt of one token nothing has been processed, and a draft model has
// nothing to know.
TEST(ForkTest, RightAfterAPromptOfOneToken) {
  const Scenario scenario(EngineOf(kOdd), {5}, Answer(20));
  SessionOptions plain = scenario.options();
  plain.draft_tokens = 0;
  for (const SessionOptions& options : {plain, scenario.options()}) {
    auto source = scenario.NewSession(options);
    ASSERT_TRUE(source->Prefill(scenario.prompt()).ok());
    auto fork = Fork(*source);
    EXPECT_TRUE(absl::IsFailedPrecondition(fork->Next().status()));
    auto restored = scenario.Started();
    ListenToTheEnd(*restored);
    Restore(*restored, Take(*source));
    EXPECT_TRUE(absl::IsFailedPrecondition(restored->Next().status()));
    scenario.ExpectAnswers(*fork, 0, options);
    scenario.ExpectAnswers(*restored, 0);
    scenario.ExpectAnswers(*source, 0, options);
  }
}

// What is left of a prompt stays with the session that was given it.
TEST(ForkTest, InAPromptOfStepMany) {
  Random random(8);
  std::vector<TokenId> prompt(450);
  for (TokenId& id : prompt) id = random.Int(0, 31);
  const Scenario scenario(EngineOf(kToy), prompt, Answer(12));
  auto source = scenario.NewSession(scenario.options());
  ASSERT_TRUE(source->StartPrefill(prompt).ok());
  const auto step = [&] {
    Session* const sessions[] = {source.get()};
    const auto statuses = scenario.engine().StepMany(sessions);
    ASSERT_TRUE(statuses.ok() && (*statuses)[0].ok());
  };
  std::vector<std::unique_ptr<Session>> forks;
  auto restored = scenario.NewSession(scenario.options());
  while (source->prefill_left() > 0) {
    forks.push_back(Fork(*source));
    EXPECT_EQ(forks.back()->prefill_left(), 0);
    ASSERT_TRUE(restored->StartPrefill({1, 2, 3}).ok());
    Restore(*restored, Take(*source));
    EXPECT_EQ(restored->prefill_left(), 0);
    step();
  }
  EXPECT_GE(forks.size(), 3u);
  forks.push_back(std::move(restored));
  for (const auto& fork : forks) {
    ASSERT_TRUE(
        fork->Prefill(absl::MakeConstSpan(prompt).subspan(fork->position()))
            .ok());
    scenario.ExpectAnswers(*fork, 0);
  }
  scenario.ExpectAnswers(*source, 0);
}

// Answers of one token are not drafted, so that rows wait for the draft model:
// none, some, and as many as are kept before they have to be injected.
TEST(ForkTest, WithAnyNumberOfRowsWaitingForTheDraft) {
  std::vector<Model> models = {kToy, kOdd};
  models.resize(testing::FewerIfEmulated("models with waiting rows", 2, 1));
  for (const Model& model : models) {
    const Scenario scenario(EngineOf(model), PromptOf(model), Answer(90));
    auto source = scenario.NewSession(scenario.options());
    ASSERT_TRUE(source->Prefill(scenario.prompt()).ok());
    auto restored = scenario.NewSession(scenario.options());
    for (int32_t i = 0; i < 84; ++i) {
      if (i % 5 == 0 || (i > 58 && i < 70)) {
        auto fork = Fork(*source);
        Restore(*restored, Take(*source));
        for (Session* session : {fork.get(), restored.get()}) {
          scenario.ExpectAnswers(*session, i);
        }
      }
      GenerateOptions one = scenario.generate();
      one.max_new_tokens = 1;
      ASSERT_TRUE(source->Start(one).ok());
      Said said;
      Listen(*source, &said, 1);
      said.texts.clear();
      scenario.ExpectRest(said, i);
      EXPECT_EQ(said.steps, std::vector<Step>({{0, 0}}));
    }
    scenario.ExpectAnswers(*source, 84);
  }
}

// An answer of euro signs, three tokens each: biases pick the bytes in turn and
// the frequency penalty moves on, so history counts. Forks stand inside a
// character and inside what may become a stop text.
TEST(ForkTest, InsideACharacterAndInsideAStopText) {
  for (const Drafts drafts : {Drafts::kModel, Drafts::kScripted}) {
    Engine& engine = EngineOf(drafts == Drafts::kModel ? kWide : kOdd);
    const auto euro =
        engine.tokenizer().Encode("\u20AC", Tokenizer::Special::kAsText);
    ASSERT_TRUE(euro.ok());
    ASSERT_EQ(euro->size(), 3u);
    GenerateOptions generate = Answer(20);
    generate.sampling.frequency_penalty = 100.0f;
    for (int i = 0; i < 3; ++i) {
      generate.sampling.logit_bias.push_back(
          {(*euro)[i], 1000.0f - 30.0f * static_cast<float>(i)});
    }
    struct End {
      std::vector<std::string> stop_texts;
      FinishReason reason;
      size_t tokens;
      std::string tail;
    };
    const End ends[] = {
        {{}, FinishReason::kMaxTokens, 20, "\uFFFD"},
        {{"\u20AC\u20AC\u20AC\u20AC!"},
         FinishReason::kMaxTokens,
         20,
         "\u20AC\u20AC\u20AC\u20AC\uFFFD"},
        {{"\u20AC\u20AC\u20AC\u20AC", "no"}, FinishReason::kStopText, 12, ""},
    };
    for (const End& end : ends) {
      generate.stop_texts = end.stop_texts;
      const Scenario scenario(engine, {1, 2, 3}, generate, drafts);
      ASSERT_EQ(scenario.truth().tokens.size(), end.tokens);
      EXPECT_EQ(scenario.truth().reason, end.reason);
      EXPECT_EQ(scenario.truth().tail, end.tail);
      auto source = scenario.Started();
      auto restored = scenario.Started();
      Said said;
      // Four tokens are a character and a byte.
      const int32_t step =
          4 / testing::FewerIfEmulated("forks in four tokens", 4, 1);
      for (int32_t i = 0; i <= scenario.count(); ++i) {
        if (i % step == 0) {
          auto fork = Fork(*source);
          Restore(*restored, Take(*source));
          scenario.ExpectRest(ListenToTheEnd(*fork), i);
          scenario.ExpectRest(ListenToTheEnd(*restored), i);
        }
        Listen(*source, &said, 1);
      }
      scenario.ExpectRest(said, 0);
      EXPECT_EQ(said.tail, end.tail);
      EXPECT_EQ(said.steps, scenario.alone().steps);
    }
  }
}

// Case C26. A seed that nobody gave is the fork's too; another one, and a new
// answer, say something else.
TEST(ForkTest, ContinuesTheRandomNumbers) {
  // The seed is the system's: no stop token may come by chance.
  GenerateOptions generate = Answer(30);
  generate.ignore_model_stop_tokens = true;
  generate.sampling.temperature = 1.5f;
  const Model& model = kOdd;
  auto source = *EngineOf(model).NewSession();
  ASSERT_TRUE(source->Prefill(PromptOf(model)).ok());
  ASSERT_TRUE(source->Start(generate).ok());
  const uint64_t seed = source->stats().seed;
  Said said;
  Listen(*source, &said, 7);
  auto fork = Fork(*source);
  const Snapshot snapshot = Take(*source);
  auto other = Fork(*source);
  EXPECT_EQ(fork->stats().seed, seed);
  const Said rest = ListenToTheEnd(*source);
  EXPECT_EQ(ListenToTheEnd(*fork).tokens, rest.tokens);
  SessionOptions plain;
  plain.draft_tokens = 0;
  auto restored = *EngineOf(model).NewSession(plain);
  Restore(*restored, snapshot);
  EXPECT_EQ(restored->stats().seed, seed);
  EXPECT_EQ(ListenToTheEnd(*restored).tokens, rest.tokens);

  generate.max_new_tokens -= 7;
  generate.sampling.seed = seed;
  Restore(*restored, snapshot);
  ASSERT_TRUE(restored->Start(generate).ok());
  EXPECT_EQ(ListenToTheEnd(*restored).tokens, rest.tokens);
  generate.sampling.seed = seed + 1;
  ASSERT_TRUE(other->Start(generate).ok());
  EXPECT_NE(ListenToTheEnd(*other).tokens, rest.tokens);
}

// Sources and forks of different moments in shared passes.
TEST(ForkTest, ForksStepTogether) {
  for (const Model& model : {kToy, kOdd}) {
    const Scenario scenario = Greedy(model);
    std::vector<std::unique_ptr<Session>> sessions;
    sessions.push_back(scenario.Started());
    std::vector<Said> said(1);
    std::vector<int32_t> from(1, 0);
    bool active = true;
    while (active) {
      std::vector<Session*> all;
      for (const auto& session : sessions) all.push_back(session.get());
      const auto statuses = scenario.engine().StepMany(all);
      ASSERT_TRUE(statuses.ok()) << statuses.status();
      active = false;
      for (size_t i = 0; i < sessions.size(); ++i) {
        ASSERT_TRUE((*statuses)[i].ok()) << (*statuses)[i];
        // One token: the rest of a block waits while others run.
        Listen(*sessions[i], &said[i], 1);
        active |= said[i].reason == FinishReason::kNone;
      }
      if (sessions.size() < 6) {
        sessions.push_back(Fork(*sessions.back()));
        from.push_back(from.back() +
                       static_cast<int32_t>(said.back().tokens.size()));
        said.emplace_back();
      }
    }
    for (size_t i = 0; i < sessions.size(); ++i) {
      scenario.ExpectRest(said[i], from[i]);
    }
  }
}

// A cancel that nobody has seen yet, and a reset that is put off, are the
// source's.
TEST(ForkTest, LeavesCancelAndResetBehind) {
  const Scenario scenario = Greedy(kToy);
  auto source = scenario.Started();
  Said said;
  Listen(*source, &said, 4);
  source->Cancel();
  auto fork = Fork(*source);
  const Snapshot snapshot = Take(*source);
  EXPECT_FALSE((*source->Next()).has_value());
  EXPECT_EQ(source->finish_reason(), FinishReason::kCancelled);
  scenario.ExpectGoesOn(*fork, 4);
  source->Cancel();
  Restore(*source, snapshot);
  scenario.ExpectGoesOn(*source, 4);

  source = scenario.NewSession(scenario.options());
  ASSERT_TRUE(source->Prefill(scenario.prompt()).ok());
  ASSERT_TRUE(source
                  ->Generate(scenario.generate(),
                             [&](const TokenEvent&) {
                               source->Reset();
                               fork = Fork(*source);
                               return true;
                             })
                  .ok());
  EXPECT_EQ(source->position(), 0);
  scenario.ExpectGoesOn(*fork, 1);
}

// Case S3: the application's drafter, or the callback, cancels; a verification
// is given up before its first layer.
TEST(ForkTest, AfterACancelInADraftOrACallback) {
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    const Scenario scenario = Greedy(kOdd, Drafts::kScripted, rollback);
    auto bystander = scenario.Started();
    Said bystander_said;
    for (int32_t after = 0; after < scenario.count(); after += 4) {
      for (const bool in_callback : {false, true}) {
        auto source = scenario.NewSession(scenario.options());
        ASSERT_TRUE(source->Prefill(scenario.prompt()).ok());
        const Snapshot prompt = Take(*source);
        const int64_t begin = source->position();
        const auto cancel = [&] {
          if (source->position() >= begin + after) {
            source->Cancel();
          }
        };
        if (!in_callback) scenario.oracle()->on_propose = cancel;
        const auto result =
            source->Generate(scenario.generate(), [&](const TokenEvent&) {
              if (in_callback) cancel();
              return true;
            });
        scenario.oracle()->on_propose = nullptr;
        ASSERT_TRUE(result.ok()) << result.status();
        const int32_t from = result->delivered;
        EXPECT_EQ(source->waiting(), 0);
        Listen(*bystander, &bystander_said, 1);
        auto fork = Fork(*source);
        auto restored = scenario.Started();
        Restore(*restored, Take(*source));
        for (Session* session : {fork.get(), restored.get(), source.get()}) {
          EXPECT_EQ(session->finish_reason(), source->finish_reason());
          if (from == scenario.count()) continue;
          EXPECT_EQ(session->finish_reason(), FinishReason::kCancelled);
          scenario.ExpectAnswers(*session, from);
        }
        Restore(*source, prompt);
        scenario.ExpectAnswers(*source, 0);
      }
    }
    Listen(*bystander, &bystander_said);
    scenario.ExpectRest(bystander_said, 0);
    EXPECT_EQ(bystander_said.steps, scenario.alone().steps);
  }
}

// Case S3: at whatever moment, in a prompt, a draft or between two layers; what
// goes on is a fork, a restored snapshot, or the session itself.
TEST(ForkTest, AfterACancelFromAnotherThread) {
  Random random(8);
  std::vector<TokenId> prompt(300);
  for (TokenId& id : prompt) id = random.Int(0, 255);
  const Scenario scenario(EngineOf(kWide), prompt, Answer(40));
  const int rounds = testing::FewerIfEmulated("rounds of cancels", 3, 1);
  for (int round = 0; round < rounds; ++round) {
    auto session = scenario.NewSession(scenario.options());
    std::atomic<Session*> victim{session.get()};
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done) {
        std::this_thread::sleep_for(std::chrono::microseconds(100 << round));
        if (Session* s = victim.exchange(nullptr)) {
          s->Cancel();
          victim = s;
        }
      }
    });
    int cancels = 0;
    Said said;
    int32_t from = 0;
    while (from < scenario.count()) {
      const size_t size = session->position();
      bool cancelled;
      if (size < prompt.size()) {
        const absl::Status status =
            session->Prefill(absl::MakeConstSpan(prompt).subspan(size).first(
                std::min<size_t>(60, prompt.size() - size)));
        cancelled = absl::IsCancelled(status);
        ASSERT_TRUE(status.ok() || cancelled) << status;
      } else {
        ASSERT_TRUE(session->Start(scenario.Rest(from)).ok());
        said = ListenToTheEnd(*session);
        cancelled = said.reason == FinishReason::kCancelled;
        if (cancelled) said.reason = FinishReason::kNone;
        said.texts.clear();
        scenario.ExpectRest(said, from);
        from += static_cast<int32_t>(said.tokens.size());
      }
      if (!cancelled) continue;
      if (++cancels > 40) done = true;
      // Out of the other thread's reach while it is replaced.
      Session* reached = session.get();
      while (!victim.compare_exchange_weak(reached, nullptr)) {
        reached = session.get();
      }
      if (cancels % 3 == 0) {
        session = Fork(*session);
      } else if (cancels % 3 == 1) {
        const Snapshot snapshot = Take(*session);
        session = scenario.NewSession(scenario.options());
        Restore(*session, snapshot);
      }
      victim = session.get();
    }
    done = true;
    other.join();
    auto fork = Fork(*session);
    EXPECT_EQ(fork->position(),
              static_cast<int64_t>(prompt.size() + scenario.count()));
  }
}

// Rows are folded while a state is copied.
TEST(ForkTest, TheHostsRoundingChangesNothing) {
  const Scenario scenario = Greedy(kOdd, Drafts::kScripted);
  auto source = scenario.Started();
  auto restored = scenario.NewSession(scenario.options());
  for (int32_t i = 0; i < scenario.count(); i += 2) {
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    auto fork = Fork(*source);
    Restore(*restored, Take(*source));
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
    scenario.ExpectGoesOn(*fork, i);
    scenario.ExpectGoesOn(*restored, i);
    Said said;
    Listen(*source, &said, 2);
  }
}

TEST(SnapshotTest, OutlivesSessionAndEngine) {
  const Scenario scenario = Greedy(kOdd);
  auto engine = Open(kOdd);
  std::optional<Snapshot> snapshot;
  std::unique_ptr<Session> fresh;
  {
    auto session = *engine->NewSession(scenario.options());
    fresh = *engine->NewSession(scenario.options());
    ASSERT_TRUE(session->Prefill(scenario.prompt()).ok());
    ASSERT_TRUE(session->Start(scenario.generate()).ok());
    Said said;
    Listen(*session, &said, 9);
    snapshot = Take(*Fork(*session));
  }
  engine.reset();
  for (int i = 0; i < 2; ++i) {
    const Snapshot copy = *snapshot;
    Restore(*fresh, copy);
    auto fork = Fork(*fresh);
    scenario.ExpectGoesOn(*fresh, 9);
    scenario.ExpectGoesOn(*fork, 9);
  }
  fresh.reset();
  // The last one that holds the engine.
  EXPECT_EQ(snapshot->position(),
            static_cast<int64_t>(scenario.prompt().size()) + 9);
}

TEST(SnapshotTest, TellsWhatItHolds) {
  Engine& engine = EngineOf(kDemo);
  for (const int32_t draft_tokens : {0, 7}) {
    SessionOptions options;
    options.draft_tokens = draft_tokens;
    auto session = *engine.NewSession(options);
    int64_t last = 0;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(session->Prefill(std::vector<TokenId>(20, 65 + i)).ok());
      const int64_t before = LiveAllocatedBytes();
      std::optional<Snapshot> snapshot = Take(*session);
      const int64_t held = LiveAllocatedBytes() - before;
      EXPECT_GE(held, snapshot->bytes());
      EXPECT_LE(held, snapshot->bytes() + snapshot->bytes() / 20);
      EXPECT_GT(snapshot->bytes(), last);
      last = snapshot->bytes();
      const Snapshot copy = *snapshot;
      EXPECT_EQ(copy.bytes(), snapshot->bytes());
      EXPECT_EQ(LiveAllocatedBytes() - before, held) << "copies share";
      snapshot.reset();
      EXPECT_EQ(LiveAllocatedBytes() - before, held);
    }
    EXPECT_LT(last, engine.EstimateMemory(options)->total() / 4);
  }
}

TEST(SnapshotTest, RefusedOnesChangeNothing) {
  const Scenario scenario = Greedy(kToy);
  const Scenario plain = Greedy(kToy, Drafts::kNone);
  auto engine = Open(kToy);
  auto stranger = *engine->NewSession();
  ASSERT_TRUE(stranger->Prefill({1, 2}).ok());
  SessionOptions roomy = scenario.options();
  roomy.max_context = 500;
  const int32_t most = scenario.options().max_context;
  auto long_session = scenario.NewSession(roomy);
  ASSERT_TRUE(long_session->Prefill(std::vector<TokenId>(most + 1, 3)).ok());
  auto plain_session = plain.Started();

  auto session = scenario.Started();
  Said said;
  const auto refused = [&](const Snapshot& snapshot,
                           absl::StatusCode code) -> std::string {
    Listen(*session, &said, 2);
    const int32_t waiting = session->waiting();
    const absl::Status status = session->Restore(snapshot);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(session->waiting(), waiting);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(Take(*stranger), absl::StatusCode::kInvalidArgument),
              HasSubstr("another engine"));
  const std::string too_long =
      refused(Take(*long_session), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long, HasSubstr(std::to_string(most + 1) + " tokens"));
  EXPECT_THAT(too_long, HasSubstr("max_context is " + std::to_string(most)));
  EXPECT_THAT(refused(Take(*plain_session), absl::StatusCode::kInvalidArgument),
              HasSubstr("draft"));
  // The session goes on as if nothing had been asked.
  Listen(*session, &said);
  scenario.ExpectRest(said, 0);
  EXPECT_EQ(said.steps, scenario.alone().steps);

  // Exactly full is not too long.
  Session& full = *long_session;
  full.Reset();
  ASSERT_TRUE(full.Prefill(std::vector<TokenId>(most, 3)).ok());
  Restore(*session, Take(full));
  ASSERT_TRUE(session->Start({}).ok());
  EXPECT_FALSE((*session->Next()).has_value());
  EXPECT_EQ(session->finish_reason(), FinishReason::kContextFull);
}

TEST(SnapshotTest, NotRestoredInsideACall) {
  const Scenario scenario = Greedy(kToy, Drafts::kScripted);
  auto session = scenario.NewSession(scenario.options());
  ASSERT_TRUE(session->Prefill(scenario.prompt()).ok());
  const Snapshot snapshot = Take(*session);
  int asked = 0;
  const auto ask = [&] {
    ++asked;
    const absl::Status status = session->Restore(snapshot);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("inside a call"));
  };
  scenario.oracle()->on_propose = ask;
  Said said;
  const auto result =
      session->Generate(scenario.generate(), [&](const TokenEvent& token) {
        ask();
        said.tokens.push_back(token.id);
        said.texts.emplace_back(token.text);
        said.logits.insert(said.logits.end(), token.logits.begin(),
                           token.logits.end());
        return true;
      });
  scenario.oracle()->on_propose = nullptr;
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(asked, scenario.count());
  scenario.ExpectRest(said, 0);
}

TEST(SnapshotTest, AForkKeepsItsSourcesMemoryLimit) {
  const Scenario scenario = Greedy(kToy);
  SessionOptions options = scenario.options();
  options.memory_limit_bytes =
      scenario.engine().EstimateMemory(options)->total();
  auto source = scenario.Started(options);
  auto fork = Fork(*Fork(*source));
  scenario.ExpectGoesOn(*fork, 0);
}

// Of every single allocation, and of it and all later ones.
TEST(SnapshotTest, NoMemoryIsAnErrorWhereverItStrikes) {
  for (const Model& model : {kToy, kWide}) {
    for (const bool and_all_after : {false, true}) {
      const Scenario scenario = Greedy(model);
      auto source = scenario.Started();
      // Has no room for scores yet.
      SessionOptions scripted = scenario.options();
      scripted.drafter = scenario.oracle();
      auto target = scenario.NewSession(scripted);
      ASSERT_TRUE(target->Prefill(scenario.prompt()).ok());
      GenerateOptions silent = scenario.generate();
      silent.logits = false;
      ASSERT_TRUE(target->Start(silent).ok());
      Said said, target_said;
      Listen(*source, &said, 3);
      while (target->waiting() == 0) Listen(*target, &target_said, 1);
      const Snapshot snapshot = Take(*source);

      // Calls `call` with the first, the second, ... allocation refused until
      // it succeeds; how often it did not.
      const auto failures = [&](const std::function<absl::Status()>& call) {
        const int64_t before = LiveAllocatedBytes();
        for (int nth = 1;; ++nth) {
          absl::Status status;
          {
            const ScopedAllocationFailure failure(nth, and_all_after);
            status = call();
          }
          if (status.ok()) return nth - 1;
          EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
          EXPECT_EQ(LiveAllocatedBytes(), before);
        }
      };
      std::unique_ptr<Session> fork;
      EXPECT_GT(failures([&] {
                  auto made = source->Fork();
                  if (made.ok()) fork = *std::move(made);
                  return made.status();
                }),
                8);
      std::optional<Snapshot> taken;
      EXPECT_GT(failures([&] {
                  auto made = source->Take();
                  if (made.ok()) taken = *std::move(made);
                  return made.status();
                }),
                6);
      const int32_t waiting = target->waiting();
      EXPECT_EQ(failures([&] {
                  const absl::Status status = target->Restore(snapshot);
                  if (!status.ok()) {
                    EXPECT_EQ(target->waiting(), waiting);
                    Listen(*target, &target_said);
                    EXPECT_EQ(target_said.tokens, scenario.truth().tokens);
                  }
                  return status;
                }),
                1);
      scenario.ExpectGoesOn(*fork, 3);
      scenario.ExpectGoesOn(*target, 3, scripted);
      Restore(*target, *taken);
      scenario.ExpectGoesOn(*target, 3, scripted);
      Listen(*source, &said);
      scenario.ExpectRest(said, 0);
      EXPECT_EQ(said.steps, scenario.alone().steps);
    }
  }
}

// Few tokens: threads that share cores with other tests wait for one another.
TEST(ForkThreadsTest, EnginesOfSeveralThreads) {
  for (const int threads : {2, 3}) {
    const Model& model = threads == 2 ? kWide : kToy;
    const Scenario truth(EngineOf(model), PromptOf(model), Answer(5));
    const auto engine = Open(model, threads);
    auto source = *engine->NewSession(truth.options());
    ASSERT_TRUE(source->Prefill(truth.prompt()).ok());
    ASSERT_TRUE(source->Start(truth.generate()).ok());
    SessionOptions slots = truth.options();
    slots.rollback = Rollback::kSlots;
    auto restored = *engine->NewSession(slots);
    Said said;
    Listen(*source, &said, 2);
    auto fork = Fork(*source);
    Restore(*restored, Take(*source));
    truth.ExpectGoesOn(*fork, 2);
    truth.ExpectGoesOn(*restored, 2);
    Listen(*source, &said);
    truth.ExpectRest(said, 0);
    EXPECT_EQ(said.steps, truth.alone().steps);
  }
}

TEST(ForkThreadsTest, ASnapshotSharedByTwoThreads) {
  const Scenario scenario(EngineOf(kOdd), PromptOf(kOdd), Answer(12));
  std::optional<Snapshot> snapshot;
  {
    auto source = scenario.Started();
    Said said;
    Listen(*source, &said, 4);
    snapshot = Take(*source);
  }
  std::vector<std::thread> threads;
  std::vector<Said> said(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const Snapshot copy = *snapshot;
      auto session = scenario.NewSession(scenario.options());
      for (int round = 0; round < 3; ++round) {
        Restore(*session, copy);
        said[i] = {};
        Listen(*session, &said[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Said& each : said) {
    scenario.ExpectRest(each, 4);
    scenario.ExpectSteps(each, 4, scenario.options());
  }
}

}  // namespace
}  // namespace deltaedge
