// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SAMPLING_SAMPLER_H_
#define DELTAEDGE_ENGINE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/sampling_options.h"
#include "engine/types.h"

namespace deltaedge {

// Picks tokens from the target's scores by the rules of SamplingOptions. A pick
// is a function of options, seed, history, scores and position: the picks
// before it count only as far as they were pushed.
//
// The exact definition, in double. V is the size of the vocabulary.
//
//   s       score after penalties and bias: s / r or s * r, then - presence,
//           then - frequency * n, then + bias
//   order   falling s, rising id among equals. Each of top_k, top_p and min_p
//           keeps a front part of it, so that all of them keep the shortest.
//   x       (s - best s) * (1 / temperature)
//   weight  floor(2^62 / V * exp(x)), a whole number: sums are exact, fit into
//           63 bits, and are the same whichever way they are computed. A token
//           less than V / 2^62 times as probable as the best is never drawn.
//   top_k   the first k
//   top_p   of those, the fewest with a sum of weights >= ceil(top_p * sum)
//   min_p   of those, the ones with x >= log(min_p)
//   draw    the first token in order with a sum of weights, its own included,
//           above floor(u * sum of those left), u = UniformAt(seed, position)
//
// A temperature below the smallest normal float counts as 0, such a repetition
// penalty as that float.
//
// A copy goes on where the original is. Not thread-safe.
class Sampler {
 public:
  // Greedy.
  Sampler() = default;

  // Takes new rules, which must have passed Validate() and name no token
  // outside the vocabulary. The history becomes `sequence`, no token of which
  // counts as one of this answer.
  void Start(const SamplingOptions& options, uint64_t seed,
             absl::Span<const TokenId> sequence);

  // Whether every pick is the token with the highest score as it stands, the
  // lowest id among equals. Then Pick() need not be called.
  bool greedy() const { return greedy_; }

  // The history grows by a token of the answer. Costs nothing unless there are
  // penalties.
  void Push(TokenId token);
  // Takes back the last Push() since Start() that was not yet taken back.
  void Pop();

  // The token for `position` of the sequence. `scores`: [V], V > 0, all finite.
  // The caller stands in the engine's floating-point mode (base/fp_mode.h).
  // Takes a few passes over the scores. Allocates only until its buffers have
  // grown to what is needed: some kilobytes, more if top_k is large or very
  // many scores are nearly equal.
  TokenId Pick(absl::Span<const float> scores, int64_t position);

 private:
  // A token that step 1 may touch.
  struct Touched {
    TokenId id;
    int32_t count = 0;         // In this answer.
    bool in_sequence = false;  // When it started.
    float bias = 0.0f;
  };
  struct Candidate {
    TokenId id;
    double score;
  };

  static bool Before(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  }

  // The entry of `token`, made if there is none.
  Touched& Find(TokenId token);

  double Adjusted(float score, const Touched& touched) const;

  // Calls visit(id, s) for every token, by rising id.
  template <typename Visit>
  void ForEach(absl::Span<const float> scores, const Visit& visit) const;

  Candidate Best(absl::Span<const float> scores) const;

  // Leaves in kept_ the `count` tokens that come first, in no order.
  void KeepFirst(absl::Span<const float> scores, size_t count);

  // Steps 4 to 6. `for_each(visit)` calls visit(id, s) for the `count` tokens
  // that are left.
  template <typename ForEachLeft>
  TokenId Draw(double best, int32_t vocab_size, int32_t count, double uniform,
               const ForEachLeft& for_each);

  SamplingOptions options_;
  uint64_t seed_ = 0;
  bool greedy_ = true;
  bool penalties_ = false;
  double repetition_penalty_ = 1.0;
  std::vector<Touched> touched_;  // By rising id.
  std::vector<TokenId> pushed_;   // Since Start(), if penalties_.

  // Buffers of Pick().
  std::vector<Candidate> kept_;
  std::vector<Candidate> bucket_;
  std::vector<int64_t> bucket_sums_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SAMPLING_SAMPLER_H_
