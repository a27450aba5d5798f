// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
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
// every run of 2, 3 and 4 tokens: about 100 bytes a token.
class LookupDrafter : public NullDrafter {
 public:
  void Reserve(int64_t tokens) override;
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override;
  void Reset() override;

 private:
  static constexpr int64_t kLongest = 4;
  static constexpr int64_t kShortest = 2;

  static uint64_t Key(absl::Span<const TokenId> run);

  // Where a run of tokens last ended: the index behind it. Different runs may
  // share a key; whoever reads compares.
  absl::flat_hash_map<uint64_t, int64_t> last_end_;
  int64_t indexed_ = 0;  // Runs that end at most here are in last_end_.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_LOOKUP_DRAFTER_H_
