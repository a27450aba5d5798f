// SPDX-License-Identifier: Apache-2.0

#include "kernels/gdn/gdn_spec_update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/base/argument_error.h"
#include "kernels/gates/gates.h"
#include "kernels/gdn/gdn_block.h"
#include "kernels/gdn/gdn_reference.h"
#include "kernels/norm/norm.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Random;
using testing::SameBits;
using testing::ThreadPool;

using Floats = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// No multiples of a vector; Hv / Hk is 1, 2, 3; one and two tiles.
const GdnShape kShapes[] = {{2, 4, 5, 3}, {1, 1, 9, 33}, {1, 3, 12, 40}};

bool SameRows(const std::vector<Floats>& a, const std::vector<Floats>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const Floats& x, const Floats& y) { return SameBits(x, y); });
}

size_t KeyFloats(const GdnShape& shape) {
  return static_cast<size_t>(shape.k_heads) * shape.k_dim;
}

size_t ValueFloats(const GdnShape& shape) {
  return static_cast<size_t>(shape.v_heads) * shape.v_dim;
}

size_t DenseFloats(const GdnShape& shape) {
  return ValueFloats(shape) * shape.k_dim;
}

size_t StateFloats(const GdnShape& shape) {
  return static_cast<size_t>(GdnStateFloats(shape));
}

// What the operator takes of one token.
struct Token {
  Floats q, k;  // [Hk, Dk]
  Floats v;     // [Hv, Dv]
  Floats a, b;  // [Hv]
};

using Tokens = std::vector<Token>;

Tokens RandomTokens(Random& random, const GdnShape& shape, int count) {
  const size_t heads = static_cast<size_t>(shape.v_heads);
  Tokens tokens(static_cast<size_t>(count));
  for (Token& token : tokens) {
    token.q = random.Gaussians(KeyFloats(shape));
    token.k = random.Gaussians(KeyFloats(shape));
    token.v = random.Gaussians(ValueFloats(shape));
    token.a = random.Gaussians(heads, 2.0f);
    token.b = random.Gaussians(heads, 2.0f);
  }
  return tokens;
}

struct Weights {
  Floats a_log, dt_bias;  // [Hv]

  Weights(Random& random, const GdnShape& shape)
      : a_log(random.Uniforms(shape.v_heads, -3.0f, 1.0f)),
        dt_bias(random.Uniforms(shape.v_heads, -2.0f, 2.0f)) {}
};

// The slots of some sequences, in random order, a few of them nobody's and
// gaps between; and what the caller of the operator knows about them.
struct Table {
  GdnShape shape;
  int32_t sequences, columns, slots;
  int64_t state_stride, index_stride;
  CanaryBuffer<float> states;
  std::vector<int32_t> indices, accepted, block_columns;

  Table(Random& random, const GdnShape& shape, int sequences, int columns)
      : shape(shape),
        sequences(sequences),
        columns(columns),
        slots(sequences * columns + 2),
        state_stride(GdnStateFloats(shape) + 16),
        index_stride(columns + 3),
        states(static_cast<size_t>(slots * state_stride)),
        indices(static_cast<size_t>(sequences * index_stride), -7),
        accepted(static_cast<size_t>(sequences)),
        block_columns(static_cast<size_t>(sequences)) {
    std::vector<int32_t> order(static_cast<size_t>(slots));
    for (int32_t s = 0; s < slots; ++s) {
      const int other = random.Int(0, s);
      order[s] = order[other];
      order[other] = s;
    }
    for (int i = 0; i < sequences; ++i) {
      for (int c = 0; c < columns; ++c) {
        indices[i * index_stride + c] = order[i * columns + c];
      }
    }
  }

  int64_t Offset(int i, int column) const {
    return indices[i * index_stride + column] * state_stride;
  }

  int Source(int i) const {
    return GdnSpecColumn(block_columns[i], accepted[i], columns);
  }

  void Start(int i, int column, const float* state) {
    std::copy(state, state + GdnStateFloats(shape), &states[Offset(i, column)]);
    block_columns[i] = column;
    accepted[i] = 0;
  }

  void Keep(int i, int tokens) {
    block_columns[i] = Source(i);
    accepted[i] = tokens;
  }
};

struct Options {
  bool use_qk_l2norm = true;
  double scale = 0.0;
  pthreadpool_t pool = nullptr;
};

// Runs a block of each sequence, with odd strides, NaN between rows, nonsense
// wherever a sequence has no tokens, and as little workspace as is allowed.
// Returns out [sequence][token].
std::vector<std::vector<Floats>> RunBlocks(Table& table, const Weights& weights,
                                           const std::vector<Tokens>& blocks,
                                           const Options& options) {
  const GdnShape& shape = table.shape;
  const size_t keys = KeyFloats(shape);
  const size_t values = ValueFloats(shape);
  const size_t heads = static_cast<size_t>(shape.v_heads);
  Tokens tokens;
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int32_t> indices = table.indices;
  std::vector<int32_t> accepted = table.accepted;
  std::vector<int32_t> block_columns = table.block_columns;
  for (size_t i = 0; i < blocks.size(); ++i) {
    tokens.insert(tokens.end(), blocks[i].begin(), blocks[i].end());
    cu_seqlens.push_back(static_cast<int32_t>(tokens.size()));
    if (!blocks[i].empty()) continue;
    accepted[i] = block_columns[i] = -1;
    std::fill_n(&indices[i * table.index_stride], table.columns, -1);
  }
  const size_t rows = tokens.size();
  CanaryBuffer<float> q(rows * (keys + 1), 1);
  CanaryBuffer<float> k(rows * (keys + 2), 2);
  CanaryBuffer<float> v(rows * (values + 3), 3);
  CanaryBuffer<float> a(rows * (heads + 4), 4);
  CanaryBuffer<float> b(rows * (heads + 5), 5);
  CanaryBuffer<float> out(rows * (values + 6), 6);
  for (size_t t = 0; t < rows; ++t) {
    const Token& token = tokens[t];
    std::copy(token.q.begin(), token.q.end(), &q[t * (keys + 1)]);
    std::copy(token.k.begin(), token.k.end(), &k[t * (keys + 2)]);
    std::copy(token.v.begin(), token.v.end(), &v[t * (values + 3)]);
    std::copy(token.a.begin(), token.a.end(), &a[t * (heads + 4)]);
    std::copy(token.b.begin(), token.b.end(), &b[t * (heads + 5)]);
  }
  GdnSpecUpdateArgs args = {};
  args.shape = shape;
  args.tokens = static_cast<int32_t>(rows);
  args.sequences = table.sequences;
  args.slots = table.slots;
  args.columns = table.columns;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.a = a.data();
  args.b = b.data();
  args.q_stride = static_cast<int64_t>(keys) + 1;
  args.k_stride = static_cast<int64_t>(keys) + 2;
  args.v_stride = static_cast<int64_t>(values) + 3;
  args.a_stride = static_cast<int64_t>(heads) + 4;
  args.b_stride = static_cast<int64_t>(heads) + 5;
  args.a_log = weights.a_log.data();
  args.dt_bias = weights.dt_bias.data();
  args.initial_state_source = table.states.data();
  args.state_stride = table.state_stride;
  args.spec_state_indices = indices.data();
  args.index_stride = table.index_stride;
  args.num_accepted_tokens = accepted.data();
  args.block_columns = block_columns.data();
  args.cu_seqlens = cu_seqlens.data();
  args.out = out.data();
  args.out_stride = static_cast<int64_t>(values) + 6;
  args.workspace_bytes = GdnSpecUpdateWorkspace(args);
  CanaryBuffer<unsigned char> workspace(
      static_cast<size_t>(args.workspace_bytes));
  args.workspace = workspace.data();
  args.use_qk_l2norm = options.use_qk_l2norm;
  args.scale = options.scale;
  ArgumentError error = {"", 0, 0, ""};
  EXPECT_TRUE(GdnSpecUpdate(args, options.pool, &error)) << ToString(error);
  EXPECT_TRUE(workspace.Intact() && out.Intact() && table.states.Intact());
  std::vector<std::vector<Floats>> result(blocks.size());
  size_t t = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t end = t + blocks[i].size(); t < end; ++t) {
      const float* row = &out[t * (values + 6)];
      result[i].emplace_back(row, row + values);
      EXPECT_TRUE(std::all_of(row + values, row + values + 6, [](float x) {
        return std::isnan(x);
      })) << "wrote between rows";
    }
  }
  return result;
}

// Some tokens of one sequence as GdnForward takes them.
struct Prepared {
  int32_t rows;
  Floats q, k, v, log_decay, beta;

  Prepared(const GdnShape& shape, const Weights& weights, const Token* tokens,
           int count)
      : rows(count) {
    Floats neg_exp_a;
    for (const float a_log : weights.a_log) {
      neg_exp_a.push_back(static_cast<float>(-std::exp(double{a_log})));
    }
    const float scale =
        static_cast<float>(1.0 / std::sqrt(double{1} * shape.k_dim));
    const int64_t keys = static_cast<int64_t>(KeyFloats(shape));
    for (int t = 0; t < count; ++t) {
      const Token& token = tokens[t];
      Floats query = token.q;
      Floats key = token.k;
      Floats decay(weights.a_log.size()), rate(weights.a_log.size());
      L2NormHeads(1, shape.k_heads, shape.k_dim, query.data(), keys,
                  shape.k_dim, 1e-6f, scale, query.data(), keys, shape.k_dim,
                  nullptr);
      L2NormHeads(1, shape.k_heads, shape.k_dim, key.data(), keys, shape.k_dim,
                  1e-6f, 1.0f, key.data(), keys, shape.k_dim, nullptr);
      GdnGatesForward(1, shape.v_heads, token.a.data(), shape.v_heads,
                      token.b.data(), shape.v_heads, neg_exp_a.data(),
                      weights.dt_bias.data(), decay.data(), rate.data());
      q.insert(q.end(), query.begin(), query.end());
      k.insert(k.end(), key.begin(), key.end());
      v.insert(v.end(), token.v.begin(), token.v.end());
      log_decay.insert(log_decay.end(), decay.begin(), decay.end());
      beta.insert(beta.end(), rate.begin(), rate.end());
    }
  }

  // Returns out [rows][Hv * Dv].
  std::vector<Floats> Forward(const GdnShape& shape,
                              const GdnSequence& sequence) const {
    const size_t values = ValueFloats(shape);
    const int32_t row_begin[] = {0, rows};
    Floats out(static_cast<size_t>(rows) * values);
    GdnBlock block;
    block.shape = shape;
    block.sequences = 1;
    block.row_begin = row_begin;
    block.q = q.data();
    block.k = k.data();
    block.v = v.data();
    block.log_decay = log_decay.data();
    block.beta = beta.data();
    block.q_stride = block.k_stride = static_cast<int64_t>(KeyFloats(shape));
    block.v_stride = block.out_stride = static_cast<int64_t>(values);
    block.sequence = &sequence;
    block.out = out.data();
    GdnForward(block, nullptr);
    std::vector<Floats> result;
    for (auto row = out.begin(); row != out.end(); row += values) {
      result.emplace_back(row, row + values);
    }
    return result;
  }
};

struct Journal {
  Floats k, u, gamma;

  void Resize(const GdnShape& shape, int rows) {
    const size_t count = static_cast<size_t>(rows);
    k.assign(count * KeyFloats(shape), kNaN);
    u.assign(count * ValueFloats(shape), kNaN);
    gamma.assign(count * shape.v_heads, kNaN);
  }

  GdnJournal View() { return {k.data(), u.data(), gamma.data()}; }
};

// Sequences that run the operator beside two other ways: one token at a time,
// which is the truth, and blocks with a journal.
class Side {
 public:
  Side(uint64_t seed, const GdnShape& shape, int sequences, int columns)
      : shape_(shape),
        random_(seed),
        weights_(random_, shape),
        table_(random_, shape, sequences, columns) {
    for (int i = 0; i < sequences; ++i) {
      sequences_.emplace_back(StateFloats(shape));
      Reset(i);
    }
  }

  // Sequence `i` becomes a new one, somewhere in its row of the table.
  void Reset(int i) {
    Sequence& sequence = sequences_[i];
    GdnImportState(shape_, random_.Gaussians(DenseFloats(shape_)).data(),
                   sequence.state.data());
    std::copy(sequence.state.begin(), sequence.state.end(),
              sequence.folded.begin());
    sequence.kept = 0;
    table_.Start(i, random_.Int(0, table_.columns - 1), sequence.state.data());
  }

  // A block of lengths[i] random tokens of each sequence i, kept[i] of which
  // then belong to it. Whatever is not alive before it is full of NaN, or of
  // numbers like any other; all of the table is compared after it.
  void Round(const std::vector<int>& lengths, const std::vector<int>& kept,
             pthreadpool_t pool = nullptr) {
    SCOPED_TRACE("round " + std::to_string(round_));
    DirtyWhatIsDead(round_++ % 2 == 0 ? kNaN : 12345.0f);
    std::vector<Tokens> blocks;
    for (const int length : lengths) {
      blocks.push_back(RandomTokens(random_, shape_, length));
    }
    std::vector<float> memory = table_.states.ToVector();
    std::vector<std::vector<Floats>> expected(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (lengths[i] == 0) continue;
      expected[i] = OneByOne(static_cast<int>(i), blocks[i], kept[i], &memory);
      EXPECT_TRUE(SameRows(WithJournal(static_cast<int>(i), blocks[i], kept[i]),
                           expected[i]))
          << "journal of sequence " << i;
    }
    Options options;
    options.pool = pool;
    const std::vector<std::vector<Floats>> out =
        RunBlocks(table_, weights_, blocks, options);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_TRUE(SameRows(out[i], expected[i])) << "sequence " << i;
      if (lengths[i] > 0) table_.Keep(static_cast<int>(i), kept[i]);
    }
    EXPECT_TRUE(SameBits(table_.states, memory));
  }

  Random& random() { return random_; }
  const Table& table() const { return table_; }

 private:
  struct Sequence {
    explicit Sequence(size_t floats) : state(floats), folded(floats) {}

    CanaryBuffer<float> state;   // of the tokens kept so far
    CanaryBuffer<float> folded;  // the journal's: of all but the last block
    Journal journal;             // of the last block
    int kept = 0;                // of the last block
  };

  void DirtyWhatIsDead(float value) {
    CanaryBuffer<float>& states = table_.states;
    std::fill(states.begin(), states.end(), value);
    for (int i = 0; i < table_.sequences; ++i) {
      std::copy(sequences_[i].state.begin(), sequences_[i].state.end(),
                &states[table_.Offset(i, table_.Source(i))]);
    }
  }

  // Puts the state after each token where it belongs in `memory`.
  std::vector<Floats> OneByOne(int i, const Tokens& tokens, int kept,
                               std::vector<float>* memory) {
    CanaryBuffer<float>& state = sequences_[i].state;
    CanaryBuffer<float> before(state.ToVector());
    CanaryBuffer<float> after(state.size());
    std::vector<Floats> out;
    for (int t = 0; t < static_cast<int>(tokens.size()); ++t) {
      GdnSequence sequence;
      sequence.state = before.data();
      sequence.last = after.data();
      out.push_back(Prepared(shape_, weights_, &tokens[t], 1)
                        .Forward(shape_, sequence)[0]);
      const int column =
          (table_.block_columns[i] + table_.accepted[i] + 1 + t) %
          table_.columns;
      std::copy(after.begin(), after.end(),
                memory->begin() + table_.Offset(i, column));
      std::swap(before, after);
      if (t + 1 == kept) std::copy(before.begin(), before.end(), state.begin());
    }
    return out;
  }

  std::vector<Floats> WithJournal(int i, const Tokens& tokens, int kept) {
    Sequence& sequence = sequences_[i];
    Journal record;
    record.Resize(shape_, static_cast<int>(tokens.size()));
    GdnSequence one;
    one.state = one.folded = sequence.folded.data();
    one.fold = sequence.journal.View();
    one.fold_rows = sequence.kept;
    one.record = record.View();
    const std::vector<Floats> out = Prepared(shape_, weights_, tokens.data(),
                                             static_cast<int>(tokens.size()))
                                        .Forward(shape_, one);
    sequence.journal = std::move(record);
    sequence.kept = kept;
    return out;
  }

  GdnShape shape_;
  Random random_;
  Weights weights_;
  Table table_;
  std::vector<Sequence> sequences_;
  int round_ = 0;
};

// max |a - b| / max |b|, infinite when an `a` is not a number.
template <class A>
double RelativeError(const A& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0;
  double largest = std::numeric_limits<double>::min();
  for (size_t i = 0; i < b.size(); ++i) {
    if (std::isnan(a[i])) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::fabs(double{a[i]} - b[i]));
    largest = std::max(largest, std::fabs(b[i]));
  }
  return difference / largest;
}

// The whole operator in double, from raw inputs to the states of every token.
void ExpectReference(const Table& table, int i, const Weights& weights,
                     const Tokens& tokens, const Options& options,
                     const Floats& first, const std::vector<Floats>& out) {
  const GdnShape& shape = table.shape;
  std::vector<double> state(first.begin(), first.end());
  for (size_t t = 0; t < tokens.size(); ++t) {
    Floats q = tokens[t].q;
    Floats k = tokens[t].k;
    const double scale = options.scale != 0.0
                             ? options.scale
                             : 1.0 / std::sqrt(double{1} * shape.k_dim);
    for (int h = 0; h < shape.k_heads; ++h) {
      double q_sum = 1e-6;
      double k_sum = 1e-6;
      for (int d = h * shape.k_dim; d < (h + 1) * shape.k_dim; ++d) {
        q_sum += double{q[d]} * q[d];
        k_sum += double{k[d]} * k[d];
      }
      if (!options.use_qk_l2norm) q_sum = k_sum = 1.0;
      for (int d = h * shape.k_dim; d < (h + 1) * shape.k_dim; ++d) {
        q[d] = static_cast<float>(q[d] / std::sqrt(q_sum) * scale);
        k[d] = static_cast<float>(k[d] / std::sqrt(k_sum));
      }
    }
    Floats log_decay, beta;
    for (int h = 0; h < shape.v_heads; ++h) {
      const double x = double{tokens[t].a[h]} + weights.dt_bias[h];
      const double softplus = x > 20.0 ? x : std::log1p(std::exp(x));
      log_decay.push_back(
          static_cast<float>(-std::exp(double{weights.a_log[h]}) * softplus));
      beta.push_back(
          static_cast<float>(1.0 / (1.0 + std::exp(-double{tokens[t].b[h]}))));
    }
    std::vector<double> expected(ValueFloats(shape));
    GdnReference(shape, 1, q.data(), k.data(), tokens[t].v.data(),
                 log_decay.data(), beta.data(), state.data(), expected.data());
    Floats dense(DenseFloats(shape));
    const int column =
        GdnSpecColumn(table.Source(i), static_cast<int>(t) + 1, table.columns);
    GdnExportState(shape, table.states.data() + table.Offset(i, column),
                   dense.data());
    // Errors of up to 1e-6 were seen, the limit leaves a factor of three.
    EXPECT_LE(RelativeError(out[t], expected), 3e-6);
    EXPECT_LE(RelativeError(dense, state), 3e-6);
  }
}

TEST(GdnSpecUpdateTest, AgreesWithTheReference) {
  constexpr int kColumns = 6;
  ForEachHwyTarget([&] {
    for (const GdnShape& shape :
         {kShapes[0], kShapes[1], kShapes[2], GdnShape{1, 2, 128, 128}}) {
      for (const bool use_qk_l2norm : {true, false}) {
        for (const double scale : {0.0, -0.3}) {
          SCOPED_TRACE("Dk " + std::to_string(shape.k_dim));
          Random random(static_cast<uint64_t>(shape.v_dim));
          const Weights weights(random, shape);
          Options options;
          options.use_qk_l2norm = use_qk_l2norm;
          options.scale = scale;
          Table table(random, shape, 3, kColumns);
          std::vector<Tokens> blocks;
          std::vector<Floats> first;
          for (const int length : {5, 0, 1}) {
            const int i = static_cast<int>(blocks.size());
            blocks.push_back(RandomTokens(random, shape, length));
            for (Token& token : blocks.back()) {
              token.a[0] = 25.0f;  // beyond softplus_threshold
              // Longer keys make the recurrence itself unstable.
              for (float& x : token.k) {
                if (!use_qk_l2norm) x /= std::sqrt(1.0f * shape.k_dim);
              }
            }
            first.push_back(random.Gaussians(DenseFloats(shape)));
            CanaryBuffer<float> state(StateFloats(shape));
            GdnImportState(shape, first.back().data(), state.data());
            table.Start(i, 4 - i, state.data());
          }
          const auto out = RunBlocks(table, weights, blocks, options);
          for (int i = 0; i < 3; ++i) {
            ExpectReference(table, i, weights, blocks[i], options, first[i],
                            out[i]);
          }
        }
      }
    }
  });
}

// Blocks of 1 to K + 1 tokens that change in every round, any number kept,
// several sequences, some sitting a round out, some starting anew.
TEST(GdnSpecUpdateTest, AnyScheduleGivesTheBitsOfOneTokenAtATimeAndOfAJournal) {
  // In all, shared among the CPU targets.
  constexpr size_t kSchedules = 1050;
  const size_t targets = hwy::SupportedAndGeneratedTargets().size();
  constexpr int kRounds = 6;
  std::set<std::pair<int, int>> lengths_and_kept;
  uint64_t seed = 0;
  ForEachHwyTarget([&] {
    for (size_t i = 0; i <= kSchedules / targets; ++i, ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random choice(seed);
      const int sequences = choice.Int(1, 3);
      const int columns = choice.OneIn(10) ? 17 : choice.Int(2, 6);
      Side side(seed, kShapes[seed % 3], sequences, columns);
      for (int round = 0; round < kRounds; ++round) {
        std::vector<int> lengths, kept;
        for (int i = 0; i < sequences; ++i) {
          if (choice.OneIn(8)) side.Reset(i);
          lengths.push_back(choice.OneIn(4)   ? 0
                            : choice.OneIn(4) ? 1
                                              : choice.Int(1, columns - 1));
          kept.push_back(choice.Int(0, lengths.back()));
          lengths_and_kept.emplace(lengths.back(), kept.back());
        }
        side.Round(lengths, kept);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
  for (int length = 1; length <= 5; ++length) {
    for (int kept = 0; kept <= length; ++kept) {
      EXPECT_EQ(lengths_and_kept.count({length, kept}), 1u)
          << length << " " << kept;
    }
  }
}

TEST(GdnSpecUpdateTest, ZeroRowsKeptStartsFromTheStateBeforeTheBlock) {
  ForEachHwyTarget([] {
    for (const int block : {1, 2, 4, 15, 16}) {
      SCOPED_TRACE("block " + std::to_string(block));
      Side side(1, kShapes[0], 1, 17);
      side.Round({5}, {5});
      side.Round({block}, {0});
      side.Round({block}, {0});
      for (int t = 0; t < 8; ++t) side.Round({1}, {1});
    }
    Side batch(2, kShapes[1], 3, 4);
    batch.Round({3, 3, 3}, {0, 1, 3});
    batch.Round({1, 2, 3}, {0, 0, 0});
    batch.Round({3, 1, 2}, {3, 1, 2});
    // A new sequence whose first block is refused.
    batch.Reset(1);
    batch.Round({0, 3, 1}, {0, 0, 1});
    batch.Round({1, 1, 1}, {1, 1, 1});
  });
}

TEST(GdnSpecUpdateTest, APlainRoundAfterSeveralKeptRows) {
  ForEachHwyTarget([] {
    Side side(3, kShapes[2], 1, 6);
    const int lengths_and_kept[][2] = {{5, 4}, {1, 1}, {5, 1},
                                       {1, 1}, {1, 1}, {5, 5}};
    for (const auto& round : lengths_and_kept) {
      side.Round({round[0]}, {round[1]});
    }
    side.Round({1}, {1});
  });
}

TEST(GdnSpecUpdateTest, RaggedAndMixedBatches) {
  ForEachHwyTarget([] {
    Side four(4, kShapes[0], 4, 5);
    four.Round({1, 4, 2, 1}, {1, 3, 2, 0});
    four.Round({1, 4, 2, 1}, {0, 4, 1, 1});
    four.Round({0, 1, 0, 4}, {0, 1, 0, 2});
    four.Round({2, 1, 1, 1}, {2, 1, 1, 1});
    Side three(5, kShapes[2], 3, 5);
    three.Round({2, 3, 4}, {1, 3, 0});
    three.Round({4, 2, 3}, {4, 0, 2});
    three.Round({1, 1, 1}, {1, 1, 1});
  });
}

// As when a step was cancelled: the caller goes on from what it knew before.
TEST(GdnSpecUpdateTest, ABlockMayRunAgainUntilTheCallerMovesOn) {
  const GdnShape& shape = kShapes[0];
  Random random(6);
  const Weights weights(random, shape);
  Table table(random, shape, 1, 5);
  CanaryBuffer<float> state(StateFloats(shape));
  std::fill(state.begin(), state.end(), 0.0f);
  table.Start(0, 3, state.data());
  const Tokens tokens = RandomTokens(random, shape, 4);
  const auto first = RunBlocks(table, weights, {tokens}, {})[0];
  RunBlocks(table, weights, {RandomTokens(random, shape, 2)}, {});
  EXPECT_TRUE(SameRows(RunBlocks(table, weights, {tokens}, {})[0], first));
}

TEST(GdnSpecUpdateTest, AnyNumberOfThreadsGivesTheSameBits) {
  const GdnShape shape = {2, 4, 20, 100};
  for (const size_t threads : {2, 3}) {
    SCOPED_TRACE(threads);
    const ThreadPool pool(threads);
    Side side(7, shape, 3, 5);
    side.Round({4, 1, 2}, {2, 1, 0}, pool.get());
    side.Round({1, 0, 4}, {1, 0, 4}, pool.get());
    side.Round({2, 3, 1}, {0, 2, 1}, pool.get());
  }
}

TEST(GdnSpecUpdateTest, ColumnsGoRoundTheRing) {
  EXPECT_EQ(GdnSpecColumn(0, 0, 2), 0);
  EXPECT_EQ(GdnSpecColumn(3, 4, 17), 7);
  EXPECT_EQ(GdnSpecColumn(16, 1, 17), 0);
  EXPECT_EQ(GdnSpecColumn(16, 16, 17), 15);
  EXPECT_EQ(GdnSpecColumn(INT32_MAX - 1, INT32_MAX - 1, INT32_MAX),
            INT32_MAX - 2);
}

// ------------------------------------------------------------------ check

// Two tokens of sequence 0, none of sequence 1, whose every entry is -1, and
// one of sequence 2.
class CheckGdnSpecUpdateTest : public ::testing::Test {
 protected:
  static constexpr int32_t kColumns = 4;
  static constexpr int32_t kIndexStride = 6;
  static constexpr int32_t kSlots = 13;

  CheckGdnSpecUpdateTest() {
    args_.shape = {2, 4, 5, 3};
    args_.tokens = 3;
    args_.sequences = 3;
    args_.slots = kSlots;
    args_.columns = kColumns;
    args_.q = q_.data();
    args_.k = k_.data();
    args_.v = v_.data();
    args_.a = a_.data();
    args_.b = b_.data();
    args_.q_stride = args_.k_stride = 10;
    args_.v_stride = args_.out_stride = 12;
    args_.a_stride = args_.b_stride = 4;
    args_.a_log = a_log_.data();
    args_.dt_bias = dt_bias_.data();
    args_.initial_state_source = states_.data();
    args_.state_stride = kStateFloats;
    args_.spec_state_indices = indices_;
    args_.index_stride = kIndexStride;
    args_.num_accepted_tokens = accepted_;
    args_.block_columns = block_columns_;
    args_.cu_seqlens = cu_seqlens_;
    args_.out = out_.data();
    args_.workspace = workspace_.data();
    args_.workspace_bytes = GdnSpecUpdateWorkspace(args_);
    ExpectSound();
  }

  ~CheckGdnSpecUpdateTest() override {
    // What was refused is sound again, and nothing else was wrong with it.
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_TRUE(GdnSpecUpdate(args_, nullptr, &error)) << ToString(error);
    EXPECT_FALSE(SameBits(out_, before_out_));
    EXPECT_FALSE(SameBits(states_, before_states_));
  }

  void ExpectSound() {
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_TRUE(CheckGdnSpecUpdate(args_, &error)) << ToString(error);
    EXPECT_TRUE(CheckGdnSpecUpdate(args_, nullptr));
  }

  void ExpectUnsound(const std::string& argument, int64_t index,
                     int64_t value) {
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_FALSE(GdnSpecUpdate(args_, nullptr, &error)) << argument;
    EXPECT_EQ(error.argument, argument);
    EXPECT_EQ(error.index, index) << argument;
    EXPECT_EQ(error.value, value) << argument;
    EXPECT_NE(std::string(error.allowed), "") << argument;
    EXPECT_FALSE(GdnSpecUpdate(args_, nullptr, nullptr)) << argument;
    EXPECT_FALSE(CheckGdnSpecUpdate(args_, nullptr)) << argument;
    EXPECT_TRUE(SameBits(out_, before_out_)) << argument;
    EXPECT_TRUE(SameBits(states_, before_states_)) << argument;
  }

  // Sets `place` to `value`, expects an error, and restores it.
  template <class T, class U>
  void Refuses(T& place, U value, const std::string& argument, int64_t index,
               int64_t error_value) {
    const T before = place;
    place = value;
    ExpectUnsound(argument, index, error_value);
    place = before;
    ExpectSound();
  }

  static constexpr int64_t kStateFloats = 4 * 5 * 32;

  Floats q_ = Floats(30, 0.5f), k_ = Floats(30, 0.5f), v_ = Floats(36, 0.5f);
  Floats a_ = Floats(12, 0.5f), b_ = Floats(12, 0.5f);
  Floats a_log_ = Floats(4, 0.5f), dt_bias_ = Floats(4, 0.5f);
  const Floats before_states_ = Floats(kSlots * kStateFloats, 0.25f);
  const Floats before_out_ = Floats(36 + 16, kNaN);
  CanaryBuffer<float> states_{before_states_};
  CanaryBuffer<float> out_{before_out_};
  CanaryBuffer<unsigned char> workspace_{8192};
  int32_t indices_[3 * kIndexStride] = {3,  9,  0,  12, -9, -9, -1, -1, -1,
                                        -1, -9, -9, 1,  2,  4,  5,  -9, -9};
  int32_t accepted_[3] = {2, -1, 0};
  int32_t block_columns_[3] = {3, -1, 1};
  int32_t cu_seqlens_[4] = {0, 2, 2, 3};
  GdnSpecUpdateArgs args_ = {};
};

TEST_F(CheckGdnSpecUpdateTest, AcceptsTheLargestThatIsAllowed) {
  accepted_[0] = block_columns_[0] = kColumns - 1;
  cu_seqlens_[1] = cu_seqlens_[2] = kColumns - 1;
  indices_[0] = kSlots - 1;
  indices_[3] = 11;
  ExpectSound();
}

TEST_F(CheckGdnSpecUpdateTest, WithoutTokensNothingIsLookedAt) {
  GdnSpecUpdateArgs args = {};
  const int32_t zeros[4] = {};
  args.shape = args_.shape;
  args.columns = 2;
  args.cu_seqlens = zeros;
  EXPECT_TRUE(GdnSpecUpdate(args, nullptr, nullptr));
  args.sequences = 3;
  EXPECT_TRUE(GdnSpecUpdate(args, nullptr, nullptr));
}

TEST_F(CheckGdnSpecUpdateTest, NamesUnsoundSizes) {
  Refuses(args_.shape.k_heads, 0, "shape.k_heads", -1, 0);
  Refuses(args_.shape.v_heads, 5, "shape.v_heads", -1, 5);
  Refuses(args_.shape.k_dim, 257, "shape.k_dim", -1, 257);
  Refuses(args_.shape.v_dim, 0, "shape.v_dim", -1, 0);
  Refuses(args_.shape.v_dim, INT32_MAX, "shape.v_dim", -1, INT32_MAX);
  Refuses(args_.tokens, -1, "tokens", -1, -1);
  Refuses(args_.sequences, -1, "sequences", -1, -1);
  Refuses(args_.slots, -1, "slots", -1, -1);
  Refuses(args_.slots, 3, "slots", -1, 3);
  Refuses(args_.columns, 1, "columns", -1, 1);
  Refuses(args_.columns, INT32_MIN, "columns", -1, INT32_MIN);
}

TEST_F(CheckGdnSpecUpdateTest, NamesUnsoundLengths) {
  Refuses(args_.cu_seqlens, nullptr, "cu_seqlens", -1, 0);
  Refuses(cu_seqlens_[0], 1, "cu_seqlens[]", 0, 1);
  Refuses(cu_seqlens_[0], -1, "cu_seqlens[]", 0, -1);
  Refuses(cu_seqlens_[2], 1, "cu_seqlens[]", 2, 1);
  Refuses(cu_seqlens_[2], INT32_MIN, "cu_seqlens[]", 2, INT32_MIN);
  Refuses(cu_seqlens_[1], kColumns, "cu_seqlens[]", 1, kColumns);
  Refuses(cu_seqlens_[3], INT32_MAX, "cu_seqlens[]", 3, INT32_MAX);
  // The last one is not the number of tokens.
  Refuses(cu_seqlens_[3], 2, "cu_seqlens[]", 3, 2);
  Refuses(cu_seqlens_[3], 4, "cu_seqlens[]", 3, 4);
  Refuses(args_.tokens, 4, "cu_seqlens[]", 3, 3);
  Refuses(args_.sequences, 2, "cu_seqlens[]", 2, 2);
  // Two tokens need three columns.
  Refuses(args_.columns, 2, "cu_seqlens[]", 1, 2);
}

TEST_F(CheckGdnSpecUpdateTest, NamesUnsoundConstants) {
  const double infinity = std::numeric_limits<double>::infinity();
  Refuses(args_.softplus_beta, 2.0, "softplus_beta", -1, 2);
  Refuses(args_.softplus_beta, 1.5, "softplus_beta", -1, 1);
  Refuses(args_.softplus_threshold, 19.0, "softplus_threshold", -1, 19);
  Refuses(args_.softplus_threshold, double{kNaN}, "softplus_threshold", -1, 0);
  Refuses(args_.scale, infinity, "scale", -1, 1000000000000000000);
  Refuses(args_.scale, -1e39, "scale", -1, -1000000000000000000);
  Refuses(args_.scale, double{kNaN}, "scale", -1, 0);
}

TEST_F(CheckGdnSpecUpdateTest, NamesNullPointers) {
  Refuses(args_.q, nullptr, "q", -1, 0);
  Refuses(args_.k, nullptr, "k", -1, 0);
  Refuses(args_.v, nullptr, "v", -1, 0);
  Refuses(args_.a, nullptr, "a", -1, 0);
  Refuses(args_.b, nullptr, "b", -1, 0);
  Refuses(args_.a_log, nullptr, "a_log", -1, 0);
  Refuses(args_.dt_bias, nullptr, "dt_bias", -1, 0);
  Refuses(args_.initial_state_source, nullptr, "initial_state_source", -1, 0);
  Refuses(args_.spec_state_indices, nullptr, "spec_state_indices", -1, 0);
  Refuses(args_.num_accepted_tokens, nullptr, "num_accepted_tokens", -1, 0);
  Refuses(args_.block_columns, nullptr, "block_columns", -1, 0);
  Refuses(args_.out, nullptr, "out", -1, 0);
  Refuses(args_.workspace, nullptr, "workspace", -1, 0);
}

TEST_F(CheckGdnSpecUpdateTest, NamesUnsoundStrides) {
  const struct {
    int64_t& stride;
    const char* argument;
  } strides[] = {
      {args_.q_stride, "q_stride"},    {args_.k_stride, "k_stride"},
      {args_.v_stride, "v_stride"},    {args_.a_stride, "a_stride"},
      {args_.b_stride, "b_stride"},    {args_.state_stride, "state_stride"},
      {args_.out_stride, "out_stride"}};
  for (const auto& [stride, argument] : strides) {
    for (const int64_t value :
         {stride - 1, int64_t{0}, -stride, (int64_t{1} << 30) + 1,
          int64_t{INT64_MAX}, int64_t{INT64_MIN}}) {
      Refuses(stride, value, argument, -1, value);
    }
  }
  Refuses(args_.index_stride, kColumns - 1, "index_stride", -1, kColumns - 1);
  Refuses(args_.index_stride, INT64_MAX, "index_stride", -1, INT64_MAX);
  Refuses(args_.state_stride, kStateFloats + 8, "state_stride", -1,
          kStateFloats + 8);
}

TEST_F(CheckGdnSpecUpdateTest, NamesMisalignedMemory) {
  Refuses(args_.initial_state_source, states_.data() + 4,
          "initial_state_source", -1, 16);
  Refuses(args_.workspace, workspace_.data() + 32, "workspace", -1, 32);
}

TEST_F(CheckGdnSpecUpdateTest, NamesAWorkspaceThatIsTooSmall) {
  const int64_t needed = GdnSpecUpdateWorkspace(args_);
  Refuses(args_.workspace_bytes, needed - 1, "workspace_bytes", -1, needed - 1);
  Refuses(args_.workspace_bytes, -1, "workspace_bytes", -1, -1);
}

TEST_F(CheckGdnSpecUpdateTest, NamesAcceptedCountsOutOfRange) {
  Refuses(accepted_[0], -1, "num_accepted_tokens[]", 0, -1);
  Refuses(accepted_[2], kColumns, "num_accepted_tokens[]", 2, kColumns);
  Refuses(accepted_[2], INT32_MAX, "num_accepted_tokens[]", 2, INT32_MAX);
}

TEST_F(CheckGdnSpecUpdateTest, NamesBlockColumnsOutOfRange) {
  Refuses(block_columns_[0], -1, "block_columns[]", 0, -1);
  Refuses(block_columns_[2], kColumns, "block_columns[]", 2, kColumns);
  Refuses(block_columns_[2], INT32_MIN, "block_columns[]", 2, INT32_MIN);
}

TEST_F(CheckGdnSpecUpdateTest, NamesIndicesOutOfRange) {
  // Every column counts, the block's own and the others; -1 is the padding of
  // the frameworks.
  for (int c = 0; c < kColumns; ++c) {
    Refuses(indices_[c], -1, "spec_state_indices[]", c, -1);
    Refuses(indices_[2 * kIndexStride + c], kSlots, "spec_state_indices[]",
            2 * kColumns + c, kSlots);
  }
  Refuses(indices_[0], INT32_MIN, "spec_state_indices[]", 0, INT32_MIN);
  Refuses(indices_[0], INT32_MAX, "spec_state_indices[]", 0, INT32_MAX);
  // The padding row becomes one with a token.
  Refuses(cu_seqlens_[1], 1, "num_accepted_tokens[]", 1, -1);
}

TEST_F(CheckGdnSpecUpdateTest, NamesSlotsThatOccurTwice) {
  // Within a row, neighbours or not.
  Refuses(indices_[1], 3, "spec_state_indices[]", 1, 3);
  Refuses(indices_[3], 9, "spec_state_indices[]", 3, 9);
  // In two sequences, as when 0 stands for padding.
  Refuses(indices_[2 * kIndexStride], 0, "spec_state_indices[]", 8, 0);
  Refuses(indices_[2 * kIndexStride + 3], 12, "spec_state_indices[]", 11, 12);
  // Whoever sits the call out does not count.
  std::fill_n(&indices_[kIndexStride], kColumns, 3);
  ExpectSound();
}

TEST_F(CheckGdnSpecUpdateTest, NamesOverlaps) {
  // In place of an input: refused, also in part and between rows.
  Refuses(args_.out, v_.data(), "out", -1, 0);
  Refuses(args_.v, out_.data() + 35, "out", -1, -35 * 4);
  Refuses(args_.q, out_.data() + 12, "out", -1, -12 * 4);
  Refuses(args_.k, out_.data(), "out", -1, 0);
  Refuses(args_.a, out_.data(), "out", -1, 0);
  Refuses(args_.b, out_.data(), "out", -1, 0);
  Refuses(args_.a_log, out_.data(), "out", -1, 0);
  Refuses(args_.dt_bias, out_.data(), "out", -1, 0);
  Refuses(args_.out, states_.data() + 7, "out", -1, 28);
  Refuses(args_.q, states_.data() + kStateFloats, "initial_state_source", -1,
          -kStateFloats * 4);
  Refuses(args_.workspace, states_.data() + 16, "initial_state_source", -1,
          -64);
  Refuses(args_.out, reinterpret_cast<float*>(workspace_.data()), "out", -1, 0);
  Refuses(args_.q, reinterpret_cast<float*>(workspace_.data() + 64),
          "workspace", -1, -64);
  int32_t* inside = reinterpret_cast<int32_t*>(out_.data());
  const auto in_out = [&](const int32_t*& place, int size) {
    std::copy(place, place + size, inside);
    const int32_t* before = place;
    place = inside;
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_FALSE(GdnSpecUpdate(args_, nullptr, &error));
    EXPECT_EQ(error.argument, std::string("out"));
    EXPECT_TRUE(SameBits(inside, before, size));
    place = before;
    std::copy(before_out_.begin(), before_out_.end(), out_.begin());
  };
  in_out(args_.spec_state_indices, 3 * kIndexStride);
  in_out(args_.num_accepted_tokens, 3);
  in_out(args_.block_columns, 3);
  in_out(args_.cu_seqlens, 4);
  // Inputs may share memory among themselves, and touch what is written.
  args_.k = args_.q;
  args_.b = args_.a;
  std::fill(&out_[36], out_.end(), 0.5f);
  args_.v = out_.data() + 36;
  args_.tokens = cu_seqlens_[1] = cu_seqlens_[2] = cu_seqlens_[3] = 1;
  ExpectSound();
}

TEST_F(CheckGdnSpecUpdateTest, TheWorkspaceOfTheLargestCallSufficesForAll) {
  const int64_t bytes = GdnSpecUpdateWorkspace(args_);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(bytes % 64, 0);
  int32_t* const sizes[] = {&args_.tokens, &args_.sequences, &args_.slots,
                            &args_.shape.v_heads, &args_.shape.k_dim};
  for (int32_t* size : sizes) {
    const int32_t before = *size;
    *size *= 100;
    if (size == &args_.shape.k_dim) *size = kGdnMaxKeyDim;
    EXPECT_GT(GdnSpecUpdateWorkspace(args_), bytes);
    *size = -1;
    EXPECT_EQ(GdnSpecUpdateWorkspace(args_), 0);
    *size = before;
  }
  args_.shape.v_dim = 0;
  EXPECT_EQ(GdnSpecUpdateWorkspace(args_), 0);
  args_.shape.v_dim = 3;
}

}  // namespace
}  // namespace deltaedge
