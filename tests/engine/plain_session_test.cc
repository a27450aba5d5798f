// SPDX-License-Identifier: Apache-2.0

// A session without drafts pays nothing for speculation: no byte of memory and
// no row of work, whether the engine has a draft model or not. Bytes and rows
// are counted; no clock is asked.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/engine.h"
#include "engine/graph/draft_model.h"
#include "engine/graph/target_model.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/options.h"
#include "engine/sampling/sampler.h"
#include "engine/session.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/custom_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/stepper.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/scripted_drafter.h"

namespace deltaedge {
namespace {

constexpr int32_t kPromptTokens = 300;  // More than a chunk.
constexpr int32_t kNewTokens = 12;

std::string File(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

std::unique_ptr<Engine> Open(const std::string& target,
                             const std::string& draft) {
  auto engine = Engine::Open({target, draft}, {/*num_threads=*/1});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<TokenId> Prompt() {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < kPromptTokens; ++i) tokens.push_back(i * i % 31);
  return tokens;
}

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Floats of each array that a session without drafts is made of, from the sizes
// of the model alone.
struct PlainArrays {
  std::vector<int64_t> kv, recurrent;
};

PlainArrays ArraysOf(const TargetConfig& config, int64_t context,
                     Rollback rollback) {
  PlainArrays arrays;
  const GdnConfig& gdn = config.gdn;
  const int64_t state =
      gdn.value_heads * RoundUp(gdn.value_dim, 32) * gdn.key_dim;
  const int64_t journal_row = gdn.key_heads * gdn.key_dim +
                              gdn.value_heads * gdn.value_dim + gdn.value_heads;
  const int64_t column = 2 * gdn.key_heads * gdn.key_dim +  //
                         gdn.value_heads * gdn.value_dim;
  int64_t states = 0;  // Of all layers together.
  for (const LayerKind kind : config.layers) {
    if (kind == LayerKind::kFullAttention) {
      const int64_t floats = config.attention.kv_heads *
                             config.attention.head_dim * RoundUp(context, 16);
      arrays.kv.insert(arrays.kv.end(), {floats, floats});
      continue;
    }
    states += state;
    arrays.recurrent.push_back(4 * column);
    if (rollback == Rollback::kJournal) {
      arrays.recurrent.push_back(2 * journal_row);
    }
  }
  arrays.recurrent.push_back(states);
  if (rollback == Rollback::kSlots) arrays.recurrent.push_back(states);
  return arrays;
}

int64_t Bytes(const std::vector<int64_t>& arrays) {
  int64_t bytes = 0;
  for (const int64_t floats : arrays) bytes += 4 * floats;
  return bytes;
}

// The same with what the allocator adds to each: a readable tail, whole lines.
int64_t AllocatedBytes(const std::vector<int64_t>& arrays) {
  int64_t bytes = 0;
  for (const int64_t floats : arrays) bytes += RoundUp(4 * floats + 64, 64);
  return bytes;
}

class PlainSessionTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    target_ = File(GetParam());
    draft_ = File(std::string(GetParam()) + "_draft");
    auto file = ModelFile::Open(target_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  const TargetConfig& config() const { return file_->target_config(); }

  std::string target_, draft_;
  std::unique_ptr<ModelFile> file_;
};

TEST_P(PlainSessionTest, TakesTheMemoryOfItsModelAndNoMore) {
  for (const std::string& draft : {std::string(), draft_}) {
    const auto engine = Open(target_, draft);
    for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
      for (const int32_t context : {1, 33, 512, 0}) {
        SessionOptions options;
        options.draft_tokens = 0;
        options.rollback = rollback;
        options.max_context = context;
        const PlainArrays arrays = ArraysOf(
            config(), context == 0 ? config().max_context : context, rollback);
        const auto memory = engine->EstimateMemory(options);
        ASSERT_TRUE(memory.ok()) << memory.status();
        EXPECT_EQ(memory->kv_bytes, Bytes(arrays.kv));
        EXPECT_EQ(memory->recurrent_bytes, Bytes(arrays.recurrent));
        EXPECT_EQ(memory->draft_bytes, 0);

        const int64_t bytes = LiveAllocatedBytes();
        const int64_t allocations = AllocationCount();
        const auto session = engine->NewSession(options);
        ASSERT_TRUE(session.ok()) << session.status();
        EXPECT_EQ(LiveAllocatedBytes() - bytes,
                  AllocatedBytes(arrays.kv) + AllocatedBytes(arrays.recurrent));
        EXPECT_EQ(
            AllocationCount() - allocations,
            static_cast<int64_t>(arrays.kv.size() + arrays.recurrent.size()));
      }
    }
  }
}

TEST_P(PlainSessionTest, TakesNoMemoryLaterAndOnePassForEachToken) {
  for (const std::string& draft : {std::string(), draft_}) {
    const auto engine = Open(target_, draft);
    SessionOptions options;
    options.draft_tokens = 0;
    auto session = engine->NewSession(options);
    ASSERT_TRUE(session.ok()) << session.status();
    const int64_t bytes = LiveAllocatedBytes();
    const int64_t allocations = AllocationCount();
    ASSERT_TRUE((*session)->Prefill(Prompt()).ok());
    GenerateOptions generate;
    generate.max_new_tokens = kNewTokens;
    generate.ignore_model_stop_tokens = true;
    ASSERT_TRUE((*session)
                    ->Generate(generate,
                               [](const TokenEvent& t) {
                                 EXPECT_EQ(t.source, TokenSource::kTarget);
                                 return true;
                               })
                    .ok());
    EXPECT_EQ(LiveAllocatedBytes(), bytes);
    EXPECT_EQ(AllocationCount(), allocations);
    const SessionStats stats = (*session)->stats();
    EXPECT_EQ(stats.steps, kNewTokens);
    EXPECT_EQ(stats.draft_steps, 0);
    EXPECT_EQ(stats.drafted, 0);
    EXPECT_TRUE(stats.tried_at.empty());
    EXPECT_EQ((*session)->waiting(), 0);
  }
}

// The real target, and what was asked of it. A draft model embeds its blocks
// and scores them by these methods; the target itself does not.
class WatchedTarget : public TargetModel {
 public:
  explicit WatchedTarget(TargetModel* target) : target_(target) {}

  using TargetModel::Run;
  absl::Status Run(absl::Span<const TargetPass> passes) override {
    ++runs;
    for (const TargetPass& pass : passes) {
      rows += pass.plan.rows;
      if (pass.best != nullptr) score_rows += pass.plan.rows;
      if (pass.taps != nullptr) tapped_rows += pass.plan.rows;
    }
    return target_->Run(passes);
  }
  absl::Status Head(const float* x, int32_t rows, float* logits, ArgMax* best,
                    float* second) override {
    ++draft_calls;
    return target_->Head(x, rows, logits, best, second);
  }
  void Embed(absl::Span<const TokenId> tokens, float* x) const override {
    ++draft_calls;
    target_->Embed(tokens, x);
  }
  const TargetConfig& config() const override { return target_->config(); }
  int32_t max_rows() const override { return target_->max_rows(); }
  int64_t packed_bytes() const override { return target_->packed_bytes(); }
  int64_t scratch_bytes() const override { return target_->scratch_bytes(); }

  int64_t runs = 0, rows = 0, score_rows = 0, tapped_rows = 0;
  mutable int64_t draft_calls = 0;

 private:
  TargetModel* const target_;
};

TEST_P(PlainSessionTest, RunsNoTapsNoDrafterAndNoOtherRows) {
  auto draft_file = ModelFile::Open(draft_);
  ASSERT_TRUE(draft_file.ok()) << draft_file.status();
  const DraftConfig& draft_config = (*draft_file)->draft_config();
  auto real = MakeTargetModel(config(), file_->target_weights(),
                              draft_config.target_layers, 256, {}, nullptr);
  ASSERT_TRUE(real.ok()) << real.status();

  // Decodes with what `make_drafter` makes of the draft model.
  const auto decode = [&](auto make_drafter, int32_t drafts) {
    WatchedTarget target(real->get());
    auto draft =
        DraftModel::Create(draft_config, (*draft_file)->draft_weights(),
                           &target, 256, {}, nullptr);
    EXPECT_TRUE(draft.ok()) << draft.status();
    const int64_t tap_floats =
        static_cast<int64_t>(draft_config.target_layers.size()) *
        config().hidden_size;
    auto stepper = Stepper::Create(&target, tap_floats, kMaxBlockRows);
    EXPECT_TRUE(stepper.ok()) << stepper.status();
    auto state = MakeTargetSequence(config(), 512, 1 + drafts);
    EXPECT_TRUE(state.ok()) << state.status();
    const std::unique_ptr<BlockDrafter> drafter = make_drafter(draft->get());
    std::vector<TokenId> tokens = Prompt();
    Sampler sampler;
    StepResult result;
    StepItem item;
    item.state = &*state;
    item.drafter = drafter.get();
    item.sampler = &sampler;
    item.result = &result;
    for (int32_t done = 0; done < kPromptTokens - 1;) {
      const int32_t rows = std::min(256, kPromptTokens - 1 - done);
      item.chunk = absl::MakeConstSpan(tokens).subspan(done, rows);
      EXPECT_TRUE((*stepper)->Step(item).ok());
      done += rows;
    }
    item.chunk = {};
    item.max_drafts = drafts;
    for (int32_t i = 0; i < kNewTokens; ++i) {
      item.sequence = tokens;
      EXPECT_TRUE((*stepper)->Step(item).ok());
      EXPECT_TRUE(state->cursor.Keep(1).ok());
      tokens.push_back(result.tokens[0]);
    }
    return target;
  };

  const WatchedTarget plain =
      decode([](DraftModel*) { return std::make_unique<NullDrafter>(); }, 0);
  EXPECT_EQ(plain.runs, 2 + kNewTokens);
  EXPECT_EQ(plain.rows, kPromptTokens - 1 + kNewTokens);
  EXPECT_EQ(plain.score_rows, kNewTokens);
  EXPECT_EQ(plain.tapped_rows, 0);
  EXPECT_EQ(plain.draft_calls, 0);

  // An application's drafter needs none of it either.
  const WatchedTarget custom = decode(
      [](DraftModel*) {
        return std::make_unique<CustomDrafter>(
            std::make_shared<testing::ScriptedDrafter>(
                std::vector<TokenId>(), 31, [](int, int32_t max_drafts) {
                  return testing::ScriptedDrafter::Round{max_drafts, 0};
                }));
      },
      3);
  EXPECT_EQ(custom.rows, kPromptTokens - 1 + 4 * kNewTokens);
  EXPECT_EQ(custom.tapped_rows, 0);
  EXPECT_EQ(custom.draft_calls, 0);

  // These counters do count.
  const WatchedTarget drafting = decode(
      [](DraftModel* draft) { return *DFlashDrafter::Create(draft, 512); }, 3);
  EXPECT_EQ(drafting.rows, kPromptTokens - 1 + 4 * kNewTokens);
  EXPECT_EQ(drafting.tapped_rows, drafting.rows);
  EXPECT_GT(drafting.draft_calls, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, PlainSessionTest,
                         ::testing::Values("t", "odd", "wide"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace deltaedge
