// SPDX-License-Identifier: Apache-2.0

#include "kernels/gdn/gdn_block.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/per_target.h"
#include "hwy/targets.h"
#include "kernels/base/argument_error.h"
#include "kernels/gdn/gdn_reference.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/safetensors_lite.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Golden;
using testing::GoldenTensor;
using testing::Random;
using testing::SameBits;

using Floats = std::vector<float>;

// No two dimensions are equal; Hv / Hk is 1, 2, 3; Dv no multiple of a vector,
// of a tile, of two tiles; one, two and three tiles.
const GdnShape kShapes[] = {{2, 2, 5, 3},   {2, 4, 16, 32}, {2, 6, 7, 33},
                            {1, 1, 12, 64}, {1, 3, 9, 70},  {3, 3, 1, 1}};

struct Token {
  Floats q, k;             // [Hk, Dk]
  Floats v;                // [Hv, Dv]
  Floats log_decay, beta;  // [Hv]
};

using Tokens = std::vector<Token>;

Floats Normalised(Random& random, int heads, int dim, float scale) {
  Floats values = random.Gaussians(static_cast<size_t>(heads) * dim);
  for (int h = 0; h < heads; ++h) {
    double sum = 1e-6;
    for (int i = 0; i < dim; ++i) {
      sum += std::pow(static_cast<double>(values[h * dim + i]), 2);
    }
    for (int i = 0; i < dim; ++i) {
      values[h * dim + i] =
          static_cast<float>(values[h * dim + i] / std::sqrt(sum) * scale);
    }
  }
  return values;
}

Token RandomToken(Random& random, const GdnShape& shape) {
  Token token;
  token.q = Normalised(random, shape.k_heads, shape.k_dim,
                       1.0f / std::sqrt(static_cast<float>(shape.k_dim)));
  token.k = Normalised(random, shape.k_heads, shape.k_dim, 1.0f);
  token.v = random.Gaussians(static_cast<size_t>(shape.v_heads) * shape.v_dim);
  token.log_decay = random.Uniforms(shape.v_heads, -3.0f, 0.0f);
  token.beta = random.Uniforms(shape.v_heads, 0.0f, 1.0f);
  return token;
}

Tokens RandomTokens(Random& random, const GdnShape& shape, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(RandomToken(random, shape));
  return tokens;
}

Tokens Range(const Tokens& tokens, size_t begin, size_t end) {
  return Tokens(tokens.begin() + begin, tokens.begin() + end);
}

// A state between canaries, full of NaN until it is written.
struct State : CanaryBuffer<float> {
  explicit State(const GdnShape& shape)
      : CanaryBuffer<float>(static_cast<size_t>(GdnStateFloats(shape))) {}

  static State Zero(const GdnShape& shape) {
    State state(shape);
    std::fill(state.begin(), state.end(), 0.0f);
    return state;
  }

  static State Of(const GdnShape& shape, const Floats& dense) {
    State state(shape);
    GdnImportState(shape, dense.data(), state.data());
    return state;
  }

  static State Random(class Random& random, const GdnShape& shape) {
    return Of(shape, random.Gaussians(static_cast<size_t>(shape.v_heads) *
                                      shape.k_dim * shape.v_dim));
  }

  Floats Dense(const GdnShape& shape) const {
    Floats dense(static_cast<size_t>(shape.v_heads) * shape.k_dim *
                 shape.v_dim);
    GdnExportState(shape, data(), dense.data());
    return dense;
  }

  bool PaddingIsZero(const GdnShape& shape) const {
    return SameBits(*this, Of(shape, Dense(shape)));
  }
};

// A journal between canaries, full of NaN until it is written.
struct Journal {
  Journal(const GdnShape& shape, int rows)
      : k(static_cast<size_t>(rows) * shape.k_heads * shape.k_dim, 1),
        u(static_cast<size_t>(rows) * shape.v_heads * shape.v_dim, 2),
        gamma(static_cast<size_t>(rows) * shape.v_heads, 3) {}

  GdnJournal View() { return {k.data(), u.data(), gamma.data()}; }
  bool Intact() const { return k.Intact() && u.Intact() && gamma.Intact(); }
  void Dirty() {
    k.Dirty();
    u.Dirty();
    gamma.Dirty();
  }

  CanaryBuffer<float> k, u, gamma;
};

// Lays sequences out as one block, with odd strides, misaligned rows and NaN
// between the rows, runs it and gives the rows of `out` back.
class Block {
 public:
  explicit Block(const GdnShape& shape) : shape_(shape) {}

  Block& Add(const Tokens& tokens, const GdnSequence& sequence) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
    sequences_.push_back(sequence);
    return *this;
  }

  std::vector<Floats> Run(pthreadpool_t pool = nullptr, bool with_out = true) {
    const size_t rows = tokens_.size();
    const size_t k_floats = static_cast<size_t>(shape_.k_heads) * shape_.k_dim;
    const size_t v_floats = static_cast<size_t>(shape_.v_heads) * shape_.v_dim;
    const size_t heads = static_cast<size_t>(shape_.v_heads);
    CanaryBuffer<float> q(rows * (k_floats + 1), 1);
    CanaryBuffer<float> k(rows * (k_floats + 2), 2);
    CanaryBuffer<float> v(rows * (v_floats + 3), 3);
    CanaryBuffer<float> out(rows * (v_floats + 5), 5);
    CanaryBuffer<float> log_decay(rows * heads, 1);
    CanaryBuffer<float> beta(rows * heads, 3);
    for (size_t t = 0; t < rows; ++t) {
      const Token& token = tokens_[t];
      std::copy(token.q.begin(), token.q.end(), &q[t * (k_floats + 1)]);
      std::copy(token.k.begin(), token.k.end(), &k[t * (k_floats + 2)]);
      std::copy(token.v.begin(), token.v.end(), &v[t * (v_floats + 3)]);
      std::copy(token.log_decay.begin(), token.log_decay.end(),
                &log_decay[t * heads]);
      std::copy(token.beta.begin(), token.beta.end(), &beta[t * heads]);
    }
    GdnBlock block;
    block.shape = shape_;
    block.sequences = static_cast<int32_t>(sequences_.size());
    block.row_begin = row_begin_.data();
    block.q = with_out ? q.data() : nullptr;
    block.k = k.data();
    block.v = v.data();
    block.log_decay = log_decay.data();
    block.beta = beta.data();
    block.q_stride = static_cast<int64_t>(k_floats) + 1;
    block.k_stride = static_cast<int64_t>(k_floats) + 2;
    block.v_stride = static_cast<int64_t>(v_floats) + 3;
    block.sequence = sequences_.data();
    block.out = with_out ? out.data() : nullptr;
    block.out_stride = static_cast<int64_t>(v_floats) + 5;
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_TRUE(CheckGdnBlock(block, &error))
        << error.argument << " " << error.index << " " << error.value;
    GdnForward(block, pool);
    EXPECT_TRUE(out.Intact());
    std::vector<Floats> result;
    for (size_t t = 0; t < rows; ++t) {
      float* row = &out[t * (v_floats + 5)];
      result.emplace_back(row, row + v_floats);
      for (size_t i = v_floats; i < v_floats + 5; ++i) {
        EXPECT_TRUE(std::isnan(row[i])) << "wrote between rows";
      }
    }
    return result;
  }

 private:
  GdnShape shape_;
  Tokens tokens_;
  std::vector<int32_t> row_begin_ = {0};
  std::vector<GdnSequence> sequences_;
};

// What the bits have to be: one token at a time, each from the state that the
// one before it left.
struct Truth {
  std::vector<State> states;  // [tokens + 1]
  std::vector<Floats> out;    // [tokens]

  Truth(const GdnShape& shape, State first, const Tokens& tokens) {
    states.push_back(std::move(first));
    for (const Token& token : tokens) {
      State next(shape);
      GdnSequence sequence;
      sequence.state = states.back().data();
      sequence.last = next.data();
      out.push_back(Block(shape).Add({token}, sequence).Run()[0]);
      states.push_back(std::move(next));
    }
  }
};

Floats Concatenated(const Tokens& tokens, Floats Token::*member) {
  Floats all;
  for (const Token& token : tokens) {
    all.insert(all.end(), (token.*member).begin(), (token.*member).end());
  }
  return all;
}

// Updates `state` [Hv, Dk, Dv] and returns out [rows, Hv, Dv].
std::vector<double> Reference(const GdnShape& shape, const Tokens& tokens,
                              std::vector<double>* state) {
  std::vector<double> out(tokens.size() * shape.v_heads * shape.v_dim);
  GdnReference(shape, static_cast<int32_t>(tokens.size()),
               Concatenated(tokens, &Token::q).data(),
               Concatenated(tokens, &Token::k).data(),
               Concatenated(tokens, &Token::v).data(),
               Concatenated(tokens, &Token::log_decay).data(),
               Concatenated(tokens, &Token::beta).data(), state->data(),
               out.data());
  return out;
}

// max |a - b| / max |b|, infinite when an `a` is not a number.
template <class A, class B>
double RelativeError(const A& a, const B& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0;
  double largest = std::numeric_limits<double>::min();
  for (size_t i = 0; i < b.size(); ++i) {
    if (std::isnan(a[i])) return std::numeric_limits<double>::infinity();
    difference = std::max<double>(difference, std::fabs(double{a[i]} - b[i]));
    largest = std::max<double>(largest, std::fabs(double{b[i]}));
  }
  return difference / largest;
}

Floats Flat(const std::vector<Floats>& rows) {
  Floats flat;
  for (const Floats& row : rows)
    flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

std::string Name(const GdnShape& shape) {
  return "Hk " + std::to_string(shape.k_heads) + " Hv " +
         std::to_string(shape.v_heads) + " Dk " + std::to_string(shape.k_dim) +
         " Dv " + std::to_string(shape.v_dim);
}

void ForEachShape(const std::function<void(const GdnShape&, Random&)>& body) {
  ForEachHwyTarget([&] {
    for (const GdnShape& shape : kShapes) {
      SCOPED_TRACE(Name(shape));
      Random random(static_cast<uint64_t>(shape.v_dim));
      body(shape, random);
    }
  });
}

// ---------------------------------------------------------------- numbers

// Float sums of Dk terms in order: the error of stock float32 code is up to
// 6e-7 on such data; the limit leaves a factor of three.
constexpr double kLimit = 2e-6;

TEST(GdnBlockTest, AgreesWithTheReference) {
  const GdnShape large[] = {{1, 2, 128, 128}, {1, 1, 256, 96}};
  ForEachHwyTarget([&] {
    std::vector<GdnShape> shapes(std::begin(kShapes), std::end(kShapes));
    shapes.insert(shapes.end(), std::begin(large), std::end(large));
    for (const GdnShape& shape : shapes) {
      for (const int rows : {1, 2, 3, 20}) {
        SCOPED_TRACE(Name(shape) + " rows " + std::to_string(rows));
        Random random(static_cast<uint64_t>(rows));
        const Tokens tokens = RandomTokens(random, shape, rows);
        const State first = State::Random(random, shape);
        State last(shape);
        GdnSequence sequence;
        sequence.state = first.data();
        sequence.last = last.data();
        const Floats out = Flat(Block(shape).Add(tokens, sequence).Run());

        const Floats dense = first.Dense(shape);
        std::vector<double> state(dense.begin(), dense.end());
        const std::vector<double> expected = Reference(shape, tokens, &state);
        EXPECT_LE(RelativeError(out, expected), kLimit);
        EXPECT_LE(RelativeError(last.Dense(shape), state), kLimit);
      }
    }
  });
}

TEST(GdnBlockTest, AgreesWithTheGoldens) {
  const Golden golden("tests/testdata/ops/gated_delta_rule.safetensors");
  ASSERT_EQ(golden.error(), "");
  constexpr int kCases = 24;
  const auto normalised = [](const GoldenTensor& x, double scale) {
    Floats values = x.floats;
    const size_t dim = static_cast<size_t>(x.dim(3));
    for (size_t row = 0; row < values.size(); row += dim) {
      double sum = 1e-6;
      for (size_t i = row; i < row + dim; ++i) {
        sum += static_cast<double>(values[i]) * values[i];
      }
      for (size_t i = row; i < row + dim; ++i) {
        values[i] = static_cast<float>(values[i] / std::sqrt(sum) * scale);
      }
    }
    return values;
  };
  const auto slice = [](const Floats& values, size_t index, size_t size) {
    return Floats(values.begin() + index * size,
                  values.begin() + (index + 1) * size);
  };
  ForEachHwyTarget([&] {
    for (int c = 0; c < kCases; ++c) {
      const std::string name = "gdr" + std::to_string(c) + ".";
      SCOPED_TRACE(name);
      ASSERT_TRUE(golden.Has(name + "q"));
      const GoldenTensor& v = golden[name + "v"];
      const size_t batch = static_cast<size_t>(v.dim(0));
      const size_t rows = static_cast<size_t>(v.dim(1));
      const int32_t heads = static_cast<int32_t>(v.dim(2));
      const int32_t k_dim = static_cast<int32_t>(golden[name + "k"].dim(3));
      const int32_t v_dim = static_cast<int32_t>(v.dim(3));
      const GdnShape shape = {heads, heads, k_dim, v_dim};
      const size_t k_floats = static_cast<size_t>(heads) * k_dim;
      const size_t v_floats = static_cast<size_t>(heads) * v_dim;
      const size_t state_floats = v_floats * k_dim;
      const Floats q =
          normalised(golden[name + "q"], 1.0 / std::sqrt(double{1.0} * k_dim));
      const Floats k = normalised(golden[name + "k"], 1.0);

      std::vector<State> first, last, steps;
      std::vector<std::vector<float*>> each(batch);
      std::vector<Tokens> tokens(batch);
      for (size_t b = 0; b < batch; ++b) {
        first.push_back(
            golden.Has(name + "initial_state")
                ? State::Of(shape, slice(golden[name + "initial_state"].floats,
                                         b, state_floats))
                : State::Zero(shape));
        last.emplace_back(shape);
        for (size_t t = b * rows; t < (b + 1) * rows; ++t) {
          const size_t width = static_cast<size_t>(heads);
          tokens[b].push_back({slice(q, t, k_floats), slice(k, t, k_floats),
                               slice(v.floats, t, v_floats),
                               slice(golden[name + "g"].floats, t, width),
                               slice(golden[name + "beta"].floats, t, width)});
          steps.emplace_back(shape);
          each[b].push_back(steps.back().data());
        }
      }
      Block block(shape);
      for (size_t b = 0; b < batch; ++b) {
        GdnSequence sequence;
        sequence.state = first[b].data();
        sequence.last = last[b].data();
        sequence.each = each[b].data();
        block.Add(tokens[b], sequence);
      }
      const Floats out = Flat(block.Run());
      EXPECT_LE(RelativeError(out, golden[name + "out"].floats), kLimit);
      Floats final_state, step_states;
      for (const State& state : last) {
        const Floats dense = state.Dense(shape);
        final_state.insert(final_state.end(), dense.begin(), dense.end());
      }
      EXPECT_LE(RelativeError(final_state, golden[name + "final_state"].floats),
                kLimit);
      if (!golden.Has(name + "step_states")) continue;
      for (const State& state : steps) {
        const Floats dense = state.Dense(shape);
        step_states.insert(step_states.end(), dense.begin(), dense.end());
      }
      EXPECT_LE(RelativeError(step_states, golden[name + "step_states"].floats),
                kLimit);
    }
  });
}

TEST(GdnBlockTest, ExtremesAgreeWithTheReference) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    const float log_decays[] = {0.0f,   -0.0f,  -1e-30f, -50.0f, -87.0f,
                                -88.5f, -104.f, -1e4f,   -3e38f};
    Tokens tokens;
    for (const float log_decay : log_decays) {
      for (const float beta : {0.0f, 1.0f, 1e-30f}) {
        Token token = RandomToken(random, shape);
        std::fill(token.log_decay.begin(), token.log_decay.end(), log_decay);
        std::fill(token.beta.begin(), token.beta.end(), beta);
        switch (random.Int(0, 4)) {
          case 0:
            std::fill(token.k.begin(), token.k.end(), 0.0f);
            break;
          case 1:
            for (float& value : token.v) value *= 1e18f;
            break;
          case 2:
            for (float& value : token.k) value *= 1e-18f;
            break;
          case 3:
            std::fill(token.q.begin(), token.q.end(), 0.0f);
            break;
        }
        tokens.push_back(token);
      }
    }
    const State first = State::Random(random, shape);
    const Floats dense = first.Dense(shape);
    std::vector<double> expected(dense.begin(), dense.end());
    State state = State::Of(shape, dense);
    for (const Token& token : tokens) {
      State next(shape);
      GdnSequence sequence;
      sequence.state = state.data();
      sequence.last = next.data();
      const Floats out = Block(shape).Add({token}, sequence).Run()[0];
      const std::vector<double> expected_out =
          Reference(shape, {token}, &expected);
      // exp(-88.5) and everything below is flushed; q^T S may cancel.
      double largest = 0.0;
      for (const double value : expected) {
        largest = std::max(largest, std::fabs(value));
      }
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected_out[i], kLimit * largest + 1e-30);
      }
      const Floats next_dense = next.Dense(shape);
      for (size_t i = 0; i < next_dense.size(); ++i) {
        ASSERT_NEAR(next_dense[i], expected[i], kLimit * largest + 1e-30);
      }
      // Rounding must not pile up over rows that lie 18 decimal orders apart.
      expected.assign(next_dense.begin(), next_dense.end());
      state = std::move(next);
    }
  });
}

TEST(GdnBlockTest, FlushesDenormals) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    Token token = RandomToken(random, shape);
    std::fill(token.log_decay.begin(), token.log_decay.end(), -2.0f);
    std::fill(token.v.begin(), token.v.end(), 0.0f);
    std::fill(token.k.begin(), token.k.end(), 0.0f);
    State state = State::Of(shape, Floats(static_cast<size_t>(shape.v_heads) *
                                              shape.k_dim * shape.v_dim,
                                          2e-38f));
    State last(shape);
    GdnSequence sequence;
    sequence.state = state.data();
    sequence.last = last.data();
    Block(shape).Add({token}, sequence).Run();
    EXPECT_TRUE(SameBits(last, State::Zero(shape)));
  });
}

// ------------------------------------------------------------------- bits

// The order of operations that the header promises, in scalar float.
TEST(GdnBlockTest, BitsAreThoseOfTheContract) {
  constexpr int64_t kUnfusedTargets =
      HWY_SSE2 | HWY_SSSE3 | HWY_SSE4 | HWY_EMU128 | HWY_SCALAR;
  constexpr int kRows = 4;
  ForEachShape([](const GdnShape& shape, Random& random) {
    const bool fused = (hwy::DispatchedTarget() & kUnfusedTargets) == 0;
    const auto fma = [fused](float a, float b, float c) {
      return fused ? std::fma(a, b, c) : a * b + c;
    };
    const Tokens tokens = RandomTokens(random, shape, kRows);
    const State first = State::Random(random, shape);
    State last(shape);
    Journal record(shape, kRows);
    GdnSequence sequence;
    sequence.state = first.data();
    sequence.last = last.data();
    sequence.record = record.View();
    const std::vector<Floats> out = Block(shape).Add(tokens, sequence).Run();

    Floats state = first.Dense(shape);
    const int ratio = shape.v_heads / shape.k_heads;
    for (int t = 0; t < kRows; ++t) {
      for (int h = 0; h < shape.v_heads; ++h) {
        const float* q = &tokens[t].q[h / ratio * shape.k_dim];
        const float* k = &tokens[t].k[h / ratio * shape.k_dim];
        const float gamma = record.gamma[t * shape.v_heads + h];
        EXPECT_NEAR(gamma, std::exp(tokens[t].log_decay[h]), 2e-7f);
        for (int j = 0; j < shape.v_dim; ++j) {
          float* s = &state[h * shape.k_dim * shape.v_dim + j];
          float prediction = 0.0f;
          for (int i = 0; i < shape.k_dim; ++i) {
            s[i * shape.v_dim] = gamma * s[i * shape.v_dim];
            prediction = fma(k[i], s[i * shape.v_dim], prediction);
          }
          const int column = h * shape.v_dim + j;
          const float u =
              tokens[t].beta[h] * (tokens[t].v[column] - prediction);
          float sum = 0.0f;
          for (int i = 0; i < shape.k_dim; ++i) {
            s[i * shape.v_dim] = fma(k[i], u, s[i * shape.v_dim]);
            sum = fma(q[i], s[i * shape.v_dim], sum);
          }
          ASSERT_EQ(record.u[t * shape.v_heads * shape.v_dim + column], u);
          ASSERT_EQ(out[t][column], sum);
        }
      }
    }
    EXPECT_TRUE(SameBits(last.Dense(shape), state));
  });
}

// Every way to cut five tokens into blocks.
TEST(GdnBlockTest, AnySplitGivesTheSameBits) {
  constexpr int kTokens = 5;
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, kTokens);
    const Truth truth(shape, State::Random(random, shape), tokens);
    for (int cuts = 0; cuts < 1 << (kTokens - 1); ++cuts) {
      State state = State::Of(shape, truth.states[0].Dense(shape));
      int begin = 0;
      for (int end = 1; end <= kTokens; ++end) {
        if (end < kTokens && !(cuts >> (end - 1) & 1)) continue;
        State next(shape);
        GdnSequence sequence;
        sequence.state = state.data();
        sequence.last = next.data();
        const std::vector<Floats> out =
            Block(shape).Add(Range(tokens, begin, end), sequence).Run();
        for (int t = begin; t < end; ++t) {
          ASSERT_TRUE(SameBits(out[t - begin], truth.out[t]))
              << "cuts " << cuts;
        }
        ASSERT_TRUE(SameBits(next, truth.states[end])) << "cuts " << cuts;
        ASSERT_TRUE(next.Intact());
        state = std::move(next);
        begin = end;
      }
    }
  });
}

// The life of a sequence under speculation: blocks whose tail is wrong, any
// number of rows kept, the journal of each folded by the next one; now and then
// a plain block, a prefill into a spare state, a fold into a copy, a block in
// slots mode, or a block that is run and forgotten.
TEST(GdnBlockTest, AnyScheduleOfBlocksAndKeepsGivesTheSameBits) {
  constexpr int kTokens = 24;
  constexpr int kMaxRows = 6;
  constexpr int kSchedules = 60;
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, kTokens);
    const Truth truth(shape, State::Random(random, shape), tokens);
    for (int schedule = 0; schedule < kSchedules; ++schedule) {
      SCOPED_TRACE("schedule " + std::to_string(schedule));
      State state = State::Of(shape, truth.states[0].Dense(shape));
      Journal pending(shape, kMaxRows);
      Journal other(shape, kMaxRows);
      int pending_rows = 0;
      int position = 0;  // tokens in `state` and `pending`
      while (position < kTokens) {
        const int rows = std::min(random.Int(1, kMaxRows), kTokens - position);
        const int right = random.Int(0, rows);
        Tokens block = Range(tokens, position, position + rows);
        for (int t = right; t < rows; ++t) {
          block[t] = RandomToken(random, shape);
        }
        GdnSequence sequence;
        sequence.state = state.data();
        sequence.fold = pending.View();
        sequence.fold_rows = pending_rows;
        switch (random.Int(0, 5)) {
          case 0: {  // forgotten: neither folded nor recorded
            Block(shape).Add(block, sequence).Run();
            break;
          }
          case 1: {  // a copy by folding, without rows
            State copy(shape);
            sequence.last = copy.data();
            Block(shape).Add({}, sequence).Run();
            ASSERT_TRUE(SameBits(copy, truth.states[position]));
            ASSERT_TRUE(copy.Intact());
            break;
          }
          case 2: {  // prefill: reads everything, writes a spare
            State spare(shape);
            sequence.last = spare.data();
            Block(shape)
                .Add(Range(tokens, position, position + rows), sequence)
                .Run();
            position += rows;
            ASSERT_TRUE(SameBits(spare, truth.states[position]));
            state = std::move(spare);
            pending_rows = 0;
            break;
          }
          case 3: {  // slots: a state after each row, the start untouched
            std::vector<State> slots;
            std::vector<float*> each;
            for (int t = 0; t < rows; ++t) {
              slots.emplace_back(shape);
              each.push_back(slots.back().data());
            }
            State start(shape);
            sequence.folded = start.data();
            sequence.each = each.data();
            Block(shape).Add(block, sequence).Run();
            ASSERT_TRUE(SameBits(start, truth.states[position]));
            for (int t = 0; t < right; ++t) {
              ASSERT_TRUE(SameBits(slots[t], truth.states[position + t + 1]));
              ASSERT_TRUE(slots[t].Intact());
            }
            const int keep = random.Int(0, right);
            state = std::move(keep == 0 ? start : slots[keep - 1]);
            position += keep;
            pending_rows = 0;
            break;
          }
          default: {  // journal
            other.Dirty();
            sequence.record = other.View();
            sequence.folded = state.data();
            const std::vector<Floats> out =
                Block(shape).Add(block, sequence).Run();
            ASSERT_TRUE(SameBits(state, truth.states[position]));
            for (int t = 0; t < right; ++t) {
              ASSERT_TRUE(SameBits(out[t], truth.out[position + t]));
            }
            ASSERT_TRUE(other.Intact());
            std::swap(pending, other);
            pending_rows = random.Int(0, right);
            position += pending_rows;
          }
        }
        ASSERT_TRUE(state.Intact());
      }
    }
  });
}

TEST(GdnBlockTest, FoldsJournalsOfAnyLength) {
  constexpr int kTokens = 50;
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, kTokens);
    const Truth truth(shape, State::Random(random, shape), tokens);
    Journal journal(shape, kTokens);
    GdnSequence sequence;
    sequence.state = truth.states[0].data();
    sequence.record = journal.View();
    Block(shape).Add(tokens, sequence).Run();
    for (const int rows : {0, 1, 15, 16, 17, 32, 33, kTokens}) {
      State folded(shape);
      State last(shape);
      GdnSequence fold;
      fold.state = truth.states[0].data();
      fold.fold = journal.View();
      fold.fold_rows = rows;
      fold.folded = folded.data();
      fold.last = last.data();
      Block(shape).Add({}, fold).Run();
      EXPECT_TRUE(SameBits(folded, truth.states[rows])) << rows;
      EXPECT_TRUE(SameBits(last, truth.states[rows])) << rows;
    }
  });
}

TEST(GdnBlockTest, NeitherThreadsNorCompanyChangeABit) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    const int rows[] = {3, 0, 1, 7, 2};
    constexpr int kSequences = 5;
    std::vector<Tokens> tokens;
    std::vector<Truth> truths;
    std::vector<Journal> folds;
    for (const int count : rows) {
      // Two tokens more, which come from a journal.
      tokens.push_back(RandomTokens(random, shape, count + 2));
      truths.emplace_back(shape, State::Random(random, shape), tokens.back());
      folds.emplace_back(shape, 2);
      GdnSequence sequence;
      sequence.state = truths.back().states[0].data();
      sequence.record = folds.back().View();
      Block(shape).Add(Range(tokens.back(), 0, 2), sequence).Run();
    }
    for (size_t threads = 1; threads <= 3; ++threads) {
      SCOPED_TRACE(std::to_string(threads) + " threads");
      const std::unique_ptr<pthreadpool, void (*)(pthreadpool_t)> pool(
          pthreadpool_create(threads), pthreadpool_destroy);
      std::vector<State> folded, last;
      std::vector<Journal> records;
      Block block(shape);
      for (int i = 0; i < kSequences; ++i) {
        folded.emplace_back(shape);
        last.emplace_back(shape);
        records.emplace_back(shape, rows[i]);
        GdnSequence sequence;
        sequence.state = truths[i].states[0].data();
        sequence.fold = folds[i].View();
        sequence.fold_rows = 2;
        sequence.folded = folded.back().data();
        sequence.record = records.back().View();
        sequence.last = last.back().data();
        block.Add(Range(tokens[i], 2, tokens[i].size()), sequence);
      }
      const std::vector<Floats> out = block.Run(pool.get());
      size_t row = 0;
      for (int i = 0; i < kSequences; ++i) {
        EXPECT_TRUE(SameBits(folded[i], truths[i].states[2]));
        EXPECT_TRUE(SameBits(last[i], truths[i].states.back()));
        EXPECT_TRUE(folded[i].Intact() && last[i].Intact());
        for (int t = 0; t < rows[i]; ++t, ++row) {
          EXPECT_TRUE(SameBits(out[row], truths[i].out[t + 2]));
        }
        State replayed(shape);
        GdnSequence replay;
        replay.state = folded[i].data();
        replay.fold = records[i].View();
        replay.fold_rows = rows[i];
        replay.last = replayed.data();
        Block(shape).Add({}, replay).Run();
        EXPECT_TRUE(SameBits(replayed, last[i]));
        EXPECT_TRUE(records[i].Intact());
      }
    }
  });
}

// ------------------------------------------------------- what is written

TEST(GdnBlockTest, WritesNothingThatWasNotAskedFor) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, 3);
    const Truth truth(shape, State::Random(random, shape), tokens);
    State state = State::Of(shape, truth.states[0].Dense(shape));
    Journal fold(shape, 2);
    Journal record(shape, 5);
    GdnSequence sequence;
    sequence.state = state.data();
    sequence.fold = fold.View();  // NaN, and not to be read
    sequence.folded = state.data();
    sequence.record = record.View();
    Block(shape).Add(tokens, sequence).Run();
    EXPECT_TRUE(SameBits(state, truth.states[0]));
    EXPECT_TRUE(state.Intact() && fold.Intact() && record.Intact());
    const auto is_nan = [](float x) { return std::isnan(x); };
    const size_t k_rows = 3u * shape.k_heads * shape.k_dim;
    const size_t u_rows = 3u * shape.v_heads * shape.v_dim;
    const size_t gamma_rows = 3u * shape.v_heads;
    EXPECT_TRUE(std::none_of(record.k.begin(), &record.k[k_rows], is_nan));
    EXPECT_TRUE(std::all_of(&record.k[k_rows], record.k.end(), is_nan));
    EXPECT_TRUE(std::none_of(record.u.begin(), &record.u[u_rows], is_nan));
    EXPECT_TRUE(std::all_of(&record.u[u_rows], record.u.end(), is_nan));
    EXPECT_TRUE(
        std::none_of(record.gamma.begin(), &record.gamma[gamma_rows], is_nan));
    EXPECT_TRUE(
        std::all_of(&record.gamma[gamma_rows], record.gamma.end(), is_nan));
    EXPECT_TRUE(SameBits(record.k.data(),
                         Concatenated(tokens, &Token::k).data(), k_rows));
  });
}

TEST(GdnBlockTest, PaddingStaysZeroAndNullEntriesOfEachAreSkipped) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, 3);
    const Truth truth(shape, State::Random(random, shape), tokens);
    for (const State& state : truth.states) {
      EXPECT_TRUE(state.PaddingIsZero(shape));
    }
    for (int mask = 0; mask < 8; ++mask) {
      std::vector<State> slots;
      std::vector<float*> each;
      for (int t = 0; t < 3; ++t) {
        slots.emplace_back(shape);
        each.push_back(mask >> t & 1 ? slots.back().data() : nullptr);
      }
      State last(shape);
      GdnSequence sequence;
      sequence.state = truth.states[0].data();
      sequence.each = each.data();
      sequence.last = last.data();
      Block(shape).Add(tokens, sequence).Run();
      EXPECT_TRUE(SameBits(last, truth.states[3]));
      for (int t = 0; t < 3; ++t) {
        EXPECT_EQ(SameBits(slots[t], truth.states[t + 1]), each[t] != nullptr);
        EXPECT_TRUE(slots[t].Intact());
      }
    }
  });
}

TEST(GdnBlockTest, WithoutOutTheStatesAreTheSame) {
  ForEachShape([](const GdnShape& shape, Random& random) {
    const Tokens tokens = RandomTokens(random, shape, 4);
    const Truth truth(shape, State::Random(random, shape), tokens);
    State last(shape);
    GdnSequence sequence;
    sequence.state = truth.states[0].data();
    sequence.last = last.data();
    Block(shape).Add(tokens, sequence).Run(nullptr, /*with_out=*/false);
    EXPECT_TRUE(SameBits(last, truth.states[4]));
  });
}

TEST(GdnBlockTest, ABlockWithoutSequencesIsNothing) {
  EXPECT_TRUE(Block(kShapes[0]).Run().empty());
}

TEST(GdnStateTest, ImportAndExportAreInverse) {
  for (const GdnShape& shape : kShapes) {
    SCOPED_TRACE(Name(shape));
    const int tiles = (shape.v_dim + 31) / 32;
    EXPECT_EQ(GdnStateFloats(shape),
              int64_t{shape.v_heads} * tiles * shape.k_dim * 32);
    Random random(1);
    const Floats dense = random.Gaussians(static_cast<size_t>(shape.v_heads) *
                                          shape.k_dim * shape.v_dim);
    const State state = State::Of(shape, dense);
    EXPECT_TRUE(state.Intact());
    EXPECT_TRUE(SameBits(state.Dense(shape), dense));
    for (int h = 0; h < shape.v_heads; ++h) {
      for (int i = 0; i < shape.k_dim; ++i) {
        for (int j = 0; j < tiles * 32; ++j) {
          const float expected =
              j < shape.v_dim ? dense[(h * shape.k_dim + i) * shape.v_dim + j]
                              : 0.0f;
          ASSERT_EQ(
              state[((h * tiles + j / 32) * shape.k_dim + i) * 32 + j % 32],
              expected);
        }
      }
    }
  }
}

// ------------------------------------------------------------------ check

class CheckGdnBlockTest : public ::testing::Test {
 protected:
  static constexpr int kRows =
      3;  // two of the first sequence, one of the other

  CheckGdnBlockTest() {
    for (int i = 0; i < 8; ++i) states_.emplace_back(shape_);
    for (int i = 0; i < 4; ++i) journals_.emplace_back(shape_, 4);
    each_ = {states_[6].data(), states_[7].data()};
    for (int i = 0; i < 2; ++i) {
      sequences_[i].state = states_[3 * i].data();
      sequences_[i].folded = states_[3 * i + 1].data();
      sequences_[i].last = states_[3 * i + 2].data();
      sequences_[i].fold = journals_[2 * i].View();
      sequences_[i].fold_rows = 4;
      sequences_[i].record = journals_[2 * i + 1].View();
    }
    sequences_[0].each = each_.data();
    block_.shape = shape_;
    block_.sequences = 2;
    block_.row_begin = row_begin_;
    block_.q = inputs_[0].data();
    block_.k = inputs_[1].data();
    block_.v = inputs_[2].data();
    block_.log_decay = inputs_[3].data();
    block_.beta = inputs_[4].data();
    block_.q_stride = block_.k_stride = 10;
    block_.v_stride = block_.out_stride = 12;
    block_.sequence = sequences_;
    block_.out = inputs_[5].data();
  }

  void ExpectSound() {
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_TRUE(CheckGdnBlock(block_, &error))
        << error.argument << " [" << error.index << "] " << error.value;
  }

  void ExpectUnsound(const std::string& argument, int64_t index,
                     int64_t value) {
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_FALSE(CheckGdnBlock(block_, &error)) << argument;
    EXPECT_EQ(error.argument, argument);
    EXPECT_EQ(error.index, index) << argument;
    EXPECT_EQ(error.value, value) << argument;
    EXPECT_NE(std::string(error.allowed), "") << argument;
    EXPECT_FALSE(CheckGdnBlock(block_, nullptr)) << argument;
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

  const GdnShape shape_ = {2, 4, 5, 3};
  std::vector<State> states_;
  std::vector<Journal> journals_;
  std::vector<float*> each_;
  std::vector<Floats> inputs_ = std::vector<Floats>(6, Floats(kRows * 12));
  int32_t row_begin_[3] = {0, 2, 3};
  GdnSequence sequences_[2];
  GdnBlock block_;
};

TEST_F(CheckGdnBlockTest, AcceptsWhatIsSound) {
  ExpectSound();
  sequences_[0].folded = states_[0].data();
  ExpectSound();
  block_.out = nullptr;
  block_.q = nullptr;
  block_.q_stride = block_.out_stride = 0;
  ExpectSound();
  each_[1] = nullptr;
  ExpectSound();
  sequences_[1] = GdnSequence();
  sequences_[1].state = states_[5].data();
  ExpectSound();
  row_begin_[1] = row_begin_[2] = 0;
  block_.k = block_.v = block_.log_decay = block_.beta = nullptr;
  ExpectSound();
  block_.sequences = 0;
  block_.sequence = nullptr;
  ExpectSound();
}

TEST_F(CheckGdnBlockTest, NamesUnsoundShapes) {
  Refuses(block_.shape.k_heads, 0, "shape.k_heads", -1, 0);
  Refuses(block_.shape.v_heads, 0, "shape.v_heads", -1, 0);
  Refuses(block_.shape.v_heads, 5, "shape.v_heads", -1, 5);
  Refuses(block_.shape.k_dim, 0, "shape.k_dim", -1, 0);
  Refuses(block_.shape.k_dim, 257, "shape.k_dim", -1, 257);
  Refuses(block_.shape.v_dim, 0, "shape.v_dim", -1, 0);
  Refuses(block_.shape.v_dim, INT32_MAX, "shape.v_dim", -1, INT32_MAX);
  Refuses(block_.shape.v_heads, INT32_MAX - 1, "shape.v_dim", -1, 3);
}

TEST_F(CheckGdnBlockTest, NamesUnsoundRows) {
  Refuses(block_.sequences, -1, "sequences", -1, -1);
  Refuses(block_.row_begin, nullptr, "row_begin", -1, 0);
  Refuses(row_begin_[0], 1, "row_begin[]", 0, 1);
  Refuses(row_begin_[2], 1, "row_begin[]", 2, 1);
  Refuses(block_.sequence, nullptr, "sequence", -1, 0);
}

TEST_F(CheckGdnBlockTest, NamesUnsoundInputs) {
  Refuses(block_.q, nullptr, "q", -1, 0);
  Refuses(block_.k, nullptr, "k", -1, 0);
  Refuses(block_.v, nullptr, "v", -1, 0);
  Refuses(block_.log_decay, nullptr, "log_decay", -1, 0);
  Refuses(block_.beta, nullptr, "beta", -1, 0);
  Refuses(block_.q_stride, 9, "q_stride", -1, 9);
  Refuses(block_.k_stride, 9, "k_stride", -1, 9);
  Refuses(block_.v_stride, 11, "v_stride", -1, 11);
  Refuses(block_.out_stride, 11, "out_stride", -1, 11);
  Refuses(block_.k_stride, INT64_MAX, "k_stride", -1, INT64_MAX);
}

TEST_F(CheckGdnBlockTest, NamesUnsoundSequences) {
  GdnSequence& one = sequences_[1];
  Refuses(one.state, nullptr, "sequence[].state", 1, 0);
  Refuses(one.state, states_[3].data() + 1, "sequence[].state", 1, 4);
  Refuses(one.folded, states_[4].data() + 8, "sequence[].folded", 1, 32);
  Refuses(one.last, states_[5].data() + 15, "sequence[].last", 1, 60);
  Refuses(each_[1], states_[7].data() + 4, "sequence[].each[]", 0, 16);
  Refuses(one.fold_rows, -1, "sequence[].fold_rows", 1, -1);
  Refuses(one.fold.k, nullptr, "sequence[].fold.k", 1, 0);
  Refuses(one.fold.u, nullptr, "sequence[].fold.u", 1, 0);
  Refuses(one.fold.gamma, nullptr, "sequence[].fold.gamma", 1, 0);
  Refuses(one.record.u, nullptr, "sequence[].record.u", 1, 0);
  Refuses(one.record.gamma, nullptr, "sequence[].record.gamma", 1, 0);
}

TEST_F(CheckGdnBlockTest, NamesOverlaps) {
  GdnSequence& one = sequences_[1];
  // Within a sequence.
  Refuses(one.last, states_[3].data(), "sequence[].last", 1, 1);
  Refuses(one.last, states_[4].data(), "sequence[].last", 1, 1);
  Refuses(each_[0], states_[0].data(), "sequence[].each[]", 0, 0);
  Refuses(each_[1], each_[0], "sequence[].each[]", 0, 0);
  Refuses(one.record.k, one.fold.k, "sequence[].record.k", 1, 1);
  Refuses(one.record.u, one.fold.u + 1, "sequence[].record.u", 1, 1);
  Refuses(one.record.gamma, one.fold.gamma, "sequence[].record.gamma", 1, 1);
  // In part.
  Refuses(one.folded, states_[3].data() + 16, "sequence[].folded", 1, 1);
  // Between sequences.
  Refuses(one.state, states_[1].data(), "sequence[].state", 1, 0);
  Refuses(one.folded, states_[0].data(), "sequence[].folded", 1, 0);
  Refuses(one.last, each_[1], "sequence[].last", 1, 0);
  Refuses(one.fold.u, sequences_[0].record.u, "sequence[].fold.u", 1, 0);
  Refuses(one.record.u, sequences_[0].record.u, "sequence[].record.u", 1, 0);
  // With the block's own.
  Refuses(block_.out, inputs_[2].data(), "out", -1, -1);
  Refuses(block_.out, inputs_[1].data() + 5, "out", -1, -1);
  Refuses(one.record.u, inputs_[2].data(), "sequence[].record.u", 1, -1);
  // A state that nobody writes may be shared.
  sequences_[0].state = states_[3].data();
  ExpectSound();
}

}  // namespace
}  // namespace deltaedge
