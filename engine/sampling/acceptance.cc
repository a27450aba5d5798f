// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/acceptance.h"

namespace deltaedge {

Acceptance AcceptDrafts(absl::Span<const ArgMax> picks,
                        absl::Span<const TokenId> drafts) {
  Acceptance result;
  for (size_t row = 0; row < picks.size(); ++row) {
    if (!picks[row].finite) {
      // The token before stays, as it would without drafts; it is the target's
      // own pick even where it equals the draft whose row is broken.
      result.broken = true;
      break;
    }
    result.tokens.push_back(picks[row].index);
    if (row == drafts.size() || picks[row].index != drafts[row]) break;
    ++result.accepted;
  }
  return result;
}

}  // namespace deltaedge
