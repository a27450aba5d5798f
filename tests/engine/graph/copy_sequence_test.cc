// SPDX-License-Identifier: Apache-2.0

// A copy of a sequence, taken at any number of kept rows of any block, is, to
// the bit, what one token at a time leaves, and its source stays as it is.

#include <algorithm>
#include <cstdint>
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
#include "engine/state/sequence_state.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;

constexpr int64_t kTokens = 60;
constexpr Rollback kRollbacks[] = {Rollback::kJournal, Rollback::kSlots};

void Append(const float* values, int64_t size, std::vector<float>* all) {
  all->insert(all->end(), values, values + size);
}

// Calls visit(memory, floats) for all that a sequence owns, counting or not.
template <typename Visit>
void ForEachArray(TargetSequence& sequence, const Visit& visit) {
  RecurrentStore& store = sequence.recurrent;
  const RecurrentShape& shape = store.shape();
  for (int32_t i = 0; i < shape.layers; ++i) {
    for (int32_t column = 0; column < shape.state_columns(); ++column) {
      visit(store.state(i, column), shape.state_floats);
    }
    if (shape.journal_floats() > 0) {
      visit(store.journal(i, 0).k, shape.journal_floats());
    }
    visit(store.ring(i), shape.ring_rows() * shape.column_floats);
  }
  for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
    visit(sequence.kv.keys(i), sequence.kv.shape().key_floats);
    visit(sequence.kv.values(i), sequence.kv.shape().value_floats);
  }
}

std::vector<float> Memory(TargetSequence& sequence) {
  std::vector<float> all;
  ForEachArray(sequence, [&](const float* memory, int64_t floats) {
    Append(memory, floats, &all);
  });
  return all;
}

std::vector<int64_t> Cursors(const TargetSequence& sequence) {
  const SequenceState& cursor = sequence.cursor;
  std::vector<int64_t> all = {cursor.length(), cursor.published_rows(),
                              cursor.column(), cursor.journal()};
  for (int32_t i = 0; i < sequence.recurrent.shape().layers; ++i) {
    all.push_back(cursor.pending(i));
  }
  return all;
}

class CopySequenceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto file = ModelFile::Open(testing::Runfile(
        std::string("tests/testdata/models/") + GetParam() + ".gdn"));
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    for (size_t layers = 0; layers <= config().layers.size(); ++layers) {
      TargetConfig part = config();
      TargetWeights weights = file_->target_weights();
      part.layers.resize(layers);
      weights.layers.resize(layers);
      auto model = MakeTargetModel(part, weights, {}, kRows, {}, nullptr);
      ASSERT_TRUE(model.ok()) << model.status();
      first_layers_.push_back(*std::move(model));
    }
    Random random(5);
    for (int64_t i = 0; i < kTokens; ++i) {
      tokens_.push_back(random.Int(0, config().vocab_size - 1));
    }
    auto logits =
        AlignedArray<float>::Allocate({kRows, config().vocab_size}, "scores");
    ASSERT_TRUE(logits.ok());
    logits_ = *std::move(logits);
    TargetSequence one = New(1, Rollback::kJournal);
    for (int64_t i = 0; i < kTokens; ++i) {
      truth_.push_back(Remembered(one));
      Block(one, Tokens(i, 1));
      ASSERT_TRUE(one.cursor.Keep(1).ok());
      truth_logits_.emplace_back(logits_.begin(),
                                 logits_.begin() + config().vocab_size);
    }
  }

  const TargetConfig& config() const { return file_->target_config(); }
  absl::Span<const TokenId> Tokens(int64_t begin, int32_t count) const {
    return absl::MakeConstSpan(tokens_).subspan(begin, count);
  }

  // `dirty`: NaN in all of it but the state of an empty sequence.
  TargetSequence New(int32_t block_rows, Rollback rollback,
                     int64_t capacity = kTokens, bool dirty = false) {
    auto made = MakeTargetSequence(config(), capacity, block_rows, rollback);
    EXPECT_TRUE(made.ok());
    TargetSequence sequence = *std::move(made);
    if (dirty) {
      ForEachArray(sequence, [](float* memory, int64_t floats) {
        std::fill_n(memory, floats, std::numeric_limits<float>::quiet_NaN());
      });
    }
    return sequence;
  }

  // All that counts, in any mode: folded states with their padding, columns,
  // keys and values.
  std::vector<float> Remembered(TargetSequence& sequence) {
    std::vector<float> all, keys, values;
    int32_t gdn = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(config().layers.size()); ++i) {
      if (config().layers[i] == LayerKind::kFullAttention) {
        EXPECT_TRUE(ExportKv(config(), i, &sequence, &keys, &values).ok());
        Append(keys.data(), keys.size(), &all);
        Append(values.data(), values.size(), &all);
        continue;
      }
      auto state = AlignedArray<float>::Allocate(
          sequence.recurrent.shape().state_floats, "a state");
      EXPECT_TRUE(state.ok());
      CopyRecurrentState(config(), &sequence, sequence.cursor, gdn++,
                         state->data(), nullptr);
      Append(state->data(), state->size(), &all);
      EXPECT_TRUE(ExportConvColumns(config(), i, &sequence, &values).ok());
      Append(values.data(), values.size(), &all);
    }
    return all;
  }

  // Runs the first `layers` layers, all of them by default.
  TargetPass Run(TargetSequence& sequence, absl::Span<const TokenId> tokens,
                 int32_t layers = -1) {
    if (layers < 0) layers = static_cast<int32_t>(first_layers_.size()) - 1;
    TargetPass pass;
    pass.tokens = tokens;
    const auto plan = sequence.cursor.Plan(static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(plan.ok()) << plan.status();
    pass.plan = *plan;
    pass.sequence = &sequence;
    pass.logits = logits_.data();
    sequence.cursor.Begin(*plan);
    EXPECT_TRUE(first_layers_[layers]->Run(pass).ok());
    return pass;
  }

  void Block(TargetSequence& sequence, absl::Span<const TokenId> tokens) {
    sequence.cursor.PublishBlock(Run(sequence, tokens).plan);
  }

  // A block of `rows` rows, of which `right` at the front are the sequence's.
  void Guess(TargetSequence& sequence, int32_t rows, int32_t right) {
    const int64_t start = sequence.cursor.length();
    std::vector<TokenId> block(rows);
    for (int32_t t = 0; t < rows; ++t) {
      block[t] =
          (tokens_[start + t] + (t < right ? 0 : 1)) % config().vocab_size;
    }
    Block(sequence, block);
  }

  // Copies `from` as of `cursor` into dirty memory of every kind, and expects
  // what one token at a time leaves, there and after more blocks, and a source
  // without a trace.
  void ExpectCopies(TargetSequence& from, const SequenceState& cursor) {
    const std::vector<float> memory = Memory(from);
    const std::vector<int64_t> cursors = Cursors(from);
    const int64_t length = cursor.length();
    for (const Rollback rollback : kRollbacks) {
      for (const int32_t block_rows : {1, 5}) {
        const bool fits = block_rows == 1;
        TargetSequence to =
            New(block_rows, rollback, fits ? length + 3 : kTokens + 4,
                /*dirty=*/true);
        CopyTargetSequence(config(), &from, cursor, &to, nullptr);
        ASSERT_EQ(to.cursor.length(), length);
        EXPECT_FALSE(to.cursor.has_block());
        ASSERT_TRUE(SameBits(Remembered(to), truth_[length]))
            << "after " << length << " tokens";
        // A copy of it lacks nothing either.
        if (!fits) {
          TargetSequence again = New(3, Rollback::kJournal, kTokens, true);
          CopyTargetSequence(config(), &to, to.cursor, &again, nullptr);
          ASSERT_TRUE(SameBits(Remembered(again), truth_[length]));
        }
        for (const int32_t rows : {2, 5}) {
          const int32_t most = std::min(rows, block_rows);
          const int64_t start = to.cursor.length();
          Guess(to, most, most);
          ExpectLogits(start, most);
          ASSERT_TRUE(to.cursor.Keep(most - rows / 5).ok());
          ASSERT_TRUE(
              SameBits(Remembered(to), truth_[start + most - rows / 5]));
        }
      }
    }
    EXPECT_TRUE(SameBits(Memory(from), memory));
    EXPECT_EQ(Cursors(from), cursors);
  }

  void ExpectLogits(int64_t position, int32_t rows) {
    const int32_t vocab_size = config().vocab_size;
    for (int32_t t = 0; t < rows; ++t) {
      ASSERT_TRUE(SameBits(
          absl::MakeConstSpan(logits_.data() + t * vocab_size, vocab_size),
          truth_logits_[position + t]))
          << "row " << t << " at " << position;
    }
  }

  static constexpr int32_t kRows = 16;

  std::unique_ptr<ModelFile> file_;
  // [k]: the first k layers of the model.
  std::vector<std::unique_ptr<TargetModel>> first_layers_;
  AlignedArray<float> logits_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<float>> truth_;  // [i]: after i tokens.
  std::vector<std::vector<float>> truth_logits_;
};

TEST_P(CopySequenceTest, OfAnEmptySequence) {
  for (const Rollback rollback : kRollbacks) {
    TargetSequence sequence = New(4, rollback);
    ExpectCopies(sequence, sequence.cursor);
  }
}

// From the first block on, whose ring has nothing before position 0, to blocks
// whose ring has gone round.
TEST_P(CopySequenceTest, AfterEveryNumberOfKeptRows) {
  const int32_t step =
      3 / testing::FewerIfEmulated("of three numbers of kept rows", 3, 1);
  for (const Rollback rollback : kRollbacks) {
    for (const int32_t rows : {16, 3}) {
      TargetSequence sequence = New(rows, rollback);
      for (const int32_t block : {rows, (rows + 1) / 2, rows}) {
        Guess(sequence, block, block);
        for (int32_t kept = 0; kept <= block; kept += step) {
          // By a cursor of one's own, the sequence's being elsewhere.
          SequenceState cursor = sequence.cursor;
          ASSERT_TRUE(cursor.Keep(kept).ok());
          ASSERT_TRUE(sequence.cursor.Keep(block - kept).ok());
          ExpectCopies(sequence, cursor);
        }
        ASSERT_TRUE(sequence.cursor.Keep((block + 1) / 2).ok());
      }
      if (config().hidden_size > 1000) break;  // Slow.
    }
  }
}

// Rows of wrong guesses lie behind those that count.
TEST_P(CopySequenceTest, BehindWrongGuesses) {
  for (const Rollback rollback : kRollbacks) {
    TargetSequence sequence = New(6, rollback);
    for (int32_t right = 1; right <= 6; ++right) {
      Guess(sequence, 6, right);
      ASSERT_TRUE(sequence.cursor.Keep(right).ok());
      ExpectCopies(sequence, sequence.cursor);
    }
  }
}

// Some layers have folded, others still have rows to fold.
TEST_P(CopySequenceTest, AfterAPassAbandonedAtAnyLayer) {
  for (const Rollback rollback : kRollbacks) {
    for (int32_t layers = 0;
         layers < static_cast<int32_t>(first_layers_.size()); ++layers) {
      TargetSequence sequence = New(5, rollback);
      Guess(sequence, 5, 5);
      ASSERT_TRUE(sequence.cursor.Keep(4).ok());
      Run(sequence, std::vector<TokenId>(5, 1), layers);
      ExpectCopies(sequence, sequence.cursor);
      Guess(sequence, 5, 3);
      ASSERT_TRUE(sequence.cursor.Keep(3).ok());
      ExpectCopies(sequence, sequence.cursor);
    }
  }
}

// A used sequence takes another's place: nothing of it shines through.
TEST_P(CopySequenceTest, OverASequenceInUse) {
  for (const Rollback rollback : kRollbacks) {
    TargetSequence from = New(4, Rollback::kJournal);
    Guess(from, 4, 4);
    ASSERT_TRUE(from.cursor.Keep(2).ok());
    TargetSequence to = New(7, rollback);
    for (int i = 0; i < 3; ++i) {
      Guess(to, 7, 0);
      ASSERT_TRUE(to.cursor.Keep(5).ok());
    }
    CopyTargetSequence(config(), &from, from.cursor, &to, nullptr);
    EXPECT_FALSE(to.cursor.Keep(1).ok());
    EXPECT_TRUE(SameBits(Remembered(to), truth_[2]));
    Guess(to, 7, 7);
    ExpectLogits(2, 7);
    ASSERT_TRUE(to.cursor.Keep(6).ok());
    EXPECT_TRUE(SameBits(Remembered(to), truth_[8]));
  }
}

TEST_P(CopySequenceTest, OnThreads) {
  const testing::ThreadPool pool(2);
  TargetSequence from = New(4, Rollback::kJournal);
  Guess(from, 4, 4);
  ASSERT_TRUE(from.cursor.Keep(3).ok());
  TargetSequence to = New(1, Rollback::kJournal, 3, /*dirty=*/true);
  CopyTargetSequence(config(), &from, from.cursor, &to, pool.get());
  EXPECT_TRUE(SameBits(Remembered(to), truth_[3]));
}

INSTANTIATE_TEST_SUITE_P(Models, CopySequenceTest,
                         ::testing::Values("t", "odd", "wide", "broad"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace deltaedge
