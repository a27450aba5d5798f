// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/lookup_drafter.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "absl/memory/memory.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

namespace {

uint64_t Hash(absl::Span<const TokenId> run) {
  uint64_t hash = 0;
  for (const TokenId token : run) {
    hash = (hash ^ (static_cast<uint32_t>(token) + 0x165667B19E3779F9u)) *
           0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

int64_t LookupDrafter::Slots(int64_t capacity) {
  int64_t slots = 1;
  while (2 * slots < 3 * capacity) slots *= 2;
  return slots;
}

int64_t LookupDrafter::Bytes(int64_t capacity) {
  return (kLongest - kShortest + 1) * Slots(capacity) *
         static_cast<int64_t>(sizeof(int32_t));
}

absl::StatusOr<std::unique_ptr<LookupDrafter>> LookupDrafter::Create(
    int64_t capacity) {
  const int64_t slots = Slots(capacity);
  DELTAEDGE_ASSIGN_OR_RETURN(
      auto ends, AlignedArray<int32_t>::Allocate(
                     {kLongest - kShortest + 1, slots}, "look-up of tokens"));
  return absl::WrapUnique(new LookupDrafter(slots, std::move(ends)));
}

void LookupDrafter::Reset() {
  if (indexed_ > 0) std::fill_n(ends_.data(), ends_.size(), 0);
  indexed_ = 0;
}

int32_t* LookupDrafter::Find(absl::Span<const TokenId> sequence,
                             absl::Span<const TokenId> run) {
  const size_t length = run.size();
  int32_t* const table =
      ends_.data() + (static_cast<int64_t>(length) - kShortest) * slots_;
  const uint64_t mask = static_cast<uint64_t>(slots_ - 1);
  uint64_t slot = Hash(run) & mask;
  for (int probe = 1; probe < kMaxProbes; ++probe) {
    const auto end = static_cast<size_t>(table[slot]);
    if (end == 0 || sequence.subspan(end - length, length) == run) break;
    slot = (slot + 1) & mask;
  }
  return table + slot;
}

absl::Status LookupDrafter::Propose(absl::Span<const TokenId> sequence,
                                    int32_t max_drafts, CancelFlags,
                                    std::vector<TokenId>* drafts) {
  const auto size = static_cast<int64_t>(sequence.size());
  assert(3 * size <= 2 * slots_);
  // What ends at the sequence's own end would only find itself.
  for (int64_t end = indexed_ + 1; end < size; ++end) {
    for (int64_t n = kShortest; n <= std::min(kLongest, end); ++n) {
      *Find(sequence, sequence.subspan(end - n, n)) = static_cast<int32_t>(end);
    }
    indexed_ = end;
  }
  for (int64_t n = std::min(kLongest, size); n >= kShortest; --n) {
    const absl::Span<const TokenId> tail = sequence.last(n);
    const int64_t end = *Find(sequence, tail);
    if (end == 0 || sequence.subspan(end - n, n) != tail) continue;
    for (int64_t from = end; max_drafts > 0; ++from, --max_drafts) {
      drafts->push_back(from < size ? sequence[from] : (*drafts)[from - size]);
    }
    break;
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
