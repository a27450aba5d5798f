// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/graph/draft_model.h"
#include "engine/spec/block_drafter.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"

namespace deltaedge {

// The draft model as a drafter: what it remembers of one sequence is a context
// cache indexed by position, and the tapped rows of the last blocks, which join
// the cache once it is known that they stay. Rows [context length, m) are
// injected, m being what the target covers, so an abandoned step can neither
// lose a row nor inject one twice.
class DFlashDrafter : public BlockDrafter {
 public:
  // Rows of taps that are kept until drafting resumes; when they would be
  // exceeded, those that stay are injected at once.
  static constexpr int32_t kTapRows = 64;

  // `model` must outlive it. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<DFlashDrafter>> Create(
      DraftModel* model, int64_t capacity);

  // Bytes that Create() would reserve.
  static int64_t Bytes(const DraftConfig& config, int64_t capacity);

  bool wants_taps() const override { return true; }
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       const std::atomic<bool>* cancel,
                       std::vector<TokenId>* drafts) override;
  absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                            const std::atomic<bool>* cancel) override;
  absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                              const std::atomic<bool>* cancel) override;
  void Reset() override { length_ = 0; }

  // Positions 0 .. context_length()-1 are in the cache.
  int64_t context_length() const { return length_; }
  KvStore& context() { return kv_; }

 private:
  DFlashDrafter(DraftModel* model, int64_t capacity, KvStore kv,
                AlignedArray<float> taps);

  // Injects rows [length_, end) from the tap buffer.
  absl::Status InjectTo(int64_t end, const std::atomic<bool>* cancel);
  int64_t tap_floats() const;

  DraftModel* const model_;
  const int64_t capacity_;
  KvStore kv_;
  AlignedArray<float>
      taps_;  // [kTapRows, taps * H], position p at p mod kTapRows
  int64_t length_ = 0;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_
