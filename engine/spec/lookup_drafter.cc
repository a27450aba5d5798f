// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/lookup_drafter.h"

#include <algorithm>
#include <cstddef>

namespace deltaedge {

uint64_t LookupDrafter::Key(absl::Span<const TokenId> run) {
  uint64_t key = run.size() * 0xC2B2AE3D27D4EB4Fu;
  for (const TokenId token : run) {
    key = (key ^ (static_cast<uint32_t>(token) + 0x165667B19E3779F9u)) *
          0x9E3779B97F4A7C15u;
    key ^= key >> 32;
  }
  return key;
}

void LookupDrafter::Reset() {
  last_end_.clear();
  indexed_ = 0;
}

void LookupDrafter::Reserve(int64_t tokens) {
  last_end_.reserve(static_cast<size_t>(tokens * (kLongest - kShortest + 1)));
}

absl::Status LookupDrafter::Propose(absl::Span<const TokenId> sequence,
                                    int32_t max_drafts, CancelFlags,
                                    std::vector<TokenId>* drafts) {
  const int64_t size = static_cast<int64_t>(sequence.size());
  // What ends at the sequence's own end would only find itself.
  for (int64_t end = indexed_ + 1; end < size; ++end) {
    for (int64_t n = kShortest; n <= std::min(kLongest, end); ++n) {
      last_end_[Key(sequence.subspan(end - n, n))] = end;
    }
    indexed_ = end;
  }
  for (int64_t n = std::min(kLongest, size); n >= kShortest; --n) {
    const absl::Span<const TokenId> tail = sequence.last(n);
    const auto found = last_end_.find(Key(tail));
    if (found == last_end_.end() || found->second < n ||
        sequence.subspan(found->second - n, n) != tail) {
      continue;
    }
    for (int64_t from = found->second; max_drafts > 0; ++from, --max_drafts) {
      drafts->push_back(from < size ? sequence[from] : (*drafts)[from - size]);
    }
    break;
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
