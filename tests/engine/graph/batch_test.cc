// SPDX-License-Identifier: Apache-2.0

// Rows of several sequences in one run have the bits that each has when it runs
// alone, one token at a time: scores, taps, recurrent states, convolution
// windows, keys and values. Ragged blocks, a prompt chunk among them, both ways
// of rolling back, rows that wait to be folded in some and not in others, NaN
// wherever nobody may look.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/graph/export_state.h"
#include "engine/graph/target_model.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/weights.h"
#include "engine/state/recurrent_store.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "kernels/attn/attention.h"
#include "kernels/logits/argmax.h"
#include "kernels/logits/argmax_reference.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;

constexpr int32_t kMaxRows = 80;
constexpr int64_t kTokens = 90;
constexpr int32_t kTexts = 4;

// A text, and what the model makes of it one token at a time.
struct Text {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits, taps, hidden;  // [i]: of row i.
  std::vector<std::vector<float>> memory;                // [i]: after i tokens.
};

// A sequence on its way through a text.
struct Reader {
  const Text* text;
  TargetSequence sequence;
};

// One reader's part in a run.
struct Part {
  Reader* reader;
  int32_t rows = 1;
  int32_t right = 1;  // Rows that are the text's; those behind are noise.
  bool chunk = false;
};

class BatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto file = ModelFile::Open(testing::Runfile(
        std::string("tests/testdata/models/") + GetParam() + ".gdn"));
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    taps_ = {0, layers() - 1};
    model_ = NewModel(layers());
    for (int32_t count = 0; count < layers(); ++count) {
      first_layers_.push_back(NewModel(count));
    }
    auto spare = SpareStates::Create(TargetRecurrentShape(config(), 1));
    ASSERT_TRUE(spare.ok());
    spare_ = std::make_unique<SpareStates>(*std::move(spare));
    for (const auto& [array, width] : {std::pair(&logits_, vocab()),
                                       {&tapped_, 2 * hidden()},
                                       {&final_hidden_, hidden()}}) {
      auto floats = AlignedArray<float>::Allocate({kMaxRows, width}, "rows");
      ASSERT_TRUE(floats.ok());
      *array = *std::move(floats);
    }
    Random random(3);
    for (int32_t i = 0; i < kTexts; ++i) texts_.push_back(NewText(random));
  }

  const TargetConfig& config() const { return file_->target_config(); }
  int32_t layers() const {
    return static_cast<int32_t>(config().layers.size());
  }
  int64_t vocab() const { return config().vocab_size; }
  int64_t hidden() const { return config().hidden_size; }

  std::unique_ptr<TargetModel> NewModel(int32_t layers) {
    TargetConfig part = config();
    TargetWeights weights = file_->target_weights();
    part.layers.resize(layers);
    weights.layers.resize(layers);
    auto model = MakeTargetModel(part, weights, taps_, kMaxRows, {}, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  Text NewText(Random& random) {
    Text text;
    for (int64_t i = 0; i < kTokens; ++i) {
      text.tokens.push_back(random.Int(0, config().vocab_size - 1));
    }
    Reader reader = NewReader(text, 1, Rollback::kJournal);
    for (int64_t i = 0; i < kTokens; ++i) {
      text.memory.push_back(Memory(reader.sequence));
      const TargetPass pass =
          Begin({&reader}, absl::MakeConstSpan(text.tokens).subspan(i, 1), 0);
      EXPECT_TRUE(model_->Run(pass).ok());
      reader.sequence.cursor.PublishBlock(pass.plan);
      EXPECT_TRUE(reader.sequence.cursor.Keep(1).ok());
      text.logits.emplace_back(pass.logits, pass.logits + vocab());
      text.taps.emplace_back(pass.taps, pass.taps + 2 * hidden());
      text.hidden.emplace_back(pass.final_hidden, pass.final_hidden + hidden());
    }
    text.memory.push_back(Memory(reader.sequence));
    return text;
  }

  Reader NewReader(const Text& text, int32_t block_rows, Rollback rollback) {
    auto sequence = MakeTargetSequence(config(), kTokens, block_rows, rollback);
    EXPECT_TRUE(sequence.ok());
    return {&text, *std::move(sequence)};
  }

  // Everything that the model remembers, in the order of the layers.
  std::vector<float> Memory(TargetSequence& sequence) {
    std::vector<float> all, part, more;
    for (int32_t i = 0; i < layers(); ++i) {
      if (config().layers[i] == LayerKind::kGatedDeltaNet) {
        EXPECT_TRUE(ExportRecurrentState(config(), i, &sequence, &part).ok());
        EXPECT_TRUE(ExportConvColumns(config(), i, &sequence, &more).ok());
      } else {
        EXPECT_TRUE(ExportKv(config(), i, &sequence, &part, &more).ok());
      }
      all.insert(all.end(), part.begin(), part.end());
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  // Fills with NaN whatever the sequence may not read.
  void Poison(TargetSequence& sequence) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const SequenceState& cursor = sequence.cursor;
    RecurrentStore& store = sequence.recurrent;
    const RecurrentShape& shape = store.shape();
    for (int32_t i = 0; i < shape.layers; ++i) {
      for (int32_t c = 0; c < shape.state_columns(); ++c) {
        if (c == cursor.column()) continue;
        std::fill_n(store.state(i, c), shape.state_floats, nan);
      }
      for (const int32_t which : {0, 1}) {
        if (shape.rollback == Rollback::kSlots) break;
        const int32_t first = which == cursor.journal() ? cursor.pending(i) : 0;
        const JournalRows rows = store.journal(i, which);
        std::fill(rows.k + first * shape.key_floats,
                  rows.k + shape.block_rows * shape.key_floats, nan);
        std::fill(rows.u + first * shape.update_floats,
                  rows.u + shape.block_rows * shape.update_floats, nan);
        std::fill(rows.gamma + first * shape.decay_floats,
                  rows.gamma + shape.block_rows * shape.decay_floats, nan);
      }
      for (int32_t t = 0; t < shape.block_rows; ++t) {
        std::fill_n(store.ring(i) + (cursor.length() + t) % shape.ring_rows() *
                                        shape.column_floats,
                    shape.column_floats, nan);
      }
      std::fill_n(spare_->state(i), shape.state_floats, nan);
      std::fill_n(spare_->columns(i), 3 * shape.column_floats, nan);
    }
    const AttentionConfig& attention = config().attention;
    const std::vector<float> row(attention.keys(), nan);
    for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
      const KvView view = TargetKv(attention, &sequence, i);
      for (int64_t p = cursor.length(); p < kTokens; ++p) {
        KvWrite(view, p, 1, row.data(), 0, row.data(), 0);
      }
    }
  }

  // `row`: of the outputs.
  TargetPass Begin(const Part& part, absl::Span<const TokenId> tokens,
                   int32_t row) {
    TargetSequence& sequence = part.reader->sequence;
    TargetPass pass;
    pass.tokens = tokens;
    const auto plan = sequence.cursor.Plan(static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(plan.ok()) << plan.status();
    pass.plan = *plan;
    pass.sequence = &sequence;
    if (part.chunk) pass.spare = spare_.get();
    pass.logits = logits_.data() + row * vocab();
    pass.best = best_.data() + row;
    pass.taps = tapped_.data() + row * 2 * hidden();
    pass.final_hidden = final_hidden_.data() + row * hidden();
    sequence.cursor.Begin(*plan);
    return pass;
  }

  // What rows of `parts` hold.
  std::vector<std::vector<TokenId>> Tokens(absl::Span<const Part> parts,
                                           Random& random) {
    std::vector<std::vector<TokenId>> all;
    for (const Part& part : parts) {
      std::vector<TokenId>& tokens = all.emplace_back();
      const int64_t start = part.reader->sequence.cursor.length();
      for (int32_t t = 0; t < part.rows; ++t) {
        tokens.push_back(t < part.right
                             ? part.reader->text->tokens[start + t]
                             : random.Int(0, config().vocab_size - 1));
      }
    }
    return all;
  }

  // Runs all parts in one pass and looks at all that comes out. Outputs of the
  // parts lie one behind the other, or `apart`; some are not wanted.
  void Run(absl::Span<const Part> parts, Random& random, bool apart = false) {
    const auto tokens = Tokens(parts, random);
    std::vector<TargetPass> passes;
    int32_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      passes.push_back(Begin(parts[i], tokens[i], row));
      row += parts[i].rows;
      if (!apart) continue;
      if (random.OneIn(3)) passes.back().logits = nullptr;
      if (random.OneIn(3)) passes.back().best = nullptr;
      if (random.OneIn(3)) passes.back().taps = nullptr;
      if (random.OneIn(3)) passes.back().final_hidden = nullptr;
      if (row < kMaxRows / 2) ++row;
    }
    // Greedy company.
    if (random.OneIn(3)) {
      for (TargetPass& pass : passes) pass.logits = nullptr;
    }
    best_.assign(kMaxRows, {-1, 0.0f, false});
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (AlignedArray<float>* array : {&logits_, &tapped_, &final_hidden_}) {
      std::fill(array->begin(), array->end(), nan);
    }
    ASSERT_TRUE(model_->Run(passes).ok());
    for (size_t i = 0; i < parts.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_NO_FATAL_FAILURE(ExpectOutputs(parts[i], passes[i]));
      TargetSequence& sequence = parts[i].reader->sequence;
      if (parts[i].chunk) {
        sequence.recurrent.Adopt(passes[i].plan, sequence.cursor.column(),
                                 spare_.get());
        sequence.cursor.PublishPrefill(passes[i].plan);
      } else {
        sequence.cursor.PublishBlock(passes[i].plan);
      }
    }
  }

  void ExpectOutputs(const Part& part, const TargetPass& pass) {
    const Text& text = *part.reader->text;
    const auto expect = [](const float* row, const std::vector<float>& truth) {
      return row == nullptr || SameBits(row, truth.data(), truth.size());
    };
    for (int32_t t = 0; t < part.right; ++t) {
      const int64_t p = pass.plan.position + t;
      ASSERT_TRUE(
          expect(pass.logits == nullptr ? nullptr : pass.logits + t * vocab(),
                 text.logits[p]))
          << "scores of row " << t << " at " << p;
      if (pass.best != nullptr) {
        const ArgMax best =
            ArgMaxReference(config().vocab_size, text.logits[p].data());
        ASSERT_EQ(pass.best[t].index, best.index)
            << "best of row " << t << " at " << p;
        ASSERT_TRUE(pass.best[t].finite);
      }
      ASSERT_TRUE(
          expect(pass.taps == nullptr ? nullptr : pass.taps + t * 2 * hidden(),
                 text.taps[p]))
          << "taps of row " << t << " at " << p;
      ASSERT_TRUE(expect(pass.final_hidden == nullptr
                             ? nullptr
                             : pass.final_hidden + t * hidden(),
                         text.hidden[p]))
          << "last row " << t << " at " << p;
    }
  }

  void ExpectMemory(Reader& reader) {
    const int64_t length = reader.sequence.cursor.length();
    ASSERT_TRUE(SameBits(Memory(reader.sequence), reader.text->memory[length]))
        << "after " << length << " tokens";
  }

  void Keep(Reader& reader, int32_t rows) {
    ASSERT_TRUE(reader.sequence.cursor.Keep(rows).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectMemory(reader));
  }

  std::unique_ptr<ModelFile> file_;
  std::vector<int32_t> taps_;
  std::unique_ptr<TargetModel> model_;
  // [k]: the first k layers of it.
  std::vector<std::unique_ptr<TargetModel>> first_layers_;
  std::unique_ptr<SpareStates> spare_;
  AlignedArray<float> logits_, tapped_, final_hidden_;
  std::vector<ArgMax> best_ = std::vector<ArgMax>(kMaxRows);
  std::vector<Text> texts_;
};

// Cases C7, C8.
TEST_P(BatchTest, RaggedBlocks) {
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{1, 4, 2, 1}, {2, 3, 4}, {4, 1}, {1, 1, 1, 16}}) {
    for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
      Random random(1);
      std::vector<Reader> readers;
      for (size_t i = 0; i < lengths.size(); ++i) {
        readers.push_back(NewReader(texts_[i], 16, rollback));
      }
      for (int round = 0; round < 4; ++round) {
        std::vector<Part> parts;
        for (size_t i = 0; i < lengths.size(); ++i) {
          Poison(readers[i].sequence);
          parts.push_back({&readers[i], lengths[i], lengths[i]});
        }
        ASSERT_NO_FATAL_FAILURE(Run(parts, random));
        for (size_t i = 0; i < lengths.size(); ++i) {
          SCOPED_TRACE(i);
          // Not the same number of rows wait to be folded.
          const int32_t kept =
              static_cast<int32_t>(i + round) % (lengths[i] + 1);
          ASSERT_NO_FATAL_FAILURE(Keep(readers[i], kept));
        }
      }
    }
  }
}

// Readers of one text and of several, with blocks of their own lengths, in
// random company.
TEST_P(BatchTest, RandomSchedules) {
  int32_t chunks_in_company = 0;
  const int schedules = testing::FewerIfEmulated("schedules", 30, 6);
  for (int seed = 0; seed < schedules; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<Reader> readers;
    for (int i = random.Int(2, 6); i > 0; --i) {
      readers.push_back(
          NewReader(texts_[random.Int(0, kTexts - 1)], random.Int(1, 16),
                    random.OneIn(3) ? Rollback::kSlots : Rollback::kJournal));
    }
    for (int step = 0; step < 15; ++step) {
      std::vector<Part> parts;
      int32_t left = kMaxRows - 8;
      bool has_chunk = false;
      const size_t first = random.Int(0, static_cast<int>(readers.size()) - 1);
      for (size_t i = 0; i < readers.size(); ++i) {
        Reader& reader = readers[(first + i) % readers.size()];
        if (random.OneIn(5)) continue;
        if (random.OneIn(2)) Poison(reader.sequence);
        const SequenceState& cursor = reader.sequence.cursor;
        Part part = {&reader};
        part.chunk = !has_chunk && random.OneIn(4);
        part.rows = static_cast<int32_t>(std::min<int64_t>(
            {left, cursor.capacity() - cursor.length(),
             random.Int(1, part.chunk ? 24 : cursor.block_rows())}));
        if (part.rows == 0) continue;
        part.right = part.chunk ? part.rows : random.Int(0, part.rows);
        has_chunk |= part.chunk;
        left -= part.rows;
        parts.push_back(part);
      }
      if (parts.empty()) continue;
      if (has_chunk && parts.size() > 1) ++chunks_in_company;
      if (random.OneIn(4)) {
        // The run is abandoned after some layers.
        const auto tokens = Tokens(parts, random);
        std::vector<TargetPass> passes;
        for (size_t i = 0; i < parts.size(); ++i) {
          passes.push_back(Begin(parts[i], tokens[i], 0));
          passes.back().logits = nullptr;
          passes.back().taps = nullptr;
          passes.back().final_hidden = nullptr;
        }
        ASSERT_TRUE(
            first_layers_[random.Int(0, layers() - 1)]->Run(passes).ok());
        for (const Part& part : parts) {
          ASSERT_NO_FATAL_FAILURE(ExpectMemory(*part.reader));
          if (random.OneIn(2)) Poison(part.reader->sequence);
        }
      }
      ASSERT_NO_FATAL_FAILURE(Run(parts, random, random.OneIn(3)));
      for (const Part& part : parts) {
        if (part.chunk) {
          ASSERT_NO_FATAL_FAILURE(ExpectMemory(*part.reader));
        } else {
          ASSERT_NO_FATAL_FAILURE(
              Keep(*part.reader, random.Int(0, part.right)));
        }
      }
    }
  }
  EXPECT_GT(chunks_in_company, schedules * 2 / 3);
}

// One that was cancelled goes along; all together end the run.
TEST_P(BatchTest, OnlyAllFlagsEndARun) {
  Random random(1);
  Reader one = NewReader(texts_[0], 4, Rollback::kJournal);
  Reader two = NewReader(texts_[1], 4, Rollback::kJournal);
  ASSERT_NO_FATAL_FAILURE(Run({{&one, 4, 4}, {&two, 3, 3}}, random));
  Keep(one, 2);
  Keep(two, 3);
  const std::vector<Part> parts = {{&one, 3, 3}, {&two, 4, 4}};
  const auto tokens = Tokens(parts, random);
  std::atomic<bool> cancel_one{true}, cancel_two{true};
  for (const bool both : {true, false}) {
    cancel_two = both;
    std::vector<TargetPass> passes = {Begin(parts[0], tokens[0], 0),
                                      Begin(parts[1], tokens[1], 3)};
    passes[0].cancel = &cancel_one;
    passes[1].cancel = &cancel_two;
    EXPECT_EQ(absl::IsCancelled(model_->Run(passes)), both);
    if (!both) ExpectOutputs(parts[1], passes[1]);
    ExpectMemory(one);
    ExpectMemory(two);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BatchTest,
                         ::testing::Values("t", "odd", "wide"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace deltaedge
