// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/cancel_flags.h"
#include "engine/spec/block_drafter.h"
#include "engine/types.h"

namespace deltaedge {

// Drafts without a model: looks for the last place where the sequence had the
// tokens that it ends with now, and proposes what came after them ("prompt
// look-up", n-grams). Good where an answer quotes its prompt or repeats itself,
// and next to free elsewhere.
//
// Looks for the last 4 tokens first, then 3, then 2; a draft that runs into the
// end of the sequence goes on with its own tokens. Remembers one place for
// every run of 2, 3 and 4 tokens: 18 to 36 bytes a token.
class LookupDrafter : public NullDrafter {
 public:
  // For sequences of at most `capacity` tokens, whose memory is reserved at
  // once and used as they grow. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<LookupDrafter>> Create(
      int64_t capacity);
  // Bytes that Create() would reserve.
  static int64_t Bytes(int64_t capacity);

  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override;
  void Reset() override;

 private:
  static constexpr int64_t kShortest = 2;
  static constexpr int64_t kLongest = 4;
  // A sequence that was made to collide forgets rather than takes long.
  static constexpr int kMaxProbes = 64;

  LookupDrafter(int64_t slots, AlignedArray<int32_t> ends)
      : slots_(slots), ends_(std::move(ends)) {}

  // Of one length of runs: a power of two, at most two thirds of them used.
  static int64_t Slots(int64_t capacity);

  // Where a run like `run` is remembered, or else may be.
  int32_t* Find(absl::Span<const TokenId> sequence,
                absl::Span<const TokenId> run);

  const int64_t slots_;
  // A hash table for each length of runs, [3, slots_]: where such a run last
  // ended, as the index behind it; 0: nothing.
  AlignedArray<int32_t> ends_;
  int64_t indexed_ = 0;  // Runs that end at most here are in ends_.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_
