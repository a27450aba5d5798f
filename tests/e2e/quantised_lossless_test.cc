// SPDX-License-Identifier: Apache-2.0

// The promise of lossless_test.cc within each type of weights: whatever the
// matrices are, drafts, splits, ways of rolling back and threads change no bit
// of tokens and scores. And that the scores are those of the numbers that are
// stored.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
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

struct Model {
  const char* name;
  const char* target;
  const char* draft;
  const char* question;  // Null: a prompt of random ids.
};

#define MODELS "tests/testdata/models/"
const Model kModels[] = {
    {"q8", MODELS "quant_q8.gdn", MODELS "quant_draft_q8.gdn", nullptr},
    {"q4", MODELS "quant_q4.gdn", MODELS "quant_draft_q4.gdn", nullptr},
    {"next_mixed", MODELS "next_mixed.gdn", MODELS "next_draft.gdn", nullptr},
    {"q8w", MODELS "quant_q8w.gdn", MODELS "quant_draft_q8.gdn", nullptr},
    {"mixed", MODELS "quant_mixed.gdn", MODELS "quant_draft_q4.gdn", nullptr},
    {"next_q8", MODELS "next_q8.gdn", MODELS "next_draft.gdn", nullptr},
    {"next_q4", MODELS "next_q4.gdn", MODELS "next_draft.gdn", nullptr},
    {"next_q8w", MODELS "next_q8w.gdn", MODELS "next_draft.gdn", nullptr},
    {"demo_q8", MODELS "demo_q8.gdn", "examples/chat/model/draft.gdn",
     "What is a dog?"},
    {"demo_q4", MODELS "demo_q4.gdn", MODELS "demo_draft_q4.gdn",
     "What is a dog?"},
};

struct Decoded {
  std::vector<TokenId> tokens;  // Prompt included.
  std::vector<float> logits;    // Of every new token.
  SessionStats stats;
};

// Null where this processor has no kernel for such weights.
std::unique_ptr<Engine> Open(const std::string& target,
                             const std::string& draft, int threads = 1) {
  EngineOptions options;
  options.num_threads = threads;
  options.verify = EngineOptions::Verify::kChecksums;
  auto engine = Engine::Open({target, draft}, options);
  if (absl::IsUnimplemented(engine.status())) {
    std::cout << "not run: " << engine.status() << "\n";
    return nullptr;
  }
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<TokenId> RandomPrompt(int32_t tokens) {
  Random random(5);
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) token = random.Int(0, 255);
  return prompt;
}

// Prefills in pieces of `split` tokens and generates.
Decoded Decode(const Engine& engine, const std::vector<TokenId>& prompt,
               int32_t new_tokens, const SessionOptions& options,
               float temperature = 0, size_t split = 100000) {
  Decoded run;
  auto session = engine.NewSession(options);
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return run;
  for (size_t begin = 0; begin < prompt.size(); begin += split) {
    EXPECT_TRUE((*session)
                    ->Prefill(absl::MakeConstSpan(prompt).subspan(
                        begin, std::min(split, prompt.size() - begin)))
                    .ok());
  }
  GenerateOptions generate;
  generate.max_new_tokens = new_tokens;
  generate.ignore_model_stop_tokens = true;
  generate.logits = true;
  generate.sampling.temperature = temperature;
  generate.sampling.seed = 9;
  const auto result =
      (*session)->Generate(generate, [&run](const TokenEvent& token) {
        run.logits.insert(run.logits.end(), token.logits.begin(),
                          token.logits.end());
        return true;
      });
  EXPECT_TRUE(result.ok()) << result.status();
  run.tokens = (*session)->tokens();
  run.stats = (*session)->stats();
  return run;
}

class QuantisedLosslessTest : public ::testing::TestWithParam<Model> {
 protected:
  static int32_t new_tokens() {
    return testing::FewerIfEmulated("new tokens", 30, 12);
  }

  void SetUp() override {
    engine_ = OpenPair(1);
    if (engine_ == nullptr) GTEST_SKIP();
    if (GetParam().question == nullptr) {
      prompt_ = RandomPrompt(37);
    } else {
      const auto ids =
          engine_->chat().Render({{Role::kUser, GetParam().question}});
      ASSERT_TRUE(ids.ok()) << ids.status();
      prompt_ = *ids;
    }
    truth_ = Plain(0);
    ASSERT_EQ(truth_.tokens.size(), prompt_.size() + new_tokens());
    ASSERT_EQ(truth_.stats.drafted, 0);
  }

  static std::unique_ptr<Engine> OpenPair(int threads) {
    return Open(testing::Runfile(GetParam().target),
                testing::Runfile(GetParam().draft), threads);
  }
  static bool demo() { return GetParam().question != nullptr; }

  Decoded Plain(float temperature) const {
    SessionOptions options;
    options.draft_tokens = 0;
    return Decode(*engine_, prompt_, new_tokens(), options, temperature);
  }
  void ExpectSame(const Decoded& run, const Decoded& truth) const {
    EXPECT_EQ(run.tokens, truth.tokens);
    EXPECT_TRUE(SameBits(run.logits, truth.logits));
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> prompt_;
  Decoded truth_;  // Greedy, without drafts.
};

TEST_P(QuantisedLosslessTest, DraftsChangeNothing) {
  for (const float temperature : {0.0f, 1.0f}) {
    const Decoded truth = Plain(temperature);
    for (const int32_t drafts : {1, 3, 7, 15}) {
      if (drafts >= engine_->info().draft_block) continue;
      SessionOptions options;
      options.draft_tokens = drafts;
      const Decoded run =
          Decode(*engine_, prompt_, new_tokens(), options, temperature);
      ExpectSame(run, truth);
      EXPECT_GT(run.stats.drafted, 0);
      // The trained draft is right often, whatever either is stored as.
      if (demo() && temperature == 0 && drafts > 1) {
        EXPECT_GT(run.stats.accepted, 10);
      }
    }
  }
}

TEST_P(QuantisedLosslessTest, RightUntilTheIth) {
  for (const Rollback mode : {Rollback::kJournal, Rollback::kSlots}) {
    const int32_t starts =
        demo() ? 2 : testing::FewerIfEmulated("schedules", 16, 1);
    for (int32_t start = 0; start < starts; ++start) {
      SessionOptions options;
      options.draft_tokens = 15;
      options.rollback = mode;
      options.drafter = std::make_shared<ScriptedDrafter>(
          truth_.tokens, engine_->info().vocab_size,
          [start](int round, int32_t max_drafts) {
            return ScriptedDrafter::Round{max_drafts, (start + 5 * round) % 16};
          });
      ExpectSame(Decode(*engine_, prompt_, new_tokens(), options), truth_);
    }
  }
}

TEST_P(QuantisedLosslessTest, AnySplitOfThePrompt) {
  for (const size_t split : {1, 3, 16}) {
    ExpectSame(Decode(*engine_, prompt_, new_tokens(), {}, 0, split), truth_);
  }
}

TEST_P(QuantisedLosslessTest, AnyNumberOfThreads) {
  constexpr int32_t kFew = 9;
  const auto engine = OpenPair(2);
  ASSERT_NE(engine, nullptr);
  const Decoded run = Decode(*engine, prompt_, kFew, {});
  const std::vector<float> logits(
      truth_.logits.begin(),
      truth_.logits.begin() + int64_t{kFew} * engine->info().vocab_size);
  EXPECT_TRUE(SameBits(run.logits, logits));
}

INSTANTIATE_TEST_SUITE_P(
    Models, QuantisedLosslessTest,
    ::testing::ValuesIn(kModels,
                        kModels + testing::FewerIfEmulated("models", 10, 3)),
    [](const auto& info) { return std::string(info.param.name); });

// Writes the target of `from` with all its numbers as floats.
absl::Status WriteAsFloats(const std::string& from, const std::string& to) {
  DELTAEDGE_ASSIGN_OR_RETURN(const auto file, ModelFile::Open(from));
  ModelContents contents;
  contents.target = file->target_config();
  TargetWeights weights = file->target_weights();
  const std::vector<TensorSlot> slots = TensorSlots(contents.target, &weights);
  const std::vector<TensorSpec> specs = TensorSpecs(contents.target);
  DELTAEDGE_ASSIGN_OR_RETURN(const auto writer,
                             ModelWriter::Create(to, contents, specs));
  for (const TensorSlot& slot : slots) {
    DELTAEDGE_RETURN_IF_ERROR(writer->Begin(slot.name));
    if (slot.vector != nullptr) {
      size_t size = 1;
      for (const int32_t extent : slot.shape) size *= extent;
      DELTAEDGE_RETURN_IF_ERROR(
          writer->Append(absl::MakeConstSpan(*slot.vector, size)));
      continue;
    }
    std::vector<float> row(slot.matrix->cols);
    for (int32_t i = 0; i < slot.matrix->rows; ++i) {
      DequantiseRow(*slot.matrix, i, row.data());
      DELTAEDGE_RETURN_IF_ERROR(writer->Append(absl::MakeConstSpan(row)));
    }
  }
  return writer->Finish(file->fingerprint());
}

// Scores of the next token after a prompt, by a file and by its numbers as
// floats: relative root of the mean square of the difference.
double DistanceFromFloats(const char* target) {
  const std::string floats =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".gdn";
  const std::string path = testing::Runfile(target);
  EXPECT_EQ(WriteAsFloats(path, floats), absl::OkStatus());
  std::vector<float> scores[2];
  for (int i = 0; i < 2; ++i) {
    const auto engine = Open(i == 0 ? path : floats, "");
    scores[i] = Decode(*engine, RandomPrompt(20), 1, {}).logits;
  }
  EXPECT_EQ(scores[0].size(), scores[1].size());
  double error = 0, square = 0;
  for (size_t i = 0; i < scores[0].size(); ++i) {
    error += std::pow(double{scores[0][i]} - scores[1][i], 2);
    square += std::pow(scores[1][i], 2);
  }
  return std::sqrt(error / square);
}

// Products of q8w take their inputs as they are: only sums differ.
TEST(QuantisedNumbersTest, Q8wIsItsNumbers) {
  EXPECT_LT(DistanceFromFloats(MODELS "quant_q8w.gdn"), 1e-5);
  EXPECT_LT(DistanceFromFloats(MODELS "next_q8w.gdn"), 1e-5);
}

// Those of q8 and q4 round each row of their inputs to 8 bits. With scales or
// halves of bytes mixed up, the distance would be about 1.
TEST(QuantisedNumbersTest, OthersAreTheirNumbersTimesRoundedInputs) {
  const char* const targets[] = {MODELS "quant_q8.gdn", MODELS "quant_q4.gdn",
                                 MODELS "quant_mixed.gdn", MODELS "demo_q8.gdn",
                                 MODELS "demo_q4.gdn"};
  for (const char* const target : absl::MakeConstSpan(targets).first(
           testing::FewerIfEmulated("models to compare", 5, 3))) {
    if (Open(testing::Runfile(target), "") == nullptr) continue;
    const double distance = DistanceFromFloats(target);
    EXPECT_GT(distance, 1e-5) << target;
    EXPECT_LT(distance, 0.15) << target;
  }
}

}  // namespace
}  // namespace deltaedge
