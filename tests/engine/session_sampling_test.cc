// SPDX-License-Identifier: Apache-2.0

// Sampling through a session: the same tokens with drafts and without, by the
// target's distribution, from scores that are numbers.

#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/weights.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/session_runs.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/random.h"
#include "tools/make_random/make_random.h"

namespace {

int seeds_drawn = 0;

}  // namespace

// In place of the C library's.
extern "C" ssize_t getrandom(void* bytes, size_t size, unsigned flags) {
  ++seeds_drawn;
  return syscall(SYS_getrandom, bytes, size, flags);
}

namespace deltaedge {
namespace {

using testing::Answer;
using testing::By;
using ::testing::Contains;
using testing::DFlash;
using testing::ExpectBeginning;
using testing::ExpectCountersAddUp;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Plain;
using testing::Random;
using testing::Right;
using testing::SomeWays;
using testing::Truth;
using testing::Until;
using testing::Way;
using testing::Wrong;

std::unique_ptr<Engine> Open(const ModelFiles& files) {
  auto opened = Engine::Open(files, {/*num_threads=*/1});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

const Engine& Bytes() {
  static const Engine* const engine =
      Open({testing::Runfile("tests/testdata/models/wide.gdn"),
            testing::Runfile("tests/testdata/models/wide_draft.gdn")})
          .release();
  return *engine;
}

// Settings of many kinds; each gives other tokens.
std::vector<SamplingOptions> Settings() {
  std::vector<SamplingOptions> all;
  const auto add = [&all](const auto& set) {
    SamplingOptions sampling;
    sampling.temperature = 0.9f;
    sampling.seed = 77;
    set(sampling);
    all.push_back(sampling);
  };
  add([](SamplingOptions&) {});
  add([](SamplingOptions& s) { s.seed = ~uint64_t{0}; });
  add([](SamplingOptions& s) { s.top_k = 4, s.temperature = 2.0f; });
  add([](SamplingOptions& s) { s.top_p = 0.6f; });
  add([](SamplingOptions& s) { s.min_p = 0.2f; });
  add([](SamplingOptions& s) { s.temperature = 0.0f; });
  // Few tokens, so that the history counts.
  add([](SamplingOptions& s) {
    s.temperature = 0.0f, s.repetition_penalty = 1.4f;
  });
  add([](SamplingOptions& s) {
    s.top_k = 6, s.repetition_penalty = 1.3f, s.presence_penalty = 0.5f;
    s.frequency_penalty = 0.7f;
  });
  add([](SamplingOptions& s) {
    s.temperature = 0.0f, s.frequency_penalty = 1.5f;
    s.logit_bias = {{65, 9.0f}, {66, 8.5f}, {67, 8.0f}, {70, 7.5f}};
  });
  add([](SamplingOptions& s) {
    s.presence_penalty = 3.0f, s.top_p = 0.9f;
    s.logit_bias = {{65, 7.0f}, {66, 8.0f}, {67, 6.0f}};
  });
  return all;
}

TEST(Seed, GivesTheSameTokensWhateverIsDrafted) {
  std::vector<std::vector<TokenId>> said;
  for (const SamplingOptions& sampling : Settings()) {
    SCOPED_TRACE(said.size());
    const Truth truth(&Bytes(), {7, 8, 9, 10, 11}, sampling, 24);
    for (const auto& other : said) EXPECT_NE(truth.answer().ids, other);
    said.push_back(truth.answer().ids);
    std::vector<Way> ways = SomeWays();
    ways.push_back(Until(1));
    for (const Way& way : ways) {
      SCOPED_TRACE(way.name);
      const auto session = truth.Prefilled(way);
      ExpectBeginning(truth.Say(*session, truth.rules()), truth.answer(), 24);
      EXPECT_EQ(session->stats().seed, *sampling.seed);
    }
  }
}

// Penalties see the drafts before them in a block, and those of this answer
// only; so an answer that ended inside a block is no part of the next.
TEST(Seed, PenaltiesCountDeliveredTokensOnly) {
  SamplingOptions sampling;
  sampling.frequency_penalty = 1.5f;
  sampling.repetition_penalty = 1.2f;
  sampling.logit_bias = {{65, 9.0f}, {66, 8.5f}, {67, 8.0f}, {70, 7.5f}};
  const Truth truth(&Bytes(), {7, 8, 9, 10, 11}, sampling, 12);
  for (const int32_t count : {1, 3, 8, 10}) {
    // A plain session that stops and starts at the same places.
    const auto plain = truth.Prefilled(Plain());
    GenerateOptions rules = truth.rules();
    rules.max_new_tokens = count;
    truth.Say(*plain, rules);
    const Answer expected = truth.Say(*plain, truth.rules());
    for (const Way& way : SomeWays()) {
      SCOPED_TRACE(absl::StrCat(way.name, ", ", count));
      const auto session = truth.Prefilled(way);
      int32_t left = count;
      truth.Say(*session, truth.rules(), By::kGenerate,
                [&left](const TokenEvent&) { return --left > 0; });
      ExpectBeginning(truth.Say(*session, truth.rules()), expected, 12);
    }
  }
}

// The repetition penalty is for all of the sequence, not for the answer alone:
// one below 1 is a reward, and the prompt is then what the model repeats.
TEST(Seed, RepetitionPenaltyCountsThePrompt) {
  const std::vector<TokenId> prompt = {3, 14, 15, 92, 65, 35, 89, 79};
  const auto first = [&](float penalty) {
    SamplingOptions sampling;
    sampling.repetition_penalty = penalty;
    return Truth(&Bytes(), prompt, sampling, 1).answer().ids[0];
  };
  EXPECT_THAT(prompt, Not(Contains(first(1.0f))));
  EXPECT_THAT(prompt, Contains(first(0.01f)));
}

// Case C26: in any company, in blocks of 1 and 8, and after a restore.
TEST(Seed, GivesTheSameTokensInCompanyAndAfterRestore) {
  SamplingOptions sampling = Settings()[7];
  const Truth truth(&Bytes(), {7, 8, 9, 10, 11}, sampling, 24);
  for (const Way& way : {Plain(), Right(7), DFlash(), Until(7)}) {
    SCOPED_TRACE(way.name);
    const auto session = truth.Prefilled(way);
    std::vector<std::unique_ptr<Session>> others;
    std::vector<Session*> all = {session.get()};
    for (int i = 0; i < 3; ++i) {
      others.push_back(truth.Prefilled(Until(2 + i)));
      GenerateOptions rules = truth.rules();
      rules.sampling.seed = i;
      ASSERT_TRUE(others.back()->Start(rules).ok());
      all.push_back(others.back().get());
    }
    ASSERT_TRUE(session->Start(truth.rules()).ok());
    const auto take_all = [](Session* s) {
      while (s->waiting() > 0) ASSERT_TRUE(s->Next().ok());
    };
    while (session->position() < 14) {
      ASSERT_TRUE(Bytes().StepMany(all).ok());
      for (Session* s : all) take_all(s);
    }
    const auto snapshot = session->Take();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    for (const Way& later : {way, Plain(), Right(7, Rollback::kSlots)}) {
      const auto restored = truth.Prefilled(later);
      ASSERT_TRUE(restored->Restore(*snapshot).ok());
      EXPECT_EQ(restored->stats().seed, 77u);
      while (restored->finish_reason() == FinishReason::kNone) {
        ASSERT_TRUE(restored->Next().ok());
      }
      EXPECT_EQ(restored->tokens(), truth.tokens());
    }
  }
}

TEST(Seed, ThatWasNotGivenIsToldAndRepeatsTheAnswer) {
  SamplingOptions sampling;
  sampling.temperature = 1.5f;
  const auto run = [&sampling](const Way& way) {
    GenerateOptions rules;
    rules.max_new_tokens = 16;
    rules.ignore_model_stop_tokens = true;
    rules.sampling = sampling;
    auto session = Bytes().NewSession(way.options({}, 300));
    EXPECT_TRUE((*session)->Prefill({7, 8, 9}).ok());
    Answer answer = testing::Say(Bytes(), **session, rules);
    EXPECT_TRUE(answer.status.ok());
    return std::pair((*session)->stats().seed, answer.ids);
  };
  const int before = seeds_drawn;
  const auto first = run(DFlash());
  const auto second = run(DFlash());
  EXPECT_NE(first.first, second.first);
  EXPECT_NE(first.second, second.second);
  EXPECT_EQ(seeds_drawn, before + 2);
  sampling.seed = first.first;
  EXPECT_EQ(run(Plain()), first);
  EXPECT_EQ(run(DFlash()), first);
  sampling.seed = 0;  // A seed like any other.
  EXPECT_EQ(run(Plain()).first, 0u);
  EXPECT_EQ(seeds_drawn, before + 2) << "nobody needed those";
}

// --- Bad options -------------------------------------------------------------

TEST(BadOptions, AreNamedAndChangeNothing) {
  const Truth truth(&Bytes(), {7, 8, 9}, Settings()[0], 20);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    void (*set)(GenerateOptions&, float);
    float value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](GenerateOptions& o, float v) { o.sampling.temperature = v; }, -0.5f,
       "temperature is -0.5"},
      {[](GenerateOptions& o, float v) { o.sampling.temperature = v; }, nan,
       "temperature is nan"},
      {[](GenerateOptions& o, float v) { o.sampling.temperature = v; }, 101,
       "temperature is 101"},
      {[](GenerateOptions& o, float v) { o.sampling.top_k = v; }, -3,
       "top_k is -3"},
      {[](GenerateOptions& o, float v) { o.sampling.top_p = v; }, 0,
       "top_p is 0"},
      {[](GenerateOptions& o, float v) { o.sampling.min_p = v; }, 2,
       "min_p is 2"},
      {[](GenerateOptions& o, float v) { o.sampling.repetition_penalty = v; },
       0, "repetition_penalty is 0"},
      {[](GenerateOptions& o, float v) { o.sampling.presence_penalty = v; },
       infinity, "presence_penalty is inf"},
      {[](GenerateOptions& o, float v) { o.sampling.frequency_penalty = v; },
       -101, "frequency_penalty is -101"},
      {[](GenerateOptions& o, float v) {
         o.sampling.logit_bias = {{1, 0}, {2, v}};
       },
       nan, "logit_bias[1] adds nan"},
      {[](GenerateOptions& o, float v) {
         o.sampling.logit_bias = {{1, 0}, {static_cast<TokenId>(v), 1}};
       },
       300, "logit_bias[1] is for token 300; ids are 0 to 299"},
      {[](GenerateOptions& o, float v) {
         o.sampling.logit_bias = {{static_cast<TokenId>(v), 1}};
       },
       -1, "logit_bias[0] is for token -1"},
      {[](GenerateOptions& o, float) {
         o.stop_texts = {"a", ""};
       },
       0, "stop_texts[1] has 0 bytes"},
      {[](GenerateOptions& o, float) { o.stop_texts = {"\xff"}; }, 0,
       "stop_texts[0]"},
  };
  for (const Way& way : {Right(7), DFlash()}) {
    const auto session = truth.Prefilled(way);
    ASSERT_TRUE(session->Start(truth.rules()).ok());
    // In the middle of a loop and of a block.
    Answer answer;
    for (const Case& bad : cases) {
      GenerateOptions rules = truth.rules();
      bad.set(rules, bad.value);
      for (const absl::Status& status :
           {session->Start(rules),
            session->Generate(rules, [](const TokenEvent&) { return true; })
                .status()}) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(status.message(), HasSubstr(bad.message));
      }
      const auto token = session->Next();
      ASSERT_TRUE(token.ok() && token->has_value());
      answer.ids.push_back((*token)->id);
      answer.logits.insert(answer.logits.end(), (*token)->logits.begin(),
                           (*token)->logits.end());
    }
    ExpectBeginning(answer, truth.answer(), cases.size());
    EXPECT_EQ(session->stats().discarded, 0) << way.name;
  }
}

// --- Scores that are not numbers ---------------------------------------------

constexpr TokenId kPoison = 200;

// odd.gdn, whose token kPoison is broken: the scores after it are not numbers.
// (The output matrix is another one.)
const Engine& Broken() {
  static const Engine* const engine = [] {
    const std::string source =
        testing::Runfile("tests/testdata/models/odd.gdn");
    std::ifstream in(source, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    const auto file = ModelFile::Open(source);
    EXPECT_TRUE(file.ok()) << file.status();
    const MatrixView& table = (*file)->target_weights().embedding;
    const std::string row(reinterpret_cast<const char*>(
                              table.f32() + int64_t{kPoison} * table.cols),
                          table.cols * sizeof(float));
    const size_t offset = bytes.find(row);
    EXPECT_NE(offset, std::string::npos);
    EXPECT_EQ(bytes.find(row, offset + 1), std::string::npos);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&bytes[offset], &nan, sizeof(nan));
    const std::string path = ::testing::TempDir() + "/broken.gdn";
    std::ofstream(path, std::ios::binary) << bytes;
    return Open({path, testing::Runfile("tests/testdata/models/odd_draft.gdn")})
        .release();
  }();
  return *engine;
}

// The token before is delivered, as plain decoding delivers it; then there is
// an error, again and again, and the session can be used otherwise.
TEST(BrokenScores, AreAnErrorAtTheSamePlaceWithAndWithoutDrafts) {
  std::vector<size_t> places;
  for (const float temperature : {0.0f, 1.0f}) {
    for (float bias = 0.0f; bias < 20.0f; bias += 1.25f) {
      GenerateOptions rules;
      rules.max_new_tokens = 30;
      rules.ignore_model_stop_tokens = true;
      rules.logits = true;
      rules.sampling.temperature = temperature;
      rules.sampling.seed = 3;
      rules.sampling.logit_bias = {{kPoison, bias}};
      const std::vector<TokenId> prompt = {1, 2, 3};
      Answer expected;
      std::vector<TokenId> tokens = prompt;
      for (const Way& way : SomeWays()) {
        SCOPED_TRACE(absl::StrCat(way.name, ", bias ", bias));
        SessionOptions options = way.options(tokens, 263);
        const auto session = *Broken().NewSession(options);
        ASSERT_TRUE(session->Prefill(prompt).ok());
        const Answer answer = testing::Say(Broken(), *session, rules);
        if (way.name == "plain") {
          expected = answer;
          tokens = session->tokens();
          if (answer.status.ok()) break;
          places.push_back(answer.ids.size());
          tokens.push_back(kPoison);
          tokens.push_back(kPoison);
        }
        EXPECT_TRUE(absl::IsInternal(answer.status)) << answer.status;
        EXPECT_THAT(answer.status.message(),
                    HasSubstr(absl::StrCat("position ", session->position())));
        EXPECT_EQ(answer.status, expected.status);
        EXPECT_EQ(answer.ids, expected.ids);
        EXPECT_TRUE(testing::SameBits(answer.logits, expected.logits));
        EXPECT_EQ(session->tokens().back(), kPoison);
        EXPECT_TRUE(absl::IsInternal(session->Next().status()));
        ExpectCountersAddUp(*session);
        session->Reset();
        ASSERT_TRUE(session->Prefill(prompt).ok());
        const Answer again = testing::Say(Broken(), *session, rules);
        EXPECT_EQ(again.ids, expected.ids);
        EXPECT_TRUE(testing::SameBits(again.logits, expected.logits));
      }
    }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  EXPECT_GT(places.size(), 3u);
  EXPECT_GT(places.back(), 8u);
}

// Drafts that break all rows behind them and are wrong leave no trace.
class Poisonous : public Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    drafts->assign(max_drafts, kPoison);
    if (sequence.size() % 3 == 0) drafts->front() = sequence.back();
  }
};

TEST(BrokenScores, OfRejectedDraftsDoNotMatter) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingOptions sampling;
    sampling.temperature = temperature;
    sampling.seed = 3;
    sampling.logit_bias = {{kPoison, -1e4f}};
    const Truth truth(&Broken(), {1, 2, 3}, sampling, 40);
    for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
      for (const int32_t drafts : {1, 2, 7, 15}) {
        const Way way = {"poisonous", 1 + drafts,
                         [=](const std::vector<TokenId>&, int32_t) {
                           SessionOptions options;
                           options.draft_tokens = drafts;
                           options.rollback = rollback;
                           options.drafter = std::make_shared<Poisonous>();
                           return options;
                         }};
        const auto session = truth.Prefilled(way);
        ExpectBeginning(truth.Say(*session, truth.rules()), truth.answer(), 40);
        truth.ExpectGoesOn(*session);
      }
    }
  }
}

// --- Distribution ------------------------------------------------------------

constexpr int32_t kFew = 5;  // Tokens.

const Engine& FiveTokens() {
  static const Engine* const engine = [] {
    TargetConfig config;
    config.vocab_size = kFew;
    config.hidden_size = 16;
    config.intermediate_size = 16;
    config.max_context = 64;
    config.rms_norm_eps = 1e-6f;
    config.tied_head = true;
    config.gdn = {/*key_heads=*/1, /*value_heads=*/1, /*key_dim=*/8,
                  /*value_dim=*/8, /*conv_width=*/4};
    config.attention = {/*query_heads=*/1, /*kv_heads=*/1, /*head_dim=*/8,
                        /*rotary_dim=*/4, /*rope_theta=*/1e4};
    config.layers = {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention};
    const std::string path = ::testing::TempDir() + "/five.gdn";
    const absl::Status status = MakeRandomTarget(config, path);
    EXPECT_TRUE(status.ok()) << status;
    return Open({path, ""}).release();
  }();
  return *engine;
}

// What is left of `scores` after temperature, top_k and top_p, by the book.
std::vector<double> Distribution(const std::vector<float>& scores,
                                 const SamplingOptions& sampling) {
  std::vector<std::pair<double, TokenId>> order;
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (int32_t id = 0; id < kFew; ++id) {
    order.push_back(
        {-std::exp((scores[id] - most) / sampling.temperature), id});
    sum -= order.back().first;
  }
  std::sort(order.begin(), order.end());
  if (sampling.top_k > 0) {
    order.resize(sampling.top_k);
    sum = 0.0;
    for (const auto& [weight, id] : order) sum -= weight;
  }
  std::vector<double> left(kFew);
  double reached = 0.0, total = 0.0;
  for (const auto& [weight, id] : order) {
    if (reached >= sampling.top_p * sum) break;
    reached -= weight;
    left[id] = -weight;
    total -= weight;
  }
  for (double& p : left) p /= total;
  return left;
}

// Chi-square of `counts` against `expected`, and its limit for one in a
// thousand. Rare tokens count as one.
void ExpectDistribution(const std::vector<int>& counts,
                        const std::vector<double>& expected) {
  static constexpr double kLimits[] = {0, 10.83, 13.82, 16.27, 18.47};
  int draws = 0;
  for (const int count : counts) draws += count;
  double chi_square = 0.0, rare = 0.0;
  int kinds = 0, rare_count = 0;
  const auto add = [&](double wanted, int count) {
    chi_square += (count - wanted) * (count - wanted) / wanted;
    ++kinds;
  };
  for (int32_t id = 0; id < kFew; ++id) {
    const double wanted = draws * expected[id];
    if (expected[id] == 0.0) {
      EXPECT_EQ(counts[id], 0) << id;
    } else if (wanted < 5.0) {
      rare += wanted;
      rare_count += counts[id];
    } else {
      add(wanted, counts[id]);
    }
  }
  if (rare >= 1.0) add(rare, rare_count);
  if (kinds < 2) return;
  EXPECT_LT(chi_square, kLimits[kinds - 1]) << kinds << " kinds";
}

class Proposes : public Drafter {
 public:
  using Choose = std::function<TokenId(absl::Span<const TokenId>)>;
  explicit Proposes(Choose choose) : choose_(std::move(choose)) {}
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    std::vector<TokenId> all(sequence.begin(), sequence.end());
    for (int32_t i = 0; i < max_drafts; ++i) {
      drafts->push_back(choose_(all));
      all.push_back(drafts->back());
    }
  }

 private:
  const Choose choose_;
};

// Case C15: whatever is proposed, tokens come as often as the target says, the
// second given the first as well.
TEST(Distribution, IsTheTargetsWhateverIsProposed) {
  const std::vector<TokenId> prompt = {1, 4, 2};
  const auto scores_after = [](const std::vector<TokenId>& tokens) {
    SessionOptions plain;
    plain.draft_tokens = 0;
    const auto session = *FiveTokens().NewSession(plain);
    EXPECT_TRUE(session->Prefill(tokens).ok());
    GenerateOptions rules;
    rules.max_new_tokens = 1;
    rules.logits = true;
    return testing::Say(FiveTokens(), *session, rules).logits;
  };
  const std::vector<float> first = scores_after(prompt);
  std::vector<std::vector<float>> second;
  for (TokenId id = 0; id < kFew; ++id) {
    second.push_back(scores_after({1, 4, 2, id}));
  }
  const auto scores = [&](absl::Span<const TokenId> sequence) {
    return sequence.size() == 3 ? first : second[sequence[3]];
  };
  const auto worst = [&](absl::Span<const TokenId> sequence) {
    const std::vector<float> s = scores(sequence);
    return static_cast<TokenId>(std::min_element(s.begin(), s.end()) -
                                s.begin());
  };
  const auto best = [&](absl::Span<const TokenId> sequence) {
    const std::vector<float> s = scores(sequence);
    return static_cast<TokenId>(std::max_element(s.begin(), s.end()) -
                                s.begin());
  };
  Random random(6);
  const struct {
    const char* name;
    Proposes::Choose choose;
  } kDrafters[] = {
      {"nothing", nullptr},
      {"one token", [](absl::Span<const TokenId>) { return 2; }},
      {"the worst", worst},
      {"the best", best},
      {"any",
       [&random](absl::Span<const TokenId>) { return random.Int(0, 4); }},
  };
  const struct {
    float temperature;
    int32_t top_k;
    float top_p;
    int draws;
  } kSettings[] = {{1.0f, 0, 1.0f, 4000},
                   {1.5f, 3, 1.0f, 1500},
                   {1.0f, 0, 0.8f, 1500},
                   {2.0f, 4, 0.9f, 1500}};
  for (const auto& setting : kSettings) {
    SamplingOptions sampling;
    sampling.temperature = setting.temperature;
    sampling.top_k = setting.top_k;
    sampling.top_p = setting.top_p;
    std::vector<std::vector<int>> expected;
    for (const auto& drafter : kDrafters) {
      SCOPED_TRACE(absl::StrCat(drafter.name, ", top_k ", setting.top_k,
                                ", top_p ", setting.top_p));
      SessionOptions options;
      options.draft_tokens = drafter.choose == nullptr ? 0 : 1;
      if (drafter.choose != nullptr) {
        options.drafter = std::make_shared<Proposes>(drafter.choose);
      }
      const auto session = *FiveTokens().NewSession(options);
      ASSERT_TRUE(session->Prefill(prompt).ok());
      const auto snapshot = session->Take();
      ASSERT_TRUE(snapshot.ok());
      std::vector<int> once(kFew);
      std::vector<std::vector<int>> twice(kFew, std::vector<int>(kFew));
      GenerateOptions rules;
      rules.max_new_tokens = 2;
      rules.sampling = sampling;
      for (int draw = 0; draw < setting.draws; ++draw) {
        ASSERT_TRUE(session->Restore(*snapshot).ok());
        rules.sampling.seed = draw;
        ASSERT_TRUE(
            session->Generate(rules, [](const TokenEvent&) { return true; })
                .ok());
        const std::vector<TokenId>& tokens = session->tokens();
        ++once[tokens[3]];
        ++twice[tokens[3]][tokens[4]];
      }
      ExpectDistribution(once, Distribution(first, sampling));
      for (TokenId id = 0; id < kFew; ++id) {
        ExpectDistribution(twice[id], Distribution(second[id], sampling));
      }
      if (expected.empty()) expected = twice;
      EXPECT_EQ(twice, expected);
    }
  }
}

}  // namespace
}  // namespace deltaedge
