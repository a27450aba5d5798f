// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/base/fp_mode.h"
#include "engine/sampling/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::Random;
using ::testing::ElementsAre;

// What the header says, word by word, with everything sorted and kept.
TokenId Reference(const SamplingOptions& options, uint64_t seed,
                  const std::vector<TokenId>& sequence,
                  const std::vector<TokenId>& answer,
                  const std::vector<float>& scores, int64_t position) {
  const int size = static_cast<int>(scores.size());
  std::vector<double> s(scores.begin(), scores.end());
  std::set<TokenId> seen(sequence.begin(), sequence.end());
  seen.insert(answer.begin(), answer.end());
  for (const TokenId token : seen) {
    const double r = std::max(options.repetition_penalty, FLT_MIN);
    s[token] = s[token] > 0 ? s[token] / r : s[token] * r;
  }
  std::map<TokenId, int> counts;
  for (const TokenId token : answer) ++counts[token];
  for (const auto& [token, n] : counts) {
    s[token] -= options.presence_penalty;
    s[token] -= static_cast<double>(options.frequency_penalty) * n;
  }
  for (const LogitBias& bias : options.logit_bias) s[bias.token] += bias.bias;

  std::vector<TokenId> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&s](TokenId a, TokenId b) { return s[a] > s[b]; });
  if (options.temperature < FLT_MIN) return order[0];

  std::vector<double> x;
  std::vector<int64_t> weights;
  for (const TokenId token : order) {
    x.push_back((s[token] - s[order[0]]) * (1.0 / options.temperature));
    weights.push_back(
        static_cast<int64_t>(std::floor(0x1p62 / size * std::exp(x.back()))));
  }
  const auto sum = [&weights](int count) {
    return std::accumulate(weights.begin(), weights.begin() + count,
                           int64_t{0});
  };
  int left = size;
  if (options.top_k > 0) left = std::min(left, options.top_k);
  if (options.top_p < 1.0f) {
    const double share = static_cast<double>(options.top_p) * sum(left);
    const int64_t needed =
        std::min(static_cast<int64_t>(std::ceil(share)), sum(left));
    int fewest = 1;
    for (int64_t have = weights[0]; have < needed;) have += weights[fewest++];
    left = fewest;
  }
  if (options.min_p > 0.0f) {
    while (x[left - 1] < std::log(static_cast<double>(options.min_p))) --left;
  }
  const int64_t drawn =
      std::min(static_cast<int64_t>(UniformAt(seed, position) * sum(left)),
               sum(left) - 1);
  int pick = 0;
  for (int64_t have = weights[0]; have <= drawn;) have += weights[++pick];
  return order[pick];
}

std::vector<float> RandomScores(int size, Random* random) {
  switch (random->Int(0, 8)) {
    case 0:
      return std::vector<float>(size, 1.5f);
    case 1:
      return random->Uniforms(size, -FLT_MAX, FLT_MAX);
    case 2:
      return random->Gaussians(size, 1e-30f);
    case 3:
      return random->Gaussians(size, 1e6f);
    case 4: {
      std::vector<float> scores(size);
      for (float& score : scores) score = random->OneIn(2) ? -0.0f : 0.0f;
      return scores;
    }
    case 5: {
      std::vector<float> scores(size);
      for (float& score : scores) score = random->Int(-3, 3);
      return scores;
    }
    default:
      return random->Gaussians(size, random->Uniform(0.5f, 8.0f));
  }
}

SamplingOptions RandomOptions(int size, Random* random) {
  SamplingOptions options;
  if (!random->OneIn(6)) options.temperature = random->Uniform(0.05f, 2.0f);
  if (random->OneIn(12)) options.temperature = random->Uniform(0.0f, 1e-6f);
  if (random->OneIn(12)) options.temperature = random->Uniform(50.0f, 100.0f);
  if (random->OneIn(2)) options.top_k = random->Int(1, size + 1);
  if (random->OneIn(2)) options.top_p = random->Uniform(0.01f, 1.0f);
  if (random->OneIn(12)) options.top_p = FLT_MIN;
  if (random->OneIn(3)) options.min_p = random->Uniform(0.0f, 0.5f);
  if (random->OneIn(12)) options.min_p = 1.0f;
  if (random->OneIn(3)) {
    options.repetition_penalty = random->Uniform(0.3f, 2.0f);
  }
  if (random->OneIn(3)) options.presence_penalty = random->Uniform(-2.0f, 2.0f);
  if (random->OneIn(3)) {
    options.frequency_penalty = random->Uniform(-1.0f, 1.0f);
  }
  for (TokenId token = size - 1; token >= 0; --token) {
    if (random->OneIn(size)) {
      options.logit_bias.push_back({token, random->Uniform(-5.0f, 5.0f)});
    }
  }
  return options;
}

std::vector<TokenId> RandomTokens(int count, int size, Random* random) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = random->Int(0, size - 1);
  return tokens;
}

std::string Describe(const SamplingOptions& o) {
  std::string text = "T " + std::to_string(o.temperature) + " k " +
                     std::to_string(o.top_k) + " p " + std::to_string(o.top_p) +
                     " min_p " + std::to_string(o.min_p) + " r " +
                     std::to_string(o.repetition_penalty) + " presence " +
                     std::to_string(o.presence_penalty) + " frequency " +
                     std::to_string(o.frequency_penalty);
  for (const LogitBias& bias : o.logit_bias) {
    text += " " + std::to_string(bias.token) + ":" + std::to_string(bias.bias);
  }
  return text;
}

TokenId PickOnce(const SamplingOptions& options,
                 const std::vector<float>& scores, int64_t position = 0) {
  Sampler sampler;
  sampler.Start(options, /*seed=*/1, {});
  return sampler.Pick(scores, position);
}

// The tokens that come up in many draws.
std::set<TokenId> Drawn(Sampler sampler, const std::vector<float>& scores) {
  std::set<TokenId> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(sampler.Pick(scores, i));
  return drawn;
}

std::vector<float> Logs(const std::vector<float>& probabilities) {
  std::vector<float> scores;
  for (const float p : probabilities) scores.push_back(std::log(p));
  return scores;
}

TEST(SamplerTest, PicksWhatTheDefinitionPicks) {
  Random random(1);
  int not_the_best = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int sizes[] = {1, 2, 5, 33, 300};
    const int size = sizes[random.Int(0, 4)];
    const SamplingOptions options = RandomOptions(size, &random);
    const uint64_t seed = random.Bits();
    const std::vector<TokenId> sequence =
        RandomTokens(random.Int(0, 8), size, &random);
    Sampler sampler;
    sampler.Start(options, seed, sequence);
    std::vector<TokenId> answer;
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> scores = RandomScores(size, &random);
      const int64_t position = static_cast<int64_t>(random.Bits() >> 1);
      const TokenId pick = sampler.Pick(scores, position);
      ASSERT_EQ(pick,
                Reference(options, seed, sequence, answer, scores, position))
          << "trial " << trial << ", " << size << " tokens, "
          << Describe(options);
      const auto best = std::max_element(scores.begin(), scores.end());
      if (sampler.greedy()) {
        ASSERT_EQ(pick, best - scores.begin());
      }
      not_the_best += scores[pick] < *best;
      answer.push_back(pick);
      sampler.Push(pick);
    }
  }
  EXPECT_GT(not_the_best, 1500);
}

TEST(SamplerTest, PicksWhatTheDefinitionPicksFromALargeVocabulary) {
  Random random(2);
  constexpr int kSize = 60001;
  const std::vector<float> wide = random.Gaussians(kSize, 4.0f);
  const std::vector<float> equal(kSize, -3.0f);
  std::vector<float> rising(kSize);
  std::iota(rising.begin(), rising.end(), 0.0f);
  for (const std::vector<float>& scores : {wide, equal, rising}) {
    for (const int32_t top_k : {0, 20, 25000}) {
      for (const float top_p : {0.9f, 1.0f}) {
        SamplingOptions options;
        options.temperature = 1.2f;
        options.top_k = top_k;
        options.top_p = top_p;
        EXPECT_EQ(PickOnce(options, scores, 7),
                  Reference(options, 1, {}, {}, scores, 7))
            << Describe(options);
      }
    }
  }
}

TEST(SamplerTest, IsGreedyUntilToldOtherwise) {
  Sampler sampler;
  EXPECT_TRUE(sampler.greedy());
  EXPECT_EQ(sampler.Pick({1.0f, 3.0f, 3.0f, 2.0f}, 0), 1);
  sampler.Start(SamplingOptions(), 5, {1, 2});
  EXPECT_TRUE(sampler.greedy());
  SamplingOptions filtered;
  filtered.top_k = 3;
  filtered.top_p = 0.5f;
  filtered.min_p = 0.5f;
  sampler.Start(filtered, 5, {1, 2});
  EXPECT_TRUE(sampler.greedy());
}

TEST(SamplerTest, AnyRuleOfTheFirstStepsEndsGreedy) {
  SamplingOptions options[5];
  options[0].temperature = 0.1f;
  options[1].repetition_penalty = 0.9f;
  options[2].presence_penalty = 0.1f;
  options[3].frequency_penalty = -0.1f;
  options[4].logit_bias = {{0, 1.0f}};
  for (const SamplingOptions& o : options) {
    Sampler sampler;
    sampler.Start(o, 1, {});
    EXPECT_FALSE(sampler.greedy()) << Describe(o);
    sampler.Start(SamplingOptions(), 1, {});
    EXPECT_TRUE(sampler.greedy());
    EXPECT_EQ(sampler.Pick({1.0f, 0.5f}, 0), 0);
  }
}

TEST(SamplerTest, RepetitionPenaltyIsForAllOfTheSequence) {
  SamplingOptions options;
  options.repetition_penalty = 2.0f;
  Sampler sampler;
  sampler.Start(options, 1, {0, 0});
  EXPECT_EQ(sampler.Pick({3.0f, 2.0f, 1.0f}, 0), 1);     // 1.5 2 1
  EXPECT_EQ(sampler.Pick({-1.0f, -1.5f, -3.0f}, 0), 1);  // -2 -1.5 -3
  sampler.Push(1);
  EXPECT_EQ(sampler.Pick({3.0f, 2.0f, 1.0f}, 0), 0);     // 1.5 1 1
  EXPECT_EQ(sampler.Pick({3.0f, 2.0f, 1.75f}, 0), 2);    // 1.5 1 1.75
  EXPECT_EQ(sampler.Pick({-1.0f, -1.5f, -3.0f}, 0), 0);  // -2 -3 -3
}

TEST(SamplerTest, PresenceAndFrequencyAreForTheAnswer) {
  SamplingOptions options;
  options.presence_penalty = 1.0f;
  Sampler sampler;
  sampler.Start(options, 1, {0, 0});
  EXPECT_EQ(sampler.Pick({3.0f, 2.5f}, 0), 0);
  sampler.Push(0);
  EXPECT_EQ(sampler.Pick({3.0f, 2.5f}, 0), 1);
  sampler.Push(0);
  EXPECT_EQ(sampler.Pick({3.0f, 1.5f}, 0), 0);  // Once, however often.

  options.presence_penalty = 0.0f;
  options.frequency_penalty = 1.0f;
  sampler.Start(options, 1, {0, 0});
  sampler.Push(0);
  EXPECT_EQ(sampler.Pick({3.0f, 1.5f}, 0), 0);
  sampler.Push(0);
  EXPECT_EQ(sampler.Pick({3.0f, 1.5f}, 0), 1);
}

TEST(SamplerTest, BiasIsAddedAfterThePenalties) {
  SamplingOptions options;
  options.repetition_penalty = 2.0f;
  options.logit_bias = {{2, -1e4f}, {0, 4.0f}};
  Sampler sampler;
  sampler.Start(options, 1, {0});
  // 2 / 2 + 4 and not (2 + 4) / 2.
  EXPECT_EQ(sampler.Pick({2.0f, 4.0f, 9.0f}, 0), 0);
}

TEST(SamplerTest, PenaltiesComeBeforeTheTemperature) {
  SamplingOptions options;
  options.temperature = 0.1f;
  options.top_k = 1;
  options.presence_penalty = 1.0f;
  Sampler sampler;
  sampler.Start(options, 1, {});
  sampler.Push(0);
  EXPECT_EQ(sampler.Pick({2.0f, 1.5f}, 0), 1);
}

TEST(SamplerTest, TopKComesBeforeTopP) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_k = 2;
  options.top_p = 0.5f;  // Of 4/7 and 3/7, the first will do.
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, Logs({0.4f, 0.3f, 0.2f, 0.1f})), ElementsAre(0));
}

TEST(SamplerTest, TopPComesBeforeMinP) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_p = 0.71f;  // Three; of 5/7 and 2/7 it would be one.
  options.min_p = 0.35f;
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, Logs({0.5f, 0.2f, 0.1f, 0.1f, 0.1f})),
              ElementsAre(0, 1));
}

TEST(SamplerTest, TheTemperatureCountsInTopPAndMinP) {
  const std::vector<float> scores = Logs({0.6f, 0.3f, 0.1f});
  SamplingOptions options;
  options.temperature = 0.5f;  // 36, 9 and 1 of 46.
  options.top_p = 0.75f;
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, scores), ElementsAre(0));
  options.top_p = 1.0f;
  options.min_p = 0.2f;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, scores), ElementsAre(0, 1));
}

TEST(SamplerTest, TheLowestIdsStayAmongEquals) {
  const std::vector<float> scores = {1.0f, 2.0f, 2.0f, 1.0f, 2.0f, 2.0f};
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_k = 3;
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, scores), ElementsAre(1, 2, 4));
  options.top_k = 0;
  options.top_p = 0.35f;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, scores), ElementsAre(1, 2));
  options.top_p = 1.0f;
  options.min_p = 1.0f;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, scores), ElementsAre(1, 2, 4, 5));
}

TEST(SamplerTest, ASumThatEqualsTopPReachesIt) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_p = 0.5f;
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, {3.0f, 3.0f}), ElementsAre(0));
  EXPECT_THAT(Drawn(sampler, {3.0f, 3.0f, 3.0f, 3.0f}), ElementsAre(0, 1));
}

TEST(SamplerTest, MinusZeroEqualsZero) {
  EXPECT_EQ(PickOnce(SamplingOptions(), {-0.0f, 0.0f}), 0);
  SamplingOptions options;
  options.temperature = 1.0f;
  options.top_k = 1;
  EXPECT_EQ(PickOnce(options, {-1.0f, -0.0f, 0.0f}), 1);
}

TEST(SamplerTest, NoTemperatureIsTooLow) {
  const float denormal = 1e-40f;
  ASSERT_EQ(std::fpclassify(denormal), FP_SUBNORMAL);
  const std::vector<std::vector<float>> rows = {
      {-1.0f, 1.0f, std::nextafter(1.0f, 0.0f)},
      {-FLT_MAX, FLT_MAX, 0.0f},
      {-FLT_MAX, -1e38f, -2e38f},
      {0.0f, FLT_MIN, -FLT_MIN},
  };
  for (const bool flush : {false, true}) {
    for (const float temperature : {denormal, FLT_MIN, 1e-30f}) {
      for (const std::vector<float>& row : rows) {
        SamplingOptions options;
        options.temperature = temperature;
        Sampler sampler;
        sampler.Start(options, 1, {});
        if (flush) {
          const ScopedFpMode fp_mode;
          EXPECT_EQ(sampler.Pick(row, 3), 1) << temperature;
        } else {
          EXPECT_EQ(sampler.Pick(row, 3), 1) << temperature;
        }
      }
    }
  }
  // Equal scores have equal chances at any temperature that is one.
  SamplingOptions options;
  options.temperature = FLT_MIN;
  Sampler sampler;
  sampler.Start(options, 1, {});
  EXPECT_THAT(Drawn(sampler, {1.0f, 2.0f, 2.0f}), ElementsAre(1, 2));
  options.temperature = denormal;
  sampler.Start(options, 1, {});
  EXPECT_TRUE(sampler.greedy());
  EXPECT_THAT(Drawn(sampler, {1.0f, 2.0f, 2.0f}), ElementsAre(1));
}

TEST(SamplerTest, NoPenaltyIsTooStrong) {
  for (const float penalty : {1e-40f, FLT_MIN, 100.0f}) {
    for (const float temperature : {0.0f, 1e-40f, FLT_MIN, 1.0f}) {
      SamplingOptions options;
      options.temperature = temperature;
      options.repetition_penalty = penalty;
      options.logit_bias = {{2, -FLT_MAX}};
      const std::vector<TokenId> sequence = {0, 2};
      const std::vector<float> scores = {FLT_MAX, FLT_MAX, -FLT_MAX, 0.0f};
      const ScopedFpMode fp_mode;
      Sampler sampler;
      sampler.Start(options, 1, sequence);
      EXPECT_EQ(sampler.Pick(scores, 0), penalty < 1.0f ? 0 : 1);
    }
  }
}

TEST(SamplerTest, WhatCannotBeDrawnIsNotDrawn) {
  // 0x1p62 / 2 * exp(-42.2) is above 1, with -42.4 it is below.
  SamplingOptions options;
  options.temperature = 1.0f;
  for (const float low : {-42.4f, -43.5f, -1e4f, -FLT_MAX}) {
    Sampler sampler;
    sampler.Start(options, 1, {});
    EXPECT_THAT(Drawn(sampler, {low, 0.0f}), ElementsAre(1)) << low;
  }
}

TEST(SamplerTest, PopTakesBackPush) {
  Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    constexpr int kSize = 12;
    SamplingOptions options = RandomOptions(kSize, &random);
    options.frequency_penalty = 0.7f;
    const std::vector<TokenId> sequence = RandomTokens(5, kSize, &random);
    Sampler sampler;
    sampler.Start(options, 9, sequence);
    std::vector<TokenId> answer;
    for (int step = 0; step < 20; ++step) {
      if (!answer.empty() && random.OneIn(2)) {
        answer.pop_back();
        sampler.Pop();
      } else {
        answer.push_back(random.Int(0, kSize - 1));
        sampler.Push(answer.back());
      }
      const std::vector<float> scores = random.Gaussians(kSize, 2.0f);
      ASSERT_EQ(sampler.Pick(scores, step),
                Reference(options, 9, sequence, answer, scores, step));
    }
  }
}

TEST(SamplerTest, ACopyGoesOnAlone) {
  SamplingOptions options;
  options.frequency_penalty = 1.0f;
  Sampler sampler;
  sampler.Start(options, 1, {});
  sampler.Push(0);
  Sampler copy = sampler;
  copy.Push(0);
  EXPECT_EQ(sampler.Pick({3.0f, 1.5f}, 0), 0);
  EXPECT_EQ(copy.Pick({3.0f, 1.5f}, 0), 1);
  copy.Pop();
  EXPECT_EQ(copy.Pick({3.0f, 1.5f}, 0), 0);
}

TEST(SamplerTest, SeedAndPositionDecide) {
  const std::vector<float> scores(50, 0.0f);
  SamplingOptions options;
  options.temperature = 1.0f;
  std::set<std::vector<TokenId>> answers;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Sampler sampler;
    sampler.Start(options, seed, {});
    std::vector<TokenId> answer(10);
    for (int i = 9; i >= 0; --i) answer[i] = sampler.Pick(scores, i);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(sampler.Pick(scores, i), answer[i]);
    }
    answers.insert(answer);
  }
  EXPECT_EQ(answers.size(), 20u);
}

}  // namespace
}  // namespace deltaedge
