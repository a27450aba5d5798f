// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/acceptance.h"

namespace deltaedge {

Acceptance AcceptDrafts(absl::Span<const ArgMax> best, const float* scores,
                        int32_t vocab_size, absl::Span<const TokenId> drafts,
                        int64_t position, Sampler* sampler) {
  Acceptance result;
  for (size_t row = 0; row < best.size(); ++row) {
    if (!best[row].finite) {
      // The token before stays, as it would without drafts; it is the target's
      // own pick even where it equals the draft whose row is broken.
      result.broken = true;
      break;
    }
    TokenId pick = best[row].index;
    if (!sampler->greedy()) {
      const float* const row_scores = scores + row * vocab_size;
      pick = sampler->Pick(absl::MakeConstSpan(row_scores, vocab_size),
                           position + static_cast<int64_t>(row));
    }
    result.tokens.push_back(pick);
    if (row == drafts.size() || pick != drafts[row]) break;
    ++result.accepted;
    sampler->Push(pick);
  }
  for (int32_t i = 0; i < result.accepted; ++i) sampler->Pop();
  return result;
}

}  // namespace deltaedge
