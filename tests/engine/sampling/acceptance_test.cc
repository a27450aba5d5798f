// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/acceptance.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::Random;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<ArgMax> Picks(const std::vector<TokenId>& ids) {
  std::vector<ArgMax> picks;
  for (const TokenId id : ids) picks.push_back({id, 1.0f, true});
  return picks;
}

// A greedy sampler reads no scores.
Acceptance AcceptGreedily(const std::vector<ArgMax>& picks,
                          const std::vector<TokenId>& drafts) {
  Sampler greedy;
  return AcceptDrafts(picks, /*scores=*/nullptr, /*vocab_size=*/0, drafts,
                      /*position=*/0, &greedy);
}

TEST(AcceptanceTest, WithoutDraftsTheTargetPicksOne) {
  const Acceptance result = AcceptGreedily(Picks({7}), {});
  EXPECT_EQ(result.accepted, 0);
  EXPECT_THAT(result.tokens, ElementsAre(7));
  EXPECT_FALSE(result.broken);
}

TEST(AcceptanceTest, AllAcceptedBringsABonus) {
  const Acceptance result = AcceptGreedily(Picks({1, 2, 3, 4}), {1, 2, 3});
  EXPECT_EQ(result.accepted, 3);
  EXPECT_THAT(result.tokens, ElementsAre(1, 2, 3, 4));
}

TEST(AcceptanceTest, NoneAcceptedBringsTheCorrection) {
  const Acceptance result = AcceptGreedily(Picks({1, 2, 3, 4}), {9, 2, 3});
  EXPECT_EQ(result.accepted, 0);
  EXPECT_THAT(result.tokens, ElementsAre(1));
}

// Matches after the first wrong draft come from a sequence that is not ours.
TEST(AcceptanceTest, CountsTheMatchingPrefixAndNotTheMatches) {
  for (int32_t wrong = 0; wrong < 7; ++wrong) {
    const std::vector<TokenId> truth = {10, 11, 12, 13, 14, 15, 16, 17};
    std::vector<TokenId> drafts(truth.begin(), truth.end() - 1);
    drafts[wrong] = 99;
    const Acceptance result = AcceptGreedily(Picks(truth), drafts);
    EXPECT_EQ(result.accepted, wrong);
    EXPECT_THAT(result.tokens,
                ElementsAreArray(absl::MakeConstSpan(truth).first(wrong + 1)));
  }
}

TEST(AcceptanceTest, BrokenScoresEndTheBlockWherePlainDecodingWouldStop) {
  for (size_t bad = 0; bad < 4; ++bad) {
    std::vector<ArgMax> picks = Picks({1, 2, 3, 4});
    picks[bad].finite = false;
    const Acceptance result = AcceptGreedily(picks, {1, 2, 3});
    EXPECT_TRUE(result.broken);
    EXPECT_EQ(result.tokens.size(), bad);
    EXPECT_EQ(result.accepted, static_cast<int32_t>(bad));
  }
}

TEST(AcceptanceTest, BrokenScoresInARowThatDoesNotCountDoNotMatter) {
  std::vector<ArgMax> picks = Picks({1, 2, 3, 4});
  picks[2].finite = false;
  const Acceptance result = AcceptGreedily(picks, {1, 9, 3});
  EXPECT_FALSE(result.broken);
  EXPECT_THAT(result.tokens, ElementsAre(1, 2));
}

TEST(AcceptanceTest, BrokenAnchorRowLeavesNothing) {
  std::vector<ArgMax> picks = Picks({1});
  picks[0].finite = false;
  EXPECT_THAT(AcceptGreedily(picks, {}).tokens, IsEmpty());
}

// Rows of scores [rows, vocab] with their best.
struct Rows {
  explicit Rows(std::vector<std::vector<float>> rows) {
    vocab_size = static_cast<int32_t>(rows[0].size());
    for (const std::vector<float>& row : rows) {
      scores.insert(scores.end(), row.begin(), row.end());
    }
    best.resize(rows.size());
    ArgMaxRows(static_cast<int32_t>(rows.size()), vocab_size, scores.data(),
               vocab_size, best.data(), nullptr);
  }

  Acceptance Accept(const std::vector<TokenId>& drafts, int64_t position,
                    Sampler* sampler) const {
    return AcceptDrafts(best, scores.data(), vocab_size, drafts, position,
                        sampler);
  }

  int32_t vocab_size;
  std::vector<float> scores;
  std::vector<ArgMax> best;
};

TEST(AcceptanceTest, APickSeesTheDraftsBeforeItAndLeavesNoTrace) {
  SamplingOptions options;
  options.presence_penalty = 10.0f;
  Sampler sampler;
  sampler.Start(options, 1, {0});
  const std::vector<float> row = {4.0f, 3.0f, 2.0f, 1.0f};
  const Rows rows({row, row, row, row});
  for (int round = 0; round < 2; ++round) {
    const Acceptance result = rows.Accept({0, 1, 2}, 1, &sampler);
    EXPECT_EQ(result.accepted, 3);
    EXPECT_THAT(result.tokens, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(rows.Accept({0, 0, 1}, 1, &sampler).tokens, ElementsAre(0, 1));
  }
  sampler.Push(0);
  EXPECT_THAT(rows.Accept({1, 0, 1}, 2, &sampler).tokens, ElementsAre(1, 2));
}

TEST(AcceptanceTest, RowsBehindTheFirstWrongDraftAreNotLookedAt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SamplingOptions options;
  options.logit_bias = {{0, 5.0f}};
  Sampler sampler;
  sampler.Start(options, 1, {});
  const Rows rows({{1.0f, 2.0f}, {1.0f, 9.0f}, {nan, 0.0f}});
  EXPECT_THAT(rows.Accept({0, 0}, 1, &sampler).tokens, ElementsAre(0, 1));
  EXPECT_FALSE(rows.Accept({0, 0}, 1, &sampler).broken);
  const Acceptance broken = rows.Accept({0, 1}, 1, &sampler);
  EXPECT_TRUE(broken.broken);
  EXPECT_EQ(broken.accepted, 2);
  EXPECT_THAT(broken.tokens, ElementsAre(0, 1));
}

SamplingOptions RandomOptions(Random* random) {
  SamplingOptions options;
  if (!random->OneIn(4)) options.temperature = random->Uniform(0.2f, 1.5f);
  if (random->OneIn(2)) options.top_k = random->Int(1, 8);
  if (random->OneIn(2)) options.top_p = random->Uniform(0.3f, 1.0f);
  if (random->OneIn(3)) options.min_p = random->Uniform(0.0f, 0.3f);
  if (random->OneIn(2)) {
    options.repetition_penalty = random->Uniform(0.8f, 1.5f);
  }
  if (random->OneIn(2)) options.presence_penalty = random->Uniform(0.0f, 2.0f);
  if (random->OneIn(2)) options.frequency_penalty = random->Uniform(0.0f, 2.0f);
  if (random->OneIn(2)) options.logit_bias = {{7, 2.0f}, {3, -1e4f}};
  return options;
}

// A target with scores that depend on the two tokens before.
std::vector<float> Scores(const std::vector<TokenId>& sequence) {
  Random random(uint64_t{31} * sequence[sequence.size() - 2] + sequence.back());
  return random.Gaussians(/*size=*/16, 2.0f);
}

// `count` tokens after `prompt` in blocks with up to `max_drafts` drafts, every
// one of which is right, by `truth`, in `right` of 4 cases.
std::vector<TokenId> Answer(const SamplingOptions& options,
                            const std::vector<TokenId>& prompt, size_t count,
                            int max_drafts, int right,
                            const std::vector<TokenId>& truth,
                            int32_t* accepted) {
  Random random(max_drafts * 5 + right);
  Sampler sampler;
  sampler.Start(options, /*seed=*/11, prompt);
  std::vector<TokenId> sequence = prompt;
  std::vector<TokenId> answer;
  while (answer.size() < count) {
    std::vector<TokenId> drafts;
    std::vector<TokenId> drafted = sequence;
    std::vector<std::vector<float>> rows = {Scores(drafted)};
    for (int i = random.Int(0, max_drafts); i > 0; --i) {
      const size_t at = answer.size() + drafts.size();
      drafts.push_back(at < truth.size() && random.Int(1, 4) <= right
                           ? truth[at]
                           : random.Int(0, 15));
      drafted.push_back(drafts.back());
      rows.push_back(Scores(drafted));
    }
    const Acceptance result = Rows(rows).Accept(
        drafts, static_cast<int64_t>(sequence.size()), &sampler);
    *accepted += result.accepted;
    for (const TokenId token : result.tokens) {
      answer.push_back(token);
      sequence.push_back(token);
      sampler.Push(token);
    }
  }
  answer.resize(count);
  return answer;
}

TEST(AcceptanceTest, DraftsDoNotChangeTheAnswer) {
  Random random(5);
  for (int trial = 0; trial < 150; ++trial) {
    const SamplingOptions options = RandomOptions(&random);
    const std::vector<TokenId> prompt = {random.Int(0, 15), random.Int(0, 15)};
    int32_t accepted = 0;
    const std::vector<TokenId> plain =
        Answer(options, prompt, 40, /*max_drafts=*/0, 0, {}, &accepted);
    EXPECT_EQ(accepted, 0);
    for (const int max_drafts : {1, 3, 7}) {
      for (const int right : {0, 3, 4}) {
        accepted = 0;
        ASSERT_EQ(
            Answer(options, prompt, 40, max_drafts, right, plain, &accepted),
            plain)
            << "trial " << trial << ", up to " << max_drafts << " drafts";
        if (right > 0) {
          EXPECT_GT(accepted, 5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deltaedge
