// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SAMPLING_ACCEPTANCE_H_
#define DELTAEDGE_ENGINE_SAMPLING_ACCEPTANCE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "engine/sampling/sampler.h"
#include "engine/types.h"
#include "kernels/logits/argmax.h"

namespace deltaedge {

// How a verified block goes on: the target's own picks, as far as they count.
struct Acceptance {
  int32_t accepted = 0;  // Drafts that the target agreed with.
  // Those, then one of the target's own. Takes no memory for blocks of up to 16
  // rows.
  absl::InlinedVector<TokenId, 16> tokens;
  // The scores of row tokens.size() are not numbers, so no token can be picked
  // there. With tokens empty there is nothing to go on with.
  bool broken = false;
};

// Walks the rows of a block (row 0 the anchor's, row i draft i's) and takes the
// target's pick of each as long as it is the token that was drafted for the
// next row (docs/speculation.md). Every token that comes out is the target's
// choice, so the drafts decide only how many there are. Matching drafts after
// the first wrong one count for nothing, and their rows are not looked at.
//
// `best`: ArgMaxRows() of `scores` [1 + drafts.size(), vocab_size], which are
// read only where `sampler` is not greedy. `position`: where in the sequence
// row 0's pick goes. The pick of row i sees drafts 1 to i in the sampler's
// history, which is as it was afterwards.
Acceptance AcceptDrafts(absl::Span<const ArgMax> best, const float* scores,
                        int32_t vocab_size, absl::Span<const TokenId> drafts,
                        int64_t position, Sampler* sampler);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SAMPLING_ACCEPTANCE_H_
