// SPDX-License-Identifier: Apache-2.0

// What is sampled is distributed as the target says, whatever is drafted. Every
// test has fixed seeds, so it passes always or never; the bounds are those that
// a right sampler exceeds once in a thousand choices of seed.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/sampling/acceptance.h"
#include "engine/sampling/sampler.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::Random;

constexpr int kVocab = 5;
constexpr int kDraws = 20000;
constexpr float kNever = -1e4f;

using Distribution = std::vector<double>;  // [kVocab]

// By degrees of freedom, for p = 0.001.
constexpr double kBound[] = {0.0, 10.83, 13.82, 16.27, 18.47};

// `counts` of draws against what is expected; a token without probability must
// not occur at all.
void ExpectDrawnFrom(const Distribution& expected,
                     const std::vector<int>& counts, const std::string& what) {
  int draws = 0;
  for (const int count : counts) draws += count;
  ASSERT_GT(draws, 500) << what;
  double chi_square = 0.0;
  int freedom = -1;
  for (int token = 0; token < kVocab; ++token) {
    if (expected[token] == 0.0) {
      EXPECT_EQ(counts[token], 0) << what << ", token " << token;
      continue;
    }
    const double mean = expected[token] * draws;
    chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
    ++freedom;
  }
  if (freedom > 0) {
    EXPECT_LT(chi_square, kBound[freedom]) << what;
  }
}

// The distribution of the token that follows, by the last one: [kVocab].
using Chain = std::vector<Distribution>;

const Distribution kFirst = {0.4, 0.3, 0.2, 0.1, 0.0};

// Token 4 never follows anything.
Chain TestChain() {
  return {kFirst,
          {0.1, 0.2, 0.3, 0.4, 0.0},
          {0.25, 0.25, 0.25, 0.25, 0.0},
          {0.7, 0.1, 0.1, 0.1, 0.0},
          {0.2, 0.2, 0.2, 0.4, 0.0}};
}

// Drafts the next token, given the one before.
class TokenDrafter {
 public:
  enum class Kind { kNone, kFixed, kNever, kOther };

  explicit TokenDrafter(Kind kind) : kind_(kind), random_(77) {}

  int count() const { return kind_ == Kind::kNone ? 0 : 3; }

  TokenId Draft() {
    if (kind_ == Kind::kFixed) return 1;
    if (kind_ == Kind::kNever) return 4;
    // Drawn from (0.1, 0.1, 0.1, 0.3, 0.4), in which nothing agrees.
    const int tenth = random_.Int(0, 9);
    return tenth < 3 ? tenth : tenth < 6 ? 3 : 4;
  }

 private:
  const Kind kind_;
  Random random_;
};

constexpr TokenDrafter::Kind kDrafters[] = {
    TokenDrafter::Kind::kNone, TokenDrafter::Kind::kFixed,
    TokenDrafter::Kind::kNever, TokenDrafter::Kind::kOther};

using ScoreTable = std::vector<std::vector<float>>;  // [kVocab, kVocab]

ScoreTable Scores(const Chain& chain) {
  ScoreTable table;
  for (const Distribution& row : chain) {
    table.emplace_back();
    for (const double p : row) {
      table.back().push_back(p == 0.0 ? kNever
                                      : static_cast<float>(std::log(p)));
    }
  }
  return table;
}

// One block after `last`.
Acceptance Block(const ScoreTable& table, TokenId last, int64_t position,
                 TokenDrafter* drafter, Sampler* sampler) {
  std::vector<TokenId> drafts;
  std::vector<float> scores = table[last];
  for (int i = 0; i < drafter->count(); ++i) {
    drafts.push_back(drafter->Draft());
    const std::vector<float>& row = table[drafts.back()];
    scores.insert(scores.end(), row.begin(), row.end());
  }
  const int32_t rows = 1 + static_cast<int32_t>(drafts.size());
  std::vector<ArgMax> best(rows);
  ArgMaxRows(rows, kVocab, scores.data(), kVocab, best.data(), nullptr);
  return AcceptDrafts(best, scores.data(), kVocab, drafts, position, sampler);
}

// The first two tokens after token 0 of answers with many seeds: the first from
// `first`, the second from the row of `second` for the first.
void CheckTwoTokens(const SamplingOptions& options, const Distribution& first,
                    const Chain& second) {
  const ScoreTable scores = Scores(TestChain());
  for (const TokenDrafter::Kind kind : kDrafters) {
    TokenDrafter drafter(kind);
    Sampler sampler;
    std::vector<int> singles(kVocab, 0);
    std::vector<std::vector<int>> pairs(kVocab, singles);
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      sampler.Start(options, seed, {0});
      std::vector<TokenId> sequence = {0};
      while (sequence.size() < 3) {
        for (const TokenId token :
             Block(scores, sequence.back(),
                   static_cast<int64_t>(sequence.size()), &drafter, &sampler)
                 .tokens) {
          sequence.push_back(token);
          sampler.Push(token);
        }
      }
      ++singles[sequence[1]];
      ++pairs[sequence[1]][sequence[2]];
    }
    const std::string what =
        "drafter " + std::to_string(static_cast<int>(kind));
    ExpectDrawnFrom(first, singles, what);
    for (TokenId token = 0; token < kVocab; ++token) {
      if (first[token] == 0.0) continue;
      ExpectDrawnFrom(second[token], pairs[token],
                      what + ", after token " + std::to_string(token));
    }
  }
}

TEST(DistributionTest, IsTheTargets) {
  SamplingOptions options;
  options.temperature = 1.0f;
  CheckTwoTokens(options, kFirst, TestChain());
}

TEST(DistributionTest, IsTheTargetsAtATemperature) {
  SamplingOptions options;
  options.temperature = 2.0f;
  Chain expected = TestChain();
  for (Distribution& row : expected) {
    double sum = 0.0;
    for (double& p : row) sum += (p = std::sqrt(p));
    for (double& p : row) p /= sum;
  }
  CheckTwoTokens(options, expected[0], expected);
}

TEST(DistributionTest, IsTheTargetsWithTopK) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_k = 2;
  const Chain expected = {{4.0 / 7, 3.0 / 7, 0.0, 0.0, 0.0},
                          {0.0, 0.0, 3.0 / 7, 4.0 / 7, 0.0},
                          {0.5, 0.5, 0.0, 0.0, 0.0},
                          {0.875, 0.125, 0.0, 0.0, 0.0},
                          {0.0, 0.0, 0.0, 1.0, 0.0}};
  CheckTwoTokens(options, expected[0], expected);
}

TEST(DistributionTest, IsTheTargetsWithTopP) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_p = 0.85f;
  const Chain expected = {{4.0 / 9, 3.0 / 9, 2.0 / 9, 0.0, 0.0},
                          {0.0, 2.0 / 9, 3.0 / 9, 4.0 / 9, 0.0},
                          {0.25, 0.25, 0.25, 0.25, 0.0},
                          {7.0 / 9, 1.0 / 9, 1.0 / 9, 0.0, 0.0},
                          {0.0, 0.0, 0.0, 0.0, 0.0}};
  CheckTwoTokens(options, expected[0], expected);
}

TEST(DistributionTest, IsTheTargetsWithMinP) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.min_p = 0.6f;
  const Chain expected = {{4.0 / 7, 3.0 / 7, 0.0, 0.0, 0.0},
                          {0.0, 0.0, 3.0 / 7, 4.0 / 7, 0.0},
                          {0.25, 0.25, 0.25, 0.25, 0.0},
                          {1.0, 0.0, 0.0, 0.0, 0.0},
                          {0.0, 0.0, 0.0, 1.0, 0.0}};
  CheckTwoTokens(options, expected[0], expected);
}

// A presence penalty of log 2 halves the odds of what the answer has: of the
// second token's row, those of the first token.
TEST(DistributionTest, IsTheTargetsWithAPenalty) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.presence_penalty = std::log(2.0f);
  Chain expected = TestChain();
  for (int token = 0; token < kVocab; ++token) {
    Distribution& row = expected[token];
    row[token] /= 2.0;
    double sum = 0.0;
    for (const double p : row) sum += p;
    for (double& p : row) p /= sum;
  }
  CheckTwoTokens(options, kFirst, expected);
}

// One seed, one long answer: neighbours of equal rows have nothing to do with
// each other.
TEST(DistributionTest, PositionsAreIndependent) {
  const ScoreTable scores = Scores(Chain(kVocab, kFirst));
  SamplingOptions options;
  options.temperature = 1.0f;
  for (const TokenDrafter::Kind kind : kDrafters) {
    TokenDrafter drafter(kind);
    Sampler sampler;
    sampler.Start(options, /*seed=*/4, {0});
    std::vector<TokenId> answer;
    while (answer.size() < kDraws) {
      for (const TokenId token :
           Block(scores, 0, answer.size(), &drafter, &sampler).tokens) {
        answer.push_back(token);
      }
    }
    std::vector<int> singles(kVocab, 0);
    std::vector<std::vector<int>> pairs(kVocab, singles);
    for (int i = 0; i < kDraws; i += 2) {
      ++singles[answer[i]];
      ++pairs[answer[i]][answer[i + 1]];
    }
    ExpectDrawnFrom(kFirst, singles, "every other token");
    double chi_square = 0.0;
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        const double mean = kFirst[a] * kFirst[b] * (kDraws / 2);
        chi_square += (pairs[a][b] - mean) * (pairs[a][b] - mean) / mean;
      }
    }
    EXPECT_LT(chi_square, 37.7);  // 15 df, p = 0.001.
  }
}

}  // namespace
}  // namespace deltaedge
