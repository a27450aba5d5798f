// SPDX-License-Identifier: Apache-2.0

// Blocks, rollbacks, prompt chunks, abandoned passes, resets and copies in any
// order leave, to the bit, what one token at a time leaves: scores, recurrent
// states, convolution windows, keys and values. In both modes of rolling back,
// alone and in company, with rubbish in all memory that does not count.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
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
#include "engine/model/model_file.h"
#include "engine/state/recurrent_store.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "kernels/attn/attention.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;
using testing::SameBits;

constexpr Rollback kModes[] = {Rollback::kJournal, Rollback::kSlots};
constexpr int32_t kMaxBlock = 16;
constexpr int32_t kMaxChunk = 40;
// Of one run: blocks of three sequences in both modes, or a chunk among them.
constexpr int32_t kMaxRows = 2 * 3 * kMaxBlock;

const float kNaN = std::numeric_limits<float>::quiet_NaN();
// Rubbish that no maximum and no comparison with a NaN swallows.
constexpr float kMarker = -3e4f;

struct Subject {
  const char* model;
  int32_t capacity;
  int schedules;  // Of RandomSchedules, each of `steps` steps.
  int steps;
};

// Most schedules go to the models that cost least.
const Subject kSubjects[] = {
    {"t", 96, 2000, 8},
    {"odd", 160, 200, 8},
    {"wide", 160, 100, 8},
    {"broad", 64, 40, 6},
};

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

// All memory of a sequence, dead parts included.
std::vector<float> Memory(TargetSequence& sequence) {
  std::vector<float> all;
  const auto add = [&all](const float* data, int64_t size) {
    all.insert(all.end(), data, data + size);
  };
  RecurrentStore& store = sequence.recurrent;
  const RecurrentShape& shape = store.shape();
  for (int32_t i = 0; i < shape.layers; ++i) {
    for (int32_t c = 0; c < shape.state_columns(); ++c) {
      add(store.state(i, c), shape.state_floats);
    }
    add(store.journal(i, 0).k, shape.journal_floats());
    add(store.ring(i), shape.ring_rows() * shape.column_floats);
  }
  for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
    add(sequence.kv.keys(i), sequence.kv.shape().key_floats);
    add(sequence.kv.values(i), sequence.kv.shape().value_floats);
  }
  return all;
}

// Overwrites all memory that the sequence must not read in its next pass.
void Spoil(const TargetConfig& config, float rubbish,
           TargetSequence& sequence) {
  const SequenceState& cursor = sequence.cursor;
  RecurrentStore& store = sequence.recurrent;
  const RecurrentShape& shape = store.shape();
  const int64_t length = cursor.length();
  for (int32_t i = 0; i < shape.layers; ++i) {
    for (int32_t c = 0; c < shape.state_columns(); ++c) {
      if (c == cursor.column()) continue;
      std::fill_n(store.state(i, c), shape.state_floats, rubbish);
    }
    if (shape.rollback == Rollback::kJournal) {
      for (int32_t which : {0, 1}) {
        const int32_t first = which == cursor.journal() ? cursor.pending(i) : 0;
        const int32_t dead = shape.block_rows - first;
        const JournalRows rows = store.journal(i, which);
        std::fill_n(rows.k + first * shape.key_floats, dead * shape.key_floats,
                    rubbish);
        std::fill_n(rows.u + first * shape.update_floats,
                    dead * shape.update_floats, rubbish);
        std::fill_n(rows.gamma + first * shape.decay_floats,
                    dead * shape.decay_floats, rubbish);
      }
    }
    // All but the last 3 columns, those before the sequence's beginning
    // included.
    const int64_t live = std::min<int64_t>(3, length);
    for (int64_t p = length; p < length + shape.ring_rows() - live; ++p) {
      std::fill_n(store.ring(i) + p % shape.ring_rows() * shape.column_floats,
                  shape.column_floats, rubbish);
    }
  }
  const AttentionConfig& attention = config.attention;
  std::vector<float> keys(length * attention.keys()), values(keys.size());
  for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
    const KvView view = TargetKv(attention, &sequence, i);
    const int32_t rows = static_cast<int32_t>(length);
    KvRead(view, 0, rows, keys.data(), values.data());
    std::fill_n(view.k, sequence.kv.shape().key_floats, rubbish);
    std::fill_n(view.v, sequence.kv.shape().value_floats, rubbish);
    KvWrite(view, 0, rows, keys.data(), attention.keys(), values.data(),
            attention.keys());
  }
}

// Overwrites all memory of a sequence.
void SpoilAll(float rubbish, TargetSequence& sequence) {
  RecurrentStore& store = sequence.recurrent;
  const RecurrentShape& shape = store.shape();
  for (int32_t i = 0; i < shape.layers; ++i) {
    for (int32_t c = 0; c < shape.state_columns(); ++c) {
      std::fill_n(store.state(i, c), shape.state_floats, rubbish);
    }
    std::fill_n(store.journal(i, 0).k, shape.journal_floats(), rubbish);
    std::fill_n(store.ring(i), shape.ring_rows() * shape.column_floats,
                rubbish);
  }
  for (int32_t i = 0; i < sequence.kv.shape().layers; ++i) {
    std::fill_n(sequence.kv.keys(i), sequence.kv.shape().key_floats, rubbish);
    std::fill_n(sequence.kv.values(i), sequence.kv.shape().value_floats,
                rubbish);
  }
}

// A model, `capacity` tokens, and what one at a time, in blocks of one row,
// leaves of them.
struct Truth {
  std::unique_ptr<ModelFile> file;
  std::unique_ptr<TargetModel> model;
  // [k]: the first k layers of it. The last one is all of them, without scores.
  std::vector<std::unique_ptr<TargetModel>> first_layers;
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> states;  // [i]: after i tokens.
  std::vector<std::vector<float>> logits;
};

std::unique_ptr<Truth> MakeTruth(const Subject& subject) {
  auto truth = std::make_unique<Truth>();
  auto file = ModelFile::Open(testing::Runfile(
      std::string("tests/testdata/models/") + subject.model + ".gdn"));
  EXPECT_TRUE(file.ok()) << file.status();
  truth->file = *std::move(file);
  const TargetConfig& config = truth->file->target_config();
  for (size_t layers = 0; layers <= config.layers.size(); ++layers) {
    TargetConfig part = config;
    TargetWeights weights = truth->file->target_weights();
    part.layers.resize(layers);
    weights.layers.resize(layers);
    auto first = MakeTargetModel(part, weights, {}, kMaxRows, {}, nullptr);
    EXPECT_TRUE(first.ok()) << first.status();
    truth->first_layers.push_back(*std::move(first));
  }
  auto model = MakeTargetModel(config, truth->file->target_weights(), {},
                               kMaxRows, {}, nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  truth->model = *std::move(model);

  Random random(3);
  auto sequence = MakeTargetSequence(config, subject.capacity, 1);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  for (int32_t i = 0; i < subject.capacity; ++i) {
    truth->tokens.push_back(random.Int(0, config.vocab_size - 1));
    truth->states.push_back(Everything(config, *sequence));
    std::vector<float> logits(config.vocab_size);
    TargetPass pass;
    pass.tokens = absl::MakeConstSpan(&truth->tokens.back(), 1);
    pass.plan = *sequence->cursor.Plan(1);
    pass.sequence = &*sequence;
    pass.logits = logits.data();
    sequence->cursor.Begin(pass.plan);
    EXPECT_TRUE(truth->model->Run(pass).ok());
    sequence->cursor.PublishBlock(pass.plan);
    EXPECT_TRUE(sequence->cursor.Keep(1).ok());
    truth->logits.push_back(std::move(logits));
  }
  truth->states.push_back(Everything(config, *sequence));
  return truth;
}

class RollbackTest : public ::testing::TestWithParam<Subject> {
 protected:
  // One sequence, once in each mode.
  struct Twins {
    std::vector<TargetSequence> modes;  // In the order of kModes.
    int32_t right = 0;  // Rows of the last block that the truth has.

    const SequenceState& cursor() const { return modes[0].cursor; }
  };

  // What one sequence is to run: a chunk, or a block whose first `right` rows
  // are those of the truth.
  struct Item {
    Twins* twins = nullptr;
    bool chunk = false;
    std::vector<TokenId> tokens;
    int32_t right = 0;
    int64_t start = 0;

    int32_t rows() const { return static_cast<int32_t>(tokens.size()); }
  };

  void SetUp() override {
    static auto* const truths =
        new std::map<std::string, std::unique_ptr<Truth>>;
    std::unique_ptr<Truth>& truth = (*truths)[GetParam().model];
    if (truth == nullptr) truth = MakeTruth(GetParam());
    truth_ = truth.get();
    auto spare = SpareStates::Create(TargetRecurrentShape(config(), 1));
    ASSERT_TRUE(spare.ok());
    spare_ = std::make_unique<SpareStates>(*std::move(spare));
    auto logits = AlignedArray<float>::Allocate(
        {2, kMaxRows, config().vocab_size}, "scores");
    ASSERT_TRUE(logits.ok());
    logits_ = *std::move(logits);
  }

  const TargetConfig& config() const { return truth_->file->target_config(); }
  int64_t capacity() const { return GetParam().capacity; }
  int32_t layers() const {
    return static_cast<int32_t>(config().layers.size());
  }

  TargetSequence NewSequence(Rollback mode, int32_t block_rows) {
    auto sequence = MakeTargetSequence(config(), capacity(), block_rows, mode);
    EXPECT_TRUE(sequence.ok());
    return *std::move(sequence);
  }

  Twins NewTwins(int32_t block_rows) {
    Twins twins;
    for (const Rollback mode : kModes) {
      twins.modes.push_back(NewSequence(mode, block_rows));
    }
    return twins;
  }

  // `rows` tokens from `start` on, of which the first `right` are the truth's.
  // The next one is another, and so is every second after it.
  std::vector<TokenId> Tokens(int64_t start, int32_t rows,
                              int32_t right) const {
    const auto begin = truth_->tokens.begin() + start;
    std::vector<TokenId> tokens(begin, begin + rows);
    for (int32_t t = right; t < rows; t += 2) {
      tokens[t] = (tokens[t] + 1) % config().vocab_size;
    }
    return tokens;
  }

  TargetPass Begin(TargetSequence& sequence, absl::Span<const TokenId> tokens,
                   bool chunk) {
    TargetPass pass;
    pass.tokens = tokens;
    const auto plan = sequence.cursor.Plan(static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(plan.ok()) << plan.status();
    pass.plan = *plan;
    pass.sequence = &sequence;
    pass.spare = chunk ? spare_.get() : nullptr;
    sequence.cursor.Begin(*plan);
    return pass;
  }

  void Publish(const TargetPass& pass) {
    SequenceState& cursor = pass.sequence->cursor;
    if (pass.spare == nullptr) {
      cursor.PublishBlock(pass.plan);
      return;
    }
    pass.sequence->recurrent.Adopt(pass.plan, cursor.column(), spare_.get());
    cursor.PublishPrefill(pass.plan);
  }

  // One pass of one sequence, whose scores come to logits_.
  void RunPass(TargetSequence& sequence, absl::Span<const TokenId> tokens,
               bool chunk) {
    TargetPass pass = Begin(sequence, tokens, chunk);
    pass.logits = logits_.data();
    ASSERT_TRUE(truth_->model->Run(pass).ok());
    Publish(pass);
  }
  void Block(TargetSequence& sequence, absl::Span<const TokenId> tokens) {
    RunPass(sequence, tokens, /*chunk=*/false);
  }
  void Prefill(TargetSequence& sequence, int32_t rows) {
    RunPass(sequence, Tokens(sequence.cursor.length(), rows, rows),
            /*chunk=*/true);
    ExpectState(sequence);
  }
  // A block of 1 + drafts rows of which the first 1 + accepted stay.
  void Round(TargetSequence& sequence, int32_t drafts, int32_t accepted) {
    const int64_t start = sequence.cursor.length();
    Block(sequence, Tokens(start, 1 + drafts, 1 + accepted));
    ExpectLogits(start, 1 + accepted);
    ASSERT_TRUE(sequence.cursor.Keep(1 + accepted).ok());
    ExpectState(sequence);
  }

  // What a pass that is cancelled after `layers` layers does.
  void Abandon(TargetSequence& sequence, absl::Span<const TokenId> tokens,
               bool chunk, int32_t layers) {
    const TargetPass pass = Begin(sequence, tokens, chunk);
    ASSERT_TRUE(truth_->first_layers[layers]->Run(pass).ok());
  }

  // The first `rows` rows of the scores are those of tokens at `position`.
  void ExpectLogits(int64_t position, int32_t rows, int64_t first_row = 0) {
    const int64_t vocab_size = config().vocab_size;
    for (int32_t t = 0; t < rows; ++t) {
      ASSERT_TRUE(SameBits(
          absl::MakeConstSpan(logits_.data() + (first_row + t) * vocab_size,
                              vocab_size),
          truth_->logits[position + t]))
          << "row " << t << " at " << position;
    }
  }

  void ExpectState(TargetSequence& sequence) {
    const int64_t length = sequence.cursor.length();
    ASSERT_TRUE(
        SameBits(Everything(config(), sequence), truth_->states[length]))
        << "after " << length << " tokens";
  }
  void ExpectState(Twins& twins) {
    for (TargetSequence& sequence : twins.modes) ExpectState(sequence);
  }

  // Rubbish in all that no pass may read, the model's own buffers included.
  void SpoilAround(absl::Span<const Item> items, Random& random) {
    const float rubbish = random.OneIn(2) ? kNaN : kMarker;
    if (random.OneIn(2)) {
      for (const Item& item : items) {
        for (TargetSequence& sequence : item.twins->modes) {
          Spoil(config(), rubbish, sequence);
        }
      }
      const RecurrentShape shape = TargetRecurrentShape(config(), 1);
      for (int32_t i = 0; i < shape.layers; ++i) {
        std::fill_n(spare_->state(i), shape.state_floats, rubbish);
        std::fill_n(spare_->columns(i), 3 * shape.column_floats, rubbish);
      }
      std::fill(logits_.begin(), logits_.end(), rubbish);
    }
    if (random.OneIn(16)) {
      TargetSequence junk = NewSequence(Rollback::kJournal, kMaxBlock);
      SpoilAll(rubbish, junk);
      const std::vector<TokenId> tokens = Tokens(0, kMaxChunk, kMaxChunk);
      ASSERT_TRUE(truth_->model->Run(Begin(junk, tokens, true)).ok());
    }
  }

  // Runs `items` in both modes: in one run, or in one for each mode. Compares
  // all scores of the two, and the right ones with the truth.
  void RunItems(absl::Span<const Item> items, bool together) {
    const int64_t vocab_size = config().vocab_size;
    int64_t rows = 0;
    std::vector<TargetPass> passes;
    const auto run = [&] {
      ASSERT_TRUE(truth_->model->Run(passes).ok());
      for (const TargetPass& pass : passes) Publish(pass);
      passes.clear();
    };
    for (int mode : {0, 1}) {
      rows = 0;
      for (const Item& item : items) {
        passes.push_back(
            Begin(item.twins->modes[mode], item.tokens, item.chunk));
        passes.back().logits =
            logits_.data() + (mode * kMaxRows + rows) * vocab_size;
        rows += item.rows();
      }
      if (!together) run();
    }
    if (together) run();
    ASSERT_TRUE(SameBits(logits_.data(), logits_.data() + kMaxRows * vocab_size,
                         rows * vocab_size));
    rows = 0;
    for (const Item& item : items) {
      ExpectLogits(item.start, item.right, rows);
      rows += item.rows();
    }
  }

  // Some of `sequences`, each with a random pass.
  std::vector<Item> RandomItems(std::vector<Twins>& sequences, Random& random) {
    std::vector<Item> items;
    bool chunk = random.OneIn(3);
    for (Twins& twins : sequences) {
      if (random.OneIn(2) && sequences.size() > 1) continue;
      Item item;
      item.twins = &twins;
      item.start = twins.cursor().length();
      const int32_t room = static_cast<int32_t>(capacity() - item.start);
      if (room == 0) continue;
      item.chunk = chunk;
      chunk = false;
      const int32_t rows = std::min(
          room,
          random.Int(1, item.chunk ? kMaxChunk : twins.cursor().block_rows()));
      item.right = item.chunk || random.OneIn(2) ? rows : random.Int(0, rows);
      item.tokens = Tokens(item.start, rows, item.right);
      items.push_back(std::move(item));
    }
    return items;
  }

  // Changes its mind about the last block, and settles.
  void KeepSome(const Item& item, Random& random) {
    Twins& twins = *item.twins;
    twins.right = item.right;
    if (random.OneIn(8)) return;  // Never asked: nothing is kept.
    for (int i = random.Int(0, 2); i > 0; --i) {
      const int32_t other = random.OneIn(3)   ? 0
                            : random.OneIn(2) ? item.rows()
                                              : random.Int(0, item.rows());
      Keep(twins, other);
      if (other <= item.right) ExpectState(twins);
    }
    Keep(twins, random.OneIn(3) ? item.right : random.Int(0, item.right));
  }
  void Keep(Twins& twins, int32_t rows) {
    for (TargetSequence& sequence : twins.modes) {
      ASSERT_TRUE(sequence.cursor.Keep(rows).ok());
    }
  }

  // Copies of another block length, each mode from either, perhaps as of
  // another number of kept rows.
  Twins Copy(Twins& from, Random& random) {
    Twins to = NewTwins(random.Int(1, kMaxBlock));
    const int32_t kept = random.Int(0, from.right);
    for (TargetSequence& sequence : to.modes) {
      SpoilAll(kNaN, sequence);
      TargetSequence& source = from.modes[random.Int(0, 1)];
      SequenceState cursor = source.cursor;
      if (cursor.has_block()) {
        EXPECT_TRUE(cursor.Keep(kept).ok());
      }
      CopyTargetSequence(config(), &source, cursor, &sequence, nullptr);
    }
    return to;
  }

  Truth* truth_ = nullptr;
  std::unique_ptr<SpareStates> spare_;
  AlignedArray<float> logits_;  // [2 modes, kMaxRows, vocab_size]
};

// Cases C1 to C6 and their neighbours: blocks of any length, any part of them
// kept, with changes of mind, wrong tokens behind the kept ones, passes that
// are cancelled after any layer, chunks in between, resets and copies.
TEST_P(RollbackTest, RandomSchedules) {
  const int all = GetParam().schedules;
  const int schedules =
      testing::FewerIfEmulated(std::string("schedules of ") + GetParam().model,
                               all, std::max(1, all / 80));
  for (int seed = 0; seed < schedules; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<Twins> sequences;
    for (int i = random.Int(1, 3); i > 0; --i) {
      sequences.push_back(
          NewTwins(random.OneIn(4) ? kMaxBlock : random.Int(1, kMaxBlock)));
    }
    for (int step = 0; step < GetParam().steps; ++step) {
      Twins& one = sequences[random.Int(0, sequences.size() - 1)];
      if (random.OneIn(12)) one = Copy(one, random);
      if (random.OneIn(16)) {
        for (TargetSequence& sequence : one.modes) {
          sequence.cursor.Reset();
          sequence.recurrent.Reset();
        }
      }
      const std::vector<Item> items = RandomItems(sequences, random);
      if (items.empty()) continue;
      if (random.OneIn(4)) {
        SpoilAround(items, random);
        const int32_t layers = random.Int(0, this->layers());
        for (const Item& item : items) {
          const std::vector<TokenId> other =
              Tokens(item.start, item.rows(), random.Int(0, item.rows()));
          for (TargetSequence& sequence : item.twins->modes) {
            Abandon(sequence, other, item.chunk, layers);
            ASSERT_EQ(sequence.cursor.length(), item.start);
          }
          ExpectState(*item.twins);
        }
      }
      SpoilAround(items, random);
      const bool chunks = std::any_of(items.begin(), items.end(),
                                      [](const Item& i) { return i.chunk; });
      RunItems(items, /*together=*/!chunks && random.OneIn(2));
      for (const Item& item : items) {
        if (!item.chunk) KeepSome(item, random);
        ExpectState(*item.twins);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RollbackTest, AbandonedAfterAnyLayer) {
  for (const Rollback mode : kModes) {
    for (int32_t layers = 0; layers <= this->layers(); ++layers) {
      for (const bool chunk : {false, true}) {
        TargetSequence sequence = NewSequence(mode, 8);
        Prefill(sequence, 9);
        Round(sequence, 7, 4);
        Abandon(sequence, std::vector<TokenId>(8, 1), chunk, layers);
        ExpectState(sequence);
        EXPECT_EQ(sequence.cursor.Keep(3).code(),
                  absl::StatusCode::kFailedPrecondition);
        ExpectState(sequence);
        Spoil(config(), kNaN, sequence);
        Round(sequence, 7, 7);
      }
    }
  }
}

// Case C1. The state before the first row of a block was never a state after a
// row; with nothing kept, not even the anchor counts.
TEST_P(RollbackTest, C1WholeBlockRejected) {
  for (const Rollback mode : kModes) {
    for (const int32_t rows : {1, 2, 4, 15, 16}) {
      for (const int32_t kept : {0, 1}) {
        TargetSequence sequence = NewSequence(mode, rows);
        Prefill(sequence, 5);
        Block(sequence, Tokens(5, rows, kept));
        ASSERT_TRUE(sequence.cursor.Keep(kept).ok());
        ExpectState(sequence);
        Spoil(config(), kNaN, sequence);
        for (int i = 0; i < 8; ++i) Round(sequence, 0, 0);
        EXPECT_EQ(sequence.cursor.length(), 5 + kept + 8);
      }
    }
  }
}

// Case C2. Rows kept of none, one and three in one batch: each row of it starts
// from its own sequence's right state.
TEST_P(RollbackTest, C2NoneKeptInABatch) {
  std::vector<Twins> sequences;
  std::vector<Item> items;
  for (const int32_t kept : {0, 1, 3}) {
    Twins twins = NewTwins(4);
    for (TargetSequence& sequence : twins.modes) {
      Prefill(sequence, 7);
      Block(sequence, Tokens(7, 4, kept));
      ASSERT_TRUE(sequence.cursor.Keep(kept).ok());
      Spoil(config(), kNaN, sequence);
    }
    sequences.push_back(std::move(twins));
  }
  for (Twins& twins : sequences) {
    const int64_t start = twins.cursor().length();
    items.push_back({&twins, /*chunk=*/false, Tokens(start, 3, 3), 3, start});
  }
  RunItems(items, /*together=*/true);
  for (Twins& twins : sequences) {
    Keep(twins, 2);
    ExpectState(twins);
  }
}

// Case C3. Rounds without drafts find the state where several accepted drafts
// have left it.
TEST_P(RollbackTest, C3RoundsWithoutDrafts) {
  for (const Rollback mode : kModes) {
    TargetSequence sequence = NewSequence(mode, 5);
    Prefill(sequence, 6);
    Round(sequence, 4, 3);
    Round(sequence, 0, 0);
    Round(sequence, 4, 0);
    Round(sequence, 0, 0);
    Round(sequence, 0, 0);
    Round(sequence, 4, 4);
    Round(sequence, 0, 0);
  }
}

// Case C4. Fewer accepted drafts than the convolution is wide, back to back.
TEST_P(RollbackTest, C4WindowAfterFewAccepted) {
  for (const Rollback mode : kModes) {
    for (const int32_t drafts : {2, 3, 7}) {
      TargetSequence sequence = NewSequence(mode, 1 + drafts);
      Prefill(sequence, 2);
      for (int i = 0; i < 3; ++i) {
        for (const int32_t accepted : {0, 1, 2, 2, 0, 1}) {
          Spoil(config(), kMarker, sequence);
          Round(sequence, drafts, accepted);
        }
      }
    }
  }
}

// Case C6. What is refused says why and changes no bit; another number for the
// same block is absolute.
TEST_P(RollbackTest, C6RefusedOrDoubleRollback) {
  for (const Rollback mode : kModes) {
    TargetSequence sequence = NewSequence(mode, 6);
    const auto expect_refused = [&](int32_t rows, absl::StatusCode code,
                                    const char* named) {
      const std::vector<float> before = Memory(sequence);
      const int64_t length = sequence.cursor.length();
      const absl::Status status = sequence.cursor.Keep(rows);
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_NE(status.message().find(named), std::string::npos) << status;
      EXPECT_EQ(sequence.cursor.length(), length);
      EXPECT_TRUE(SameBits(Memory(sequence), before));
      ExpectState(sequence);
    };
    const auto no_block = absl::StatusCode::kFailedPrecondition;
    const auto wrong_rows = absl::StatusCode::kInvalidArgument;

    for (const int32_t rows : {-1, 0, 1}) {
      expect_refused(rows, no_block, "no block");
    }
    Prefill(sequence, 4);
    expect_refused(1, no_block, "no block");
    Block(sequence, Tokens(4, 5, 5));
    expect_refused(6, wrong_rows, "rows to keep: 6; the block has 5");
    for (const int32_t rows : {3, 0, 5, 5, 1, 4}) {
      ASSERT_TRUE(sequence.cursor.Keep(rows).ok());
      EXPECT_EQ(sequence.cursor.length(), 4 + rows);
      ExpectState(sequence);
      expect_refused(-1, wrong_rows, "-1");
      expect_refused(std::numeric_limits<int32_t>::min(), wrong_rows, "5");
      expect_refused(std::numeric_limits<int32_t>::max(), wrong_rows, "5");
    }
    // The later block was begun and given up; then it was run.
    Abandon(sequence, Tokens(8, 6, 0), /*chunk=*/false, 1);
    expect_refused(5, no_block, "later pass");
    Round(sequence, 5, 2);
    ASSERT_TRUE(sequence.cursor.Keep(6).ok());
    ASSERT_TRUE(sequence.cursor.Keep(3).ok());
    ExpectState(sequence);
    Prefill(sequence, 3);
    expect_refused(3, no_block, "no block");
    Round(sequence, 5, 5);
  }
}

// New memory is zero, but only the states of column 0 have to be: an empty
// sequence with rubbish everywhere else is as good.
TEST_P(RollbackTest, EmptySequenceReadsNothingButItsFirstStates) {
  for (const Rollback mode : kModes) {
    for (const float rubbish : {kNaN, kMarker}) {
      for (const int32_t rows : {1, 2, 7}) {
        for (const bool chunk : {false, true}) {
          TargetSequence sequence = NewSequence(mode, 7);
          SpoilAll(rubbish, sequence);
          sequence.recurrent.Reset();
          const std::vector<TokenId> tokens = Tokens(0, rows, rows);
          RunPass(sequence, tokens, chunk);
          ExpectLogits(0, rows);
          if (!chunk) {
            ASSERT_TRUE(sequence.cursor.Keep(rows).ok());
          }
          ExpectState(sequence);
          Round(sequence, 6, 3);
          Round(sequence, 6, 6);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RollbackTest, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) {
                           return std::string(info.param.model);
                         });

}  // namespace
}  // namespace deltaedge
