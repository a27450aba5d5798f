// SPDX-License-Identifier: Apache-2.0

// The promise: the same tokens and the same bits of the scores with any draft,
// any number of drafted tokens, either way of rolling back, any thread count
// and any split of the prompt, for every sampler setting. Equality is memcmp,
// never a tolerance.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;
using testing::ScriptedDrafter;
using Round = ScriptedDrafter::Round;

struct Model {
  const char* name;
  const char* target;
  const char* draft;
  int32_t prompt_tokens;
  int32_t new_tokens;
};

// One prompt is longer than a chunk. An emulator takes the first two.
const Model kModels[] = {
    {"odd", "tests/testdata/models/odd.gdn",
     "tests/testdata/models/odd_draft.gdn", 70, 40},
    {"moe", "tests/testdata/models/moe.gdn",
     "tests/testdata/models/moe_draft.gdn", 21, 40},
    {"toy", "tests/testdata/models/t.gdn", "tests/testdata/models/t_draft.gdn",
     280, 40},
    {"toy_causal", "tests/testdata/models/t.gdn",
     "tests/testdata/models/t_draft_causal.gdn", 5, 40},
    {"toy_symmetric", "tests/testdata/models/t.gdn",
     "tests/testdata/models/t_draft_symmetric.gdn", 1, 40},
    {"wide", "tests/testdata/models/wide.gdn",
     "tests/testdata/models/wide_draft.gdn", 3, 40},
    {"broad", "tests/testdata/models/broad.gdn", "", 19, 24},
    {"demo", "examples/chat/model/target.gdn", "examples/chat/model/draft.gdn",
     30, 24},
};

constexpr Rollback kModes[] = {Rollback::kJournal, Rollback::kSlots};

struct Setting {
  const char* name;
  SamplingOptions sampling;
  // What it picks depends on the sequence alone, not on where the answer began.
  bool of_sequence = true;
};

const std::vector<Setting>& Settings() {
  static const auto* const settings = [] {
    auto* all = new std::vector<Setting>;
    const auto add = [all](const char* name, float temperature) {
      Setting setting;
      setting.name = name;
      setting.sampling.temperature = temperature;
      setting.sampling.seed = 1000 + all->size();
      all->push_back(setting);
      return &all->back();
    };
    add("greedy", 0.0f);
    add("temperature", 0.9f);
    add("hot", 5.0f);
    add("top_k", 1.3f)->sampling.top_k = 5;
    add("top_p", 1.0f)->sampling.top_p = 0.8f;
    add("min_p", 1.5f)->sampling.min_p = 0.2f;
    add("repetition", 0.0f)->sampling.repetition_penalty = 1.5f;
    Setting* setting = add("presence", 0.8f);
    setting->sampling.presence_penalty = 1.0f;
    setting->of_sequence = false;
    setting = add("frequency", 1.0f);
    setting->sampling.frequency_penalty = 0.7f;
    setting->of_sequence = false;
    add("bias", 1.0f)->sampling.logit_bias = {{3, 4.0f}, {5, -1e4f}};
    setting = add("greedy_penalties", 0.0f);
    setting->sampling.presence_penalty = 0.5f;
    setting->sampling.frequency_penalty = 0.5f;
    setting->of_sequence = false;
    setting = add("all", 1.2f);
    setting->sampling.top_k = 20;
    setting->sampling.top_p = 0.95f;
    setting->sampling.min_p = 0.01f;
    setting->sampling.repetition_penalty = 1.2f;
    setting->sampling.presence_penalty = 0.3f;
    setting->sampling.frequency_penalty = -0.2f;
    setting->sampling.logit_bias = {{7, 1.0f}, {2, -0.5f}};
    setting->of_sequence = false;
    return all;
  }();
  return *settings;
}

const Setting& Greedy() { return Settings().front(); }
const Setting& AllTogether() { return Settings().back(); }

// How a session is fed and asked.
struct Request {
  const Setting* setting = &Greedy();
  size_t split = 100000;   // The prompt goes in pieces of so many tokens.
  size_t prompt = 100000;  // At most so many tokens of it.
  int32_t count = 0;       // New tokens. 0: Model::new_tokens.
};

struct Decoded {
  std::vector<TokenId> tokens;  // Prompt included.
  std::vector<float> logits;    // Of every new token.
  SessionStats stats;
};

// A drafter without manners: more than it was asked for, nothing, one token
// over and over, what it said before, an echo of the sequence, rubbish. What it
// says twice about the same sequence differs.
class UnrulyDrafter : public Drafter {
 public:
  UnrulyDrafter(std::vector<TokenId> future, int32_t vocab_size, uint64_t seed)
      : future_(std::move(future)), vocab_size_(vocab_size), random_(seed) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    EXPECT_TRUE(drafts->empty());
    switch (random_.Int(0, 5)) {
      case 0:  // Right ones at first, and 20 too many.
        for (size_t i = sequence.size(); i < future_.size(); ++i) {
          drafts->push_back(future_[i]);
        }
        drafts->resize(max_drafts + 20, 1);
        break;
      case 1:
        break;
      case 2:
        drafts->assign(random_.Int(1, 100), sequence.back());
        break;
      case 3:
        *drafts = last_;
        break;
      case 4:
        for (size_t i = sequence.size() / 2; i < sequence.size(); ++i) {
          drafts->push_back(sequence[i]);
        }
        break;
      case 5:
        for (int i = random_.Int(1, 2 * max_drafts); i > 0; --i) {
          drafts->push_back(random_.Int(0, vocab_size_ - 1));
        }
        break;
    }
    last_ = *drafts;
  }

 private:
  const std::vector<TokenId> future_;
  const int32_t vocab_size_;
  Random random_;
  std::vector<TokenId> last_;
};

// What followed the last two tokens when they stood side by side before, and as
// if the text went round in a circle from there.
class NGramDrafter : public Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    const size_t size = sequence.size();
    for (size_t end = size - 1; end >= 2; --end) {
      if (sequence.subspan(end - 2, 2) != sequence.subspan(size - 2)) continue;
      for (int32_t i = 0; i < max_drafts; ++i) {
        drafts->push_back(end + i < size ? sequence[end + i]
                                         : (*drafts)[end + i - size]);
      }
      return;
    }
  }
};

// Asks a second engine with the same target.
class CopyOfTheTarget : public Drafter {
 public:
  CopyOfTheTarget(std::unique_ptr<Engine> engine, SamplingOptions sampling)
      : engine_(std::move(engine)), sampling_(std::move(sampling)) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    SessionOptions plain;
    plain.draft_tokens = 0;
    auto session = engine_->NewSession(plain);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE((*session)->Prefill(sequence).ok());
    GenerateOptions options;
    options.max_new_tokens = max_drafts;
    options.ignore_model_stop_tokens = true;
    options.sampling = sampling_;
    ASSERT_TRUE((*session)
                    ->Generate(options,
                               [drafts](const TokenEvent& t) {
                                 drafts->push_back(t.id);
                                 return true;
                               })
                    .ok());
  }

 private:
  const std::unique_ptr<Engine> engine_;
  const SamplingOptions sampling_;
};

// Gives values in random order, each as often as any other.
template <class T>
class Deck {
 public:
  Deck(std::vector<T> values, Random* random)
      : values_(std::move(values)), random_(random) {}

  T Draw() {
    if (left_ == 0) left_ = values_.size();
    std::swap(values_[random_->Int(0, static_cast<int>(left_) - 1)],
              values_[left_ - 1]);
    return values_[--left_];
  }

 private:
  std::vector<T> values_;
  Random* const random_;
  size_t left_ = 0;
};

enum class Drafting {
  kDFlash,
  kRight,
  kWrong,
  kRightUntilTheIth,
  kRandom,
  kUnruly,
};
constexpr Drafting kDraftings[] = {
    Drafting::kDFlash,           Drafting::kRight,  Drafting::kWrong,
    Drafting::kRightUntilTheIth, Drafting::kRandom, Drafting::kUnruly,
};

class LosslessTest : public ::testing::TestWithParam<Model> {
 protected:
  // What is the same for all tests of a model: made once.
  struct Subject {
    std::unique_ptr<Engine> engine;
    std::vector<TokenId> prompt;
    std::map<std::string, Decoded> truths;  // By setting.
  };

  void SetUp() override {
    static auto* const subjects = new std::map<std::string, Subject>;
    subject_ = &(*subjects)[GetParam().name];
    if (subject_->engine != nullptr) return;
    subject_->engine = Open(1);
    Random random(11);
    for (int32_t i = 0; i < GetParam().prompt_tokens; ++i) {
      subject_->prompt.push_back(random.Int(0, vocab_size() - 1));
    }
  }

  // Decoded without drafts, with a journal.
  const Decoded& Truth(const Setting& setting = Greedy()) {
    Decoded& truth = subject_->truths[setting.name];
    if (truth.tokens.empty()) {
      SessionOptions plain;
      plain.draft_tokens = 0;
      Request request;
      request.setting = &setting;
      truth = Decode(engine(), plain, request);
      EXPECT_EQ(truth.tokens.size(), prompt().size() + new_tokens());
      EXPECT_EQ(truth.stats.drafted, 0);
      EXPECT_EQ(truth.stats.steps, new_tokens());
    }
    return truth;
  }

  const Engine& engine() const { return *subject_->engine; }
  const std::vector<TokenId>& prompt() const { return subject_->prompt; }
  int32_t vocab_size() const { return engine().info().vocab_size; }
  bool has_draft() const { return engine().info().draft_block > 0; }
  static int32_t new_tokens() {
    return std::min(GetParam().new_tokens,
                    testing::FewerIfEmulated("new tokens", 40, 24));
  }
  // The larger models take long, and an emulator with any; the others go
  // everywhere.
  static bool small() { return GetParam().new_tokens == 40; }
  static bool quick() {
    return small() && testing::FewerIfEmulated<std::string>(
                          "combinations", "all", "some") == "all";
  }

  static std::unique_ptr<Engine> Open(int threads, bool with_draft = true) {
    ModelFiles files;
    files.target = testing::Runfile(GetParam().target);
    if (with_draft && *GetParam().draft != 0) {
      files.draft = testing::Runfile(GetParam().draft);
    }
    auto engine = Engine::Open(files, {threads});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static GenerateOptions Options(const Setting& setting, int32_t count) {
    GenerateOptions options;
    options.max_new_tokens = count;
    options.sampling = setting.sampling;
    options.ignore_model_stop_tokens = true;
    options.logits = true;
    return options;
  }

  static void Continue(Session& session, const Setting& setting, int32_t count,
                       Decoded* run) {
    const auto result =
        session.Generate(Options(setting, count), [run](const TokenEvent& t) {
          run->logits.insert(run->logits.end(), t.logits.begin(),
                             t.logits.end());
          return true;
        });
    ASSERT_TRUE(result.ok()) << result.status();
    run->tokens = session.tokens();
    run->stats = session.stats();
  }

  Decoded Decode(const Engine& engine, const SessionOptions& options,
                 const Request& request) const {
    Decoded run;
    auto session = engine.NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    const auto prompt =
        absl::MakeConstSpan(this->prompt()).subspan(0, request.prompt);
    for (size_t begin = 0; begin < prompt.size(); begin += request.split) {
      EXPECT_TRUE(
          (*session)->Prefill(prompt.subspan(begin, request.split)).ok());
    }
    Continue(**session, *request.setting,
             request.count == 0 ? new_tokens() : request.count, &run);
    return run;
  }

  // Decodes with drafts by `script`, and expects the truth and the counts that
  // follow from the script.
  SessionStats ExpectScripted(int32_t draft_tokens, Rollback rollback,
                              ScriptedDrafter::Script script,
                              const Request& request = {}) {
    const Decoded& truth = Truth(*request.setting);
    const auto drafter = std::make_shared<ScriptedDrafter>(
        truth.tokens, vocab_size(), std::move(script));
    SessionOptions options;
    options.draft_tokens = draft_tokens;
    options.drafter = drafter;
    options.rollback = rollback;
    const Decoded run = Decode(engine(), options, request);
    ExpectSame(run, truth);
    ExpectCounts(run.stats, drafter->rounds(), draft_tokens);
    return run.stats;
  }

  // The same for one round after the other, and then no more drafts.
  void ExpectRounds(const std::vector<Round>& rounds) {
    int32_t most = 0;
    for (const Round& round : rounds) most = std::max(most, round.propose);
    for (const Rollback rollback : kModes) {
      for (const Setting* setting : {&Greedy(), &AllTogether()}) {
        const bool slots = rollback == Rollback::kSlots;
        if (!quick() && slots != (setting == &Greedy())) continue;
        Request request;
        request.setting = setting;
        ExpectScripted(
            most, rollback,
            [&](int i, int32_t) {
              return i < static_cast<int>(rounds.size()) ? rounds[i] : Round();
            },
            request);
      }
    }
  }

  static void ExpectCounts(const SessionStats& stats,
                           const std::vector<Round>& rounds,
                           int32_t draft_tokens) {
    std::vector<int64_t> tried(draft_tokens), accepted(draft_tokens);
    int64_t draft_steps = 0, drafts = 0, right = 0;
    for (const Round& round : rounds) {
      if (round.propose > 0) ++draft_steps;
      drafts += round.propose;
      right += round.right;
      for (int32_t i = 0; i < round.propose; ++i) ++tried[i];
      for (int32_t i = 0; i < round.right; ++i) ++accepted[i];
    }
    EXPECT_EQ(stats.draft_steps, draft_steps);
    EXPECT_EQ(stats.drafted, drafts);
    EXPECT_EQ(stats.accepted, right);
    EXPECT_EQ(stats.tried_at, tried);
    EXPECT_EQ(stats.accepted_at, accepted);
    EXPECT_EQ(stats.accepted + stats.steps, stats.delivered_tokens);
    EXPECT_EQ(stats.discarded, 0);
  }

  static void ExpectSame(const Decoded& run, const Decoded& truth) {
    EXPECT_EQ(run.tokens, truth.tokens);
    EXPECT_TRUE(SameBits(run.logits, truth.logits));
  }

  Subject* subject_ = nullptr;
};

TEST_P(LosslessTest, DFlashOfAnyLength) {
  const int32_t most = engine().info().draft_block - 1;
  for (int32_t drafts = 1; drafts <= most; drafts += quick() ? 1 : 3) {
    SessionOptions options;
    options.draft_tokens = drafts;
    options.rollback = kModes[drafts % 2];
    const Decoded run = Decode(engine(), options, {});
    ExpectSame(run, Truth());
    EXPECT_GT(run.stats.drafted, 0);
    EXPECT_EQ(static_cast<int32_t>(run.stats.tried_at.size()), drafts);
  }
}

// Case C16: who copies the target has each draft accepted.
TEST_P(LosslessTest, C16AllRight) {
  for (const int32_t drafts : {1, 2, 3, 7, 15}) {
    for (const Rollback rollback : kModes) {
      if (!quick() && (rollback == Rollback::kSlots) != (drafts == 7)) continue;
      const SessionStats stats =
          ExpectScripted(drafts, rollback, [](int, int32_t max_drafts) {
            return Round{max_drafts, max_drafts};
          });
      EXPECT_GT(stats.drafted, 0);
      EXPECT_EQ(stats.acceptance_rate(), 1.0);
      EXPECT_EQ(stats.steps, (new_tokens() + drafts) / (drafts + 1));
    }
  }
}

// Case C16: who is always wrong has none.
TEST_P(LosslessTest, C16AllWrong) {
  for (const int32_t drafts : {1, 2, 3, 7, 15}) {
    for (const Rollback rollback : kModes) {
      if (!quick() && (rollback == Rollback::kSlots) != (drafts == 7)) continue;
      const SessionStats stats =
          ExpectScripted(drafts, rollback, [](int, int32_t max_drafts) {
            return Round{max_drafts, 0};
          });
      EXPECT_GT(stats.drafted, 0);
      EXPECT_EQ(stats.acceptance_rate(), 0.0);
      EXPECT_EQ(stats.steps, new_tokens());
    }
  }
}

// Case C16: a drafter that runs the target itself is right with every draft,
// when tokens are drawn by chance too: a draw depends on seed and position.
TEST_P(LosslessTest, C16CopyOfTheTarget) {
  if (!small()) return;
  for (const Setting& setting : Settings()) {
    if (!setting.of_sequence) continue;
    if (!quick() && &setting != &Settings()[1]) continue;
    SCOPED_TRACE(setting.name);
    SessionOptions options;
    options.draft_tokens = 5;
    options.drafter = std::make_shared<CopyOfTheTarget>(
        Open(1, /*with_draft=*/false), setting.sampling);
    Request request;
    request.setting = &setting;
    const Decoded run = Decode(engine(), options, request);
    ExpectSame(run, Truth(setting));
    EXPECT_GT(run.stats.drafted, 0);
    EXPECT_EQ(run.stats.acceptance_rate(), 1.0);
  }
}

// Case C1: a block that is rejected as a whole, of any size.
TEST_P(LosslessTest, C1WholeBlockRejected) {
  for (const int32_t drafts : {0, 1, 3, 4, 14, 15}) {
    if (drafts != 4 && !quick()) continue;
    ExpectRounds({{drafts, 0}});
  }
}

// Case C3: rounds without drafts after several accepted ones.
TEST_P(LosslessTest, C3RoundsWithoutDrafts) {
  ExpectRounds({{4, 3}, {0, 0}, {4, 0}, {0, 0}, {0, 0}, {4, 4}});
}

// Case C4: fewer accepted than the convolution is wide, back to back.
TEST_P(LosslessTest, C4FewAccepted) {
  ExpectRounds({{4, 0}, {4, 1}, {4, 2}, {4, 2}, {4, 0}, {4, 1}, {4, 1}});
}

// Every count from none to all, each on top of each other.
TEST_P(LosslessTest, RightUntilTheIth) {
  for (const int32_t drafts : {1, 3, 7, 15}) {
    if (drafts == 15 && !quick()) continue;
    // [a]: blocks of which exactly a drafts were accepted.
    std::vector<int64_t> occurred(drafts + 1, 0);
    const int32_t rounds = quick() ? drafts + 1 : (drafts + 2) / 2;
    for (int32_t start = 0; start < rounds; ++start) {
      const SessionStats stats = ExpectScripted(
          drafts, kModes[start % 2],
          [start, drafts](int round, int32_t max_drafts) {
            return Round{max_drafts, (start + 5 * round) % (drafts + 1)};
          });
      occurred[0] += stats.draft_steps - stats.accepted_at[0];
      for (int32_t a = 1; a < drafts; ++a) {
        occurred[a] += stats.accepted_at[a - 1] - stats.accepted_at[a];
      }
      occurred[drafts] += stats.accepted_at[drafts - 1];
    }
    for (int32_t right = 0; right <= drafts; ++right) {
      EXPECT_GT(occurred[right], 0) << right << " of " << drafts;
    }
  }
}

// Cases C3, C5: the number of drafts changes from step to step, none included.
TEST_P(LosslessTest, RandomSchedules) {
  for (int seed = 0; seed < (quick() ? 12 : 2); ++seed) {
    Random random(seed);
    ExpectScripted(15, kModes[seed % 2], [&random](int, int32_t max_drafts) {
      Round round;
      round.propose = random.OneIn(3) ? 0 : random.Int(0, max_drafts);
      round.right = random.Int(0, round.propose);
      return round;
    });
  }
}

// Every setting with every kind of drafts and both ways of rolling back, or for
// a slow model each of them at least once; any split of the prompt and number
// of drafts at random.
TEST_P(LosslessTest, EverySetting) {
  struct Combination {
    const Setting* setting;
    Drafting drafting;
    Rollback rollback;
  };
  Random random(5);
  std::vector<Combination> combinations;
  std::vector<const Setting*> settings;
  for (const Setting& setting : Settings()) {
    settings.push_back(&setting);
    for (const Drafting drafting : kDraftings) {
      for (const Rollback rollback : kModes) {
        combinations.push_back({&setting, drafting, rollback});
      }
    }
  }
  if (!quick()) {
    Deck<const Setting*> setting(settings, &random);
    Deck<Drafting> drafting({std::begin(kDraftings), std::end(kDraftings)},
                            &random);
    Deck<Rollback> rollback({kModes[0], kModes[1]}, &random);
    combinations.resize(settings.size());
    for (Combination& combination : combinations) {
      combination = {setting.Draw(), drafting.Draw(), rollback.Draw()};
    }
  }
  if (quick()) {
    // They do differ in what they pick.
    std::set<std::vector<TokenId>> picks;
    for (const Setting* setting : settings)
      picks.insert(Truth(*setting).tokens);
    EXPECT_GE(picks.size(), settings.size() - 2);
  }
  Deck<int32_t> lengths({1, 2, 3, 7, 15}, &random);
  Deck<size_t> splits({1, 7, 16, 64, 100000}, &random);
  for (const Combination& c : combinations) {
    SCOPED_TRACE(::testing::Message()
                 << c.setting->name << ", drafting "
                 << static_cast<int>(c.drafting) << ", rollback "
                 << static_cast<int>(c.rollback));
    Request request;
    request.setting = c.setting;
    request.split = quick() ? splits.Draw() : 100000;
    const int32_t drafts = lengths.Draw();
    SessionOptions options;
    options.rollback = c.rollback;
    switch (c.drafting) {
      case Drafting::kDFlash:
        options.draft_tokens =
            has_draft() ? std::min(drafts, engine().info().draft_block - 1) : 0;
        ExpectSame(Decode(engine(), options, request), Truth(*c.setting));
        break;
      case Drafting::kUnruly:
        options.draft_tokens = drafts;
        options.drafter = std::make_shared<UnrulyDrafter>(
            Truth(*c.setting).tokens, vocab_size(), random.Bits());
        ExpectSame(Decode(engine(), options, request), Truth(*c.setting));
        break;
      default:
        ExpectScripted(
            drafts, c.rollback,
            [&](int round, int32_t max_drafts) -> Round {
              switch (c.drafting) {
                case Drafting::kRight:
                  return {max_drafts, max_drafts};
                case Drafting::kWrong:
                  return {max_drafts, 0};
                case Drafting::kRightUntilTheIth:
                  return {max_drafts, round % (max_drafts + 1)};
                default:
                  return {random.Int(0, max_drafts), random.Int(0, max_drafts)};
              }
            },
            request);
    }
  }
}

// Case S17: a look-up in the text so far, as many applications have it.
TEST_P(LosslessTest, S17NGrams) {
  for (const Setting* setting : {&Greedy(), &AllTogether()}) {
    for (const int32_t drafts : {4, 15}) {
      SessionOptions options;
      options.draft_tokens = drafts;
      options.drafter = std::make_shared<NGramDrafter>();
      options.rollback = kModes[drafts % 2];
      Request request;
      request.setting = setting;
      const Decoded run = Decode(engine(), options, request);
      ExpectSame(run, Truth(*setting));
      // So few words repeat themselves.
      if (vocab_size() == 32 && setting == &Greedy()) {
        EXPECT_GT(run.stats.accepted, 0);
      }
    }
  }
}

TEST_P(LosslessTest, AnySplitOfThePrompt) {
  for (const size_t split : {1, 2, 3, 7, 16, 64, 257}) {
    if (split < 16 && !quick()) continue;
    Request request;
    request.split = split;
    ExpectSame(Decode(engine(), {}, request), Truth());
  }
}

// Few tokens: threads that share cores with other tests wait for one another.
TEST_P(LosslessTest, AnyNumberOfThreads) {
  Request request;
  request.prompt = 24;
  request.count = 4;
  for (const int threads : {2, 3}) {
    const auto many = Open(threads);
    EXPECT_EQ(many->info().threads, threads);
    for (const Rollback rollback : kModes) {
      if (!quick() && (rollback == Rollback::kSlots) != (threads == 3))
        continue;
      request.setting =
          rollback == Rollback::kSlots ? &AllTogether() : &Greedy();
      SessionOptions options;
      options.rollback = rollback;
      SessionOptions plain;
      plain.draft_tokens = 0;
      ExpectSame(Decode(*many, options, request),
                 Decode(engine(), plain, request));
    }
  }
}

// Stops at every few tokens, adds nothing or another prompt, resets, goes on.
TEST_P(LosslessTest, InterruptionsAnywhere) {
  int seed = 100;
  for (const Setting& setting : Settings()) {
    if (!setting.of_sequence) continue;
    if (!quick() && ++seed % 3 != 0) continue;
    SCOPED_TRACE(setting.name);
    Random random(++seed);
    SessionOptions options;
    options.rollback = kModes[random.Int(0, 1)];
    auto session = engine().NewSession(options);
    ASSERT_TRUE(session.ok());
    if (random.OneIn(2)) {
      ASSERT_TRUE((*session)->Prefill({1, 2, 3}).ok());
      Decoded scratch;
      Continue(**session, setting, random.Int(1, 9), &scratch);
      (*session)->Reset();
    }
    ASSERT_TRUE((*session)->Prefill(prompt()).ok());
    Decoded run;
    int32_t left = new_tokens();
    while (left > 0) {
      const int32_t count = std::min(left, random.Int(1, 9));
      Continue(**session, setting, count, &run);
      left -= count;
    }
    ExpectSame(run, Truth(setting));
  }
}

// The callback ends answers inside blocks; asked again about the same sequence,
// the drafter says something else.
TEST_P(LosslessTest, DrafterThatChangesItsMind) {
  int64_t discarded = 0;
  for (const Setting& setting : Settings()) {
    if (!setting.of_sequence) continue;
    if (!quick() && &setting != &Greedy()) continue;
    SCOPED_TRACE(setting.name);
    const Decoded& truth = Truth(setting);
    for (const Rollback rollback : kModes) {
      Random random(static_cast<int>(rollback) + 7);
      SessionOptions options;
      options.draft_tokens = random.Int(3, 15);
      options.rollback = rollback;
      options.drafter = std::make_shared<UnrulyDrafter>(
          truth.tokens, vocab_size(), random.Bits());
      auto session = engine().NewSession(options);
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->Prefill(prompt()).ok());
      Decoded run;
      int32_t left = new_tokens();
      while (left > 0) {
        int32_t wanted = random.Int(1, 4);
        const auto result = (*session)->Generate(
            Options(setting, left), [&](const TokenEvent& t) {
              run.logits.insert(run.logits.end(), t.logits.begin(),
                                t.logits.end());
              return --wanted > 0;
            });
        ASSERT_TRUE(result.ok()) << result.status();
        left -= result->delivered;
      }
      run.tokens = (*session)->tokens();
      ExpectSame(run, truth);
      const SessionStats stats = (*session)->stats();
      EXPECT_EQ(stats.accepted + stats.steps,
                stats.delivered_tokens + stats.discarded);
      discarded += stats.discarded;
    }
  }
  EXPECT_GT(discarded, 0);
}

// Sessions of one engine, each with a number of drafts, a mode and a setting of
// its own, one token here and one there.
TEST_P(LosslessTest, SessionsOfDifferentDraftTokens) {
  struct Talk {
    const Setting* setting;
    std::unique_ptr<Session> session;
    Decoded run;
  };
  Random random(17);
  std::vector<Talk> talks;
  for (const int32_t drafts : {0, 1, 3, 6, 15}) {
    Talk talk;
    talk.setting =
        quick() ? &Settings()[random.Int(0, Settings().size() - 1)] : &Greedy();
    SessionOptions options;
    options.draft_tokens = drafts;
    options.rollback = kModes[random.Int(0, 1)];
    if (drafts == 6 && has_draft()) {
      // The draft model's.
    } else if (drafts > 0) {
      options.drafter = std::make_shared<UnrulyDrafter>(
          Truth(*talk.setting).tokens, vocab_size(), random.Bits());
    }
    auto session = engine().NewSession(options);
    ASSERT_TRUE(session.ok()) << session.status();
    talk.session = *std::move(session);
    ASSERT_TRUE(talk.session->Prefill(prompt()).ok());
    ASSERT_TRUE(talk.session->Start(Options(*talk.setting, new_tokens())).ok());
    talks.push_back(std::move(talk));
  }
  std::vector<Talk*> active;
  for (Talk& talk : talks) active.push_back(&talk);
  while (!active.empty()) {
    const int which = random.Int(0, static_cast<int>(active.size()) - 1);
    Talk& talk = *active[which];
    const auto event = talk.session->Next();
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->has_value()) {
      talk.run.logits.insert(talk.run.logits.end(), (*event)->logits.begin(),
                             (*event)->logits.end());
      continue;
    }
    active.erase(active.begin() + which);
    talk.run.tokens = talk.session->tokens();
    ExpectSame(talk.run, Truth(*talk.setting));
  }
}

// What was generated is a prompt like any other to a session that is given it:
// decoding, verification and prefill leave the same state.
TEST_P(LosslessTest, PrefillLeavesTheStateOfDecoding) {
  int which = 0;
  for (const int32_t cut : {1, 5, 17, 23}) {
    const Setting& setting = cut == 5 ? Settings()[1] : Greedy();
    const Decoded& truth = Truth(setting);
    SessionOptions options;
    options.rollback = kModes[++which % 2];
    auto session = engine().NewSession(options);
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(
        (*session)
            ->Prefill(
                absl::MakeConstSpan(truth.tokens).first(prompt().size() + cut))
            .ok());
    Decoded run;
    Continue(**session, setting, new_tokens() - cut, &run);
    EXPECT_EQ(run.tokens, truth.tokens);
    const std::vector<float> rest(
        truth.logits.begin() + int64_t{cut} * vocab_size(), truth.logits.end());
    EXPECT_TRUE(SameBits(run.logits, rest));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LosslessTest,
    ::testing::ValuesIn(kModels,
                        kModels + testing::FewerIfEmulated("models", 8, 2)),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace deltaedge
