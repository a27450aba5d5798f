// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SAMPLING_OPTIONS_H_
#define DELTAEDGE_ENGINE_SAMPLING_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/types.h"

namespace deltaedge {

// A number that is added to the score of one token.
struct LogitBias {
  TokenId token = 0;
  float bias = 0.0f;  // Finite. -1e4 is as good as forbidding the token.
};

// How a token is picked from the target's scores. The steps, in this order:
//
//   1. Repetition penalty: the score s of every token that the sequence already
//      has, prompt included, becomes s / r where s > 0 and s * r elsewhere.
//      Presence and frequency penalty: s - presence - frequency * n for every
//      token that this answer (since Start or Generate) has n >= 1 times.
//      Logit bias: s + bias.
//   2. Temperature 0: the token with the highest score, the lowest id among
//      equals, and nothing below matters. Else s / temperature, and each
//      token's probability is its share of the sum of exp(s) over the tokens
//      that the steps so far have left.
//   3. top_k: the k highest scores stay, lowest ids first among equals.
//   4. top_p: of those, by falling score and rising id, the fewest whose
//      probabilities sum to p or more.
//   5. min_p: of those, the ones with at least min_p times the probability of
//      the best.
//   6. One of them is drawn by its probability, with a random number that
//      depends on (seed, position in the sequence) and nothing else.
//
// So the same seed and options give the same tokens, with drafts or without, in
// any company, after Fork and Restore. The defaults are greedy decoding.
//
// Two things are not as in mathematics: a temperature below 1.2e-38 counts as
// 0, and a token that is less than vocab_size * 2^-62 times as probable as the
// best (5e-14 for 248,320 tokens) is never drawn.
struct SamplingOptions {
  float temperature = 0.0f;         // 0 to 100.
  int32_t top_k = 0;                // 0: all.
  float top_p = 1.0f;               // Above 0, to 1. 1: all.
  float min_p = 0.0f;               // 0 to 1. 0: all.
  float repetition_penalty = 1.0f;  // Above 0, to 100. 1: none.
  float presence_penalty = 0.0f;    // -100 to 100. 0: none.
  float frequency_penalty = 0.0f;   // -100 to 100. 0: none.
  // At most one for a token.
  std::vector<LogitBias> logit_bias;
  // Unset: drawn anew by every Start() and Generate(); SessionStats::seed tells
  // which.
  std::optional<uint64_t> seed;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SAMPLING_OPTIONS_H_
