// SPDX-License-Identifier: Apache-2.0

// The promise: the same tokens and the same bits of the scores with any draft,
// any number of drafted tokens, any thread count and any split of the prompt.
// Equality is memcmp, never a tolerance.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
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
#include "tests/testing/random.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;
using testing::ScriptedDrafter;

struct Model {
  const char* name;
  const char* target;
  const char* draft;
  int32_t prompt_tokens;
  int32_t new_tokens;
};

const Model kModels[] = {
    {"toy", "tests/testdata/models/t.gdn", "tests/testdata/models/t_draft.gdn",
     21, 40},
    {"toy_causal", "tests/testdata/models/t.gdn",
     "tests/testdata/models/t_draft_causal.gdn", 5, 40},
    {"toy_symmetric", "tests/testdata/models/t.gdn",
     "tests/testdata/models/t_draft_symmetric.gdn", 1, 40},
    {"odd", "tests/testdata/models/odd.gdn",
     "tests/testdata/models/odd_draft.gdn", 70, 40},
    {"wide", "tests/testdata/models/wide.gdn",
     "tests/testdata/models/wide_draft.gdn", 3, 40},
    {"demo", "examples/chat/model/target.gdn", "examples/chat/model/draft.gdn",
     280, 24},
};

struct Decoded {
  std::vector<TokenId> tokens;  // Prompt included.
  std::vector<float> logits;    // Of every new token.
  SessionStats stats;
};

class LosslessTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    engine_ = Open(1);
    Random random(11);
    while (static_cast<int32_t>(prompt_.size()) < GetParam().prompt_tokens) {
      prompt_.push_back(random.Int(0, engine_->info().vocab_size - 1));
    }
    SessionOptions plain;
    plain.draft_tokens = 0;
    truth_ = Decode(*engine_, plain);
    ASSERT_EQ(truth_.tokens.size(), prompt_.size() + new_tokens());
    ASSERT_EQ(truth_.stats.drafted, 0);
  }

  static int32_t new_tokens() { return GetParam().new_tokens; }
  // The trained model takes long; the others go everywhere.
  static bool quick() { return GetParam().prompt_tokens < 100; }

  static std::unique_ptr<Engine> Open(int threads) {
    auto engine = Engine::Open({testing::Runfile(GetParam().target),
                                testing::Runfile(GetParam().draft)},
                               {threads});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static void Continue(Session& session, int32_t count, Decoded* run) {
    GenerateOptions options;
    options.max_new_tokens = count;
    options.ignore_model_stop_tokens = true;
    options.logits = true;
    const auto result = session.Generate(options, [run](const TokenEvent& t) {
      run->logits.insert(run->logits.end(), t.logits.begin(), t.logits.end());
      return true;
    });
    ASSERT_TRUE(result.ok()) << result.status();
    run->tokens = session.tokens();
    run->stats = session.stats();
  }

  // Prefills in pieces of `split` tokens, or at once, and generates.
  Decoded Decode(const Engine& engine, const SessionOptions& options,
                 size_t split = 100000, int32_t count = new_tokens()) const {
    Decoded run;
    auto session = engine.NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    for (size_t begin = 0; begin < prompt_.size(); begin += split) {
      EXPECT_TRUE((*session)
                      ->Prefill(absl::MakeConstSpan(prompt_).subspan(
                          begin, std::min(split, prompt_.size() - begin)))
                      .ok());
    }
    Continue(**session, count, &run);
    return run;
  }

  Decoded DecodeScripted(int32_t draft_tokens, ScriptedDrafter::Script script) {
    SessionOptions options;
    options.draft_tokens = draft_tokens;
    options.drafter = std::make_shared<ScriptedDrafter>(
        truth_.tokens, engine_->info().vocab_size, std::move(script));
    return Decode(*engine_, options);
  }

  void ExpectTruth(const Decoded& run) const {
    EXPECT_EQ(run.tokens, truth_.tokens);
    EXPECT_TRUE(SameBits(run.logits, truth_.logits));
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> prompt_;
  Decoded truth_;
};

TEST_P(LosslessTest, DFlashOfAnyLength) {
  const int32_t most = engine_->info().draft_block - 1;
  for (int32_t drafts = 1; drafts <= most; ++drafts) {
    SessionOptions options;
    options.draft_tokens = drafts;
    const Decoded run = Decode(*engine_, options);
    ExpectTruth(run);
    EXPECT_GT(run.stats.drafted, 0);
    EXPECT_LE(static_cast<int32_t>(run.stats.tried_at.size()), drafts);
  }
}

TEST_P(LosslessTest, AllRight) {
  for (const int32_t drafts : {1, 2, 3, 7, 15}) {
    const Decoded run = DecodeScripted(drafts, [](int, int32_t max_drafts) {
      return ScriptedDrafter::Round{max_drafts, max_drafts};
    });
    ExpectTruth(run);
    EXPECT_EQ(run.stats.accepted, run.stats.drafted);
    EXPECT_EQ(run.stats.accepted + run.stats.steps, new_tokens());
    EXPECT_EQ(run.stats.steps, (new_tokens() + drafts) / (drafts + 1));
  }
}

TEST_P(LosslessTest, AllWrong) {
  for (const int32_t drafts : {1, 2, 3, 7, 15}) {
    const Decoded run = DecodeScripted(drafts, [](int, int32_t max_drafts) {
      return ScriptedDrafter::Round{max_drafts, 0};
    });
    ExpectTruth(run);
    EXPECT_EQ(run.stats.accepted, 0);
    EXPECT_EQ(run.stats.steps, new_tokens());
  }
}

// Every count from none to all, each on top of each other.
TEST_P(LosslessTest, RightUntilTheIth) {
  for (const int32_t drafts : {1, 3, 7, 15}) {
    if (drafts == 15 && !quick()) continue;
    std::vector<int32_t> occurred(drafts + 1, 0);
    const int32_t rounds = quick() ? drafts + 1 : (drafts + 2) / 2;
    for (int32_t start = 0; start < rounds; ++start) {
      const Decoded run = DecodeScripted(
          drafts, [start, drafts, &occurred](int round, int32_t max_drafts) {
            const int32_t right = (start + 5 * round) % (drafts + 1);
            if (max_drafts == drafts) ++occurred[right];
            return ScriptedDrafter::Round{max_drafts, right};
          });
      ExpectTruth(run);
    }
    for (int32_t right = 0; right <= drafts; ++right) {
      EXPECT_GT(occurred[right], 0) << right << " of " << drafts;
    }
  }
}

// Cases C3, C5: the number of drafts changes from step to step, none included.
TEST_P(LosslessTest, RandomSchedules) {
  for (int seed = 0; seed < (quick() ? 12 : 3); ++seed) {
    Random random(seed);
    const Decoded run = DecodeScripted(15, [&random](int, int32_t max_drafts) {
      ScriptedDrafter::Round round;
      round.propose = random.OneIn(3) ? 0 : random.Int(0, max_drafts);
      round.right = random.Int(0, round.propose);
      return round;
    });
    ExpectTruth(run);
  }
}

TEST_P(LosslessTest, AnySplitOfThePrompt) {
  for (const size_t split : {1, 2, 3, 7, 16, 64, 257}) {
    if (split < 16 && !quick()) continue;
    ExpectTruth(Decode(*engine_, {}, split));
  }
}

// Few tokens: threads that share cores with other tests wait for one another.
TEST_P(LosslessTest, AnyNumberOfThreads) {
  for (const int threads : {2, 3}) {
    const auto engine = Open(threads);
    EXPECT_EQ(engine->info().threads, threads);
    const Decoded run = Decode(*engine, {}, 100000, 9);
    const size_t scores = 9 * engine->info().vocab_size;
    ASSERT_EQ(run.logits.size(), scores);
    EXPECT_TRUE(std::equal(run.tokens.begin(), run.tokens.end(),
                           truth_.tokens.begin()));
    EXPECT_EQ(std::memcmp(run.logits.data(), truth_.logits.data(),
                          scores * sizeof(float)),
              0);
  }
}

// Stops at every few tokens, adds nothing or another prompt, resets, goes on.
TEST_P(LosslessTest, InterruptionsAnywhere) {
  for (int seed = 0; seed < 4; ++seed) {
    Random random(100 + seed);
    auto session = engine_->NewSession();
    ASSERT_TRUE(session.ok());
    if (random.OneIn(2)) {
      ASSERT_TRUE((*session)->Prefill({1, 2, 3}).ok());
      Decoded scratch;
      Continue(**session, random.Int(1, 9), &scratch);
      (*session)->Reset();
    }
    ASSERT_TRUE((*session)->Prefill(prompt_).ok());
    Decoded run;
    int32_t left = new_tokens();
    while (left > 0) {
      const int32_t count = std::min(left, random.Int(1, 9));
      Continue(**session, count, &run);
      left -= count;
    }
    ExpectTruth(run);
  }
}

// What was generated is a prompt like any other to a session that is given it:
// decoding, verification and prefill leave the same state.
TEST_P(LosslessTest, PrefillLeavesTheStateOfDecoding) {
  for (const int32_t cut : {1, 5, 17, 23}) {
    auto session = engine_->NewSession();
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(
        (*session)
            ->Prefill(
                absl::MakeConstSpan(truth_.tokens).first(prompt_.size() + cut))
            .ok());
    Decoded run;
    Continue(**session, new_tokens() - cut, &run);
    EXPECT_EQ(run.tokens, truth_.tokens);
    const int32_t vocab_size = engine_->info().vocab_size;
    const std::vector<float> rest(
        truth_.logits.begin() + int64_t{cut} * vocab_size, truth_.logits.end());
    EXPECT_TRUE(SameBits(run.logits, rest));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LosslessTest, ::testing::ValuesIn(kModels),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace deltaedge
