// SPDX-License-Identifier: Apache-2.0

// Blocks, rollbacks, prompt chunks and abandoned passes in any order leave, to
// the bit, what one token at a time leaves: scores, recurrent states,
// convolution windows, keys and values.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/graph/export_state.h"
#include "engine/graph/target_model.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/model_file.h"
#include "engine/state/recurrent_store.h"
#include "gtest/gtest.h"
#include "kernels/attn/attention.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;

constexpr int64_t kCapacity = 160;

// Everything that the model remembers, in the order of the layers.
std::vector<float> Everything(const TargetConfig& config,
                              TargetSequence& sequence) {
  std::vector<float> all, part, more;
  for (int32_t i = 0; i < static_cast<int32_t>(config.layers.size()); ++i) {
    if (config.layers[i] == LayerKind::kGatedDeltaNet) {
      EXPECT_TRUE(ExportRecurrentState(config, i, &sequence, &part).ok());
      EXPECT_TRUE(ExportConvColumns(config, i, &sequence, &more).ok());
    } else {
      EXPECT_TRUE(ExportKv(config, i, &sequence, &part, &more).ok());
    }
    all.insert(all.end(), part.begin(), part.end());
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class RollbackTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto file = ModelFile::Open(testing::Runfile(
        std::string("tests/testdata/models/") + GetParam() + ".gdn"));
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto model = MakeTargetModel(config(), file_->target_weights(), {},
                                 /*max_rows=*/48, {}, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    for (size_t layers = 0; layers < config().layers.size(); ++layers) {
      TargetConfig part = config();
      TargetWeights weights = file_->target_weights();
      part.layers.resize(layers);
      weights.layers.resize(layers);
      auto first = MakeTargetModel(part, weights, {}, 48, {}, nullptr);
      ASSERT_TRUE(first.ok()) << first.status();
      first_layers_.push_back(*std::move(first));
    }
    auto spare = SpareStates::Create(TargetRecurrentShape(config(), 1));
    ASSERT_TRUE(spare.ok());
    spare_ = std::make_unique<SpareStates>(*std::move(spare));
    auto logits =
        AlignedArray<float>::Allocate({48, config().vocab_size}, "scores");
    ASSERT_TRUE(logits.ok());
    logits_ = *std::move(logits);
    Random random(3);
    for (int64_t i = 0; i < kCapacity; ++i) {
      tokens_.push_back(random.Int(0, config().vocab_size - 1));
    }
    // One token at a time, in blocks of one row.
    TargetSequence sequence = NewSequence(/*block_rows=*/1);
    for (int64_t i = 0; i < kCapacity; ++i) {
      truth_.push_back(Everything(config(), sequence));
      Block(sequence, {tokens_[i]});
      truth_logits_.emplace_back(logits_.data(),
                                 logits_.data() + config().vocab_size);
      ASSERT_TRUE(sequence.cursor.Keep(1).ok());
    }
  }

  const TargetConfig& config() const { return file_->target_config(); }

  TargetSequence NewSequence(int32_t block_rows) {
    auto sequence = MakeTargetSequence(config(), kCapacity, block_rows);
    EXPECT_TRUE(sequence.ok());
    return *std::move(sequence);
  }

  // Fills with NaN whatever the sequence may not read.
  void Poison(TargetSequence& sequence) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    RecurrentStore& store = sequence.recurrent;
    const RecurrentShape& shape = store.shape();
    const int64_t length = sequence.cursor.length();
    for (int32_t i = 0; i < shape.layers; ++i) {
      for (int32_t which : {0, 1}) {
        const int32_t first =
            which == sequence.cursor.journal() ? sequence.cursor.pending(i) : 0;
        const JournalRows rows = store.journal(i, which);
        std::fill(rows.k + first * shape.key_floats,
                  rows.k + shape.block_rows * shape.key_floats, nan);
        std::fill(rows.u + first * shape.update_floats,
                  rows.u + shape.block_rows * shape.update_floats, nan);
        std::fill(rows.gamma + first * shape.decay_floats,
                  rows.gamma + shape.block_rows * shape.decay_floats, nan);
      }
      for (int64_t p = length; p < length + shape.block_rows; ++p) {
        std::fill_n(
            store.ring(i) + (p % shape.ring_rows()) * shape.column_floats,
            shape.column_floats, nan);
      }
    }
    for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
      const AttentionConfig& attention = config().attention;
      std::vector<float> row(attention.keys(), nan);
      const KvView view = {sequence.kv.keys(i), sequence.kv.values(i),
                           attention.kv_heads, attention.head_dim, kCapacity};
      for (int64_t p = length; p < kCapacity; ++p) {
        KvWrite(view, p, 1, row.data(), 0, row.data(), 0);
      }
    }
  }

  TargetPass Begin(TargetSequence& sequence, absl::Span<const TokenId> tokens,
                   bool prefill) {
    TargetPass pass;
    pass.tokens = tokens;
    const auto plan = sequence.cursor.Plan(static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(plan.ok());
    pass.plan = *plan;
    pass.sequence = &sequence;
    pass.spare = prefill ? spare_.get() : nullptr;
    sequence.cursor.Begin(*plan);
    return pass;
  }

  void RunPass(TargetSequence& sequence, absl::Span<const TokenId> tokens,
               bool prefill) {
    TargetPass pass = Begin(sequence, tokens, prefill);
    pass.logits = logits_.data();
    ASSERT_TRUE(model_->Run(pass).ok());
    if (prefill) {
      sequence.recurrent.Adopt(pass.plan, sequence.cursor.column(),
                               spare_.get());
      sequence.cursor.PublishPrefill(pass.plan);
    } else {
      sequence.cursor.PublishBlock(pass.plan);
    }
  }

  // What a pass that is cancelled after `layers` layers does.
  void Abandon(TargetSequence& sequence, absl::Span<const TokenId> tokens,
               bool prefill, int32_t layers) {
    const TargetPass pass = Begin(sequence, tokens, prefill);
    ASSERT_TRUE(first_layers_[layers]->Run(pass).ok());
  }

  void Block(TargetSequence& sequence, absl::Span<const TokenId> tokens) {
    RunPass(sequence, tokens, /*prefill=*/false);
  }

  // The first `rows` rows of the scores are those of tokens at `position`.
  void ExpectLogits(int64_t position, int32_t rows) {
    const int32_t vocab_size = config().vocab_size;
    for (int32_t t = 0; t < rows; ++t) {
      ASSERT_TRUE(SameBits(
          absl::MakeConstSpan(logits_.data() + t * vocab_size, vocab_size),
          truth_logits_[position + t]))
          << "row " << t << " at " << position;
    }
  }

  void ExpectState(TargetSequence& sequence) {
    const int64_t length = sequence.cursor.length();
    if (length == kCapacity) return;
    ASSERT_TRUE(SameBits(Everything(config(), sequence), truth_[length]))
        << "after " << length << " tokens";
  }

  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<TargetModel> model_;
  // [k]: the first k layers of it.
  std::vector<std::unique_ptr<TargetModel>> first_layers_;
  std::unique_ptr<SpareStates> spare_;
  AlignedArray<float> logits_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<float>> truth_;  // [i]: after i tokens.
  std::vector<std::vector<float>> truth_logits_;
};

// Cases C1, C2, C3, C4, C5: any block, any part of it kept, wrong tokens behind
// the kept ones, several changes of mind; several sequences on one model (C7);
// abandoned passes; chunks in between; NaN wherever nobody may look.
TEST_P(RollbackTest, RandomSchedules) {
  for (int seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const int32_t block_rows = seed % 4 == 0 ? 16 : random.Int(1, 16);
    std::vector<TargetSequence> sequences;
    sequences.push_back(NewSequence(block_rows));
    sequences.push_back(NewSequence(random.Int(1, 16)));
    for (int step = 0; step < 30; ++step) {
      TargetSequence& sequence = sequences[random.Int(0, 1)];
      const int64_t start = sequence.cursor.length();
      const int32_t room = static_cast<int32_t>(kCapacity - start);
      if (room == 0) break;
      if (random.OneIn(3)) Poison(sequence);
      std::vector<TokenId> tokens;
      const bool prefill = random.OneIn(4);
      const int32_t rows = std::min(
          room, random.Int(1, prefill ? 40 : sequence.cursor.block_rows()));
      const int32_t right = random.Int(0, rows);
      for (int32_t t = 0; t < rows; ++t) {
        tokens.push_back(prefill || t < right
                             ? tokens_[start + t]
                             : random.Int(0, config().vocab_size - 1));
      }
      if (random.OneIn(4)) {
        Abandon(sequence, tokens, prefill,
                random.Int(0, static_cast<int>(first_layers_.size()) - 1));
        ASSERT_EQ(sequence.cursor.length(), start);
        ExpectState(sequence);
      }
      RunPass(sequence, tokens, prefill);
      ExpectLogits(start, prefill ? rows : right);
      if (prefill) {
        ExpectState(sequence);
        continue;
      }
      for (int i = random.Int(0, 2); i >= 0; --i) {
        ASSERT_TRUE(sequence.cursor.Keep(random.Int(0, right)).ok());
        ExpectState(sequence);
      }
    }
  }
}

TEST_P(RollbackTest, AbandonedAfterAnyLayer) {
  const absl::Span<const TokenId> tokens = tokens_;
  for (int32_t layers = 0; layers < static_cast<int32_t>(first_layers_.size());
       ++layers) {
    for (const bool prefill : {false, true}) {
      TargetSequence sequence = NewSequence(8);
      RunPass(sequence, tokens.first(9), /*prefill=*/true);
      Block(sequence, tokens.subspan(9, 8));
      ASSERT_TRUE(sequence.cursor.Keep(5).ok());
      Abandon(sequence, std::vector<TokenId>(8, 1), prefill, layers);
      ExpectState(sequence);
      EXPECT_FALSE(sequence.cursor.Keep(3).ok());
      ExpectState(sequence);
      Block(sequence, tokens.subspan(14, 8));
      ExpectLogits(14, 8);
      ASSERT_TRUE(sequence.cursor.Keep(8).ok());
      ExpectState(sequence);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RollbackTest,
                         ::testing::Values("t", "odd", "wide"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace deltaedge
