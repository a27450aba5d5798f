// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/cancel_flags.h"
#include "engine/graph/draft_model.h"
#include "engine/model/config.h"
#include "engine/spec/block_drafter.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"

namespace deltaedge {

// What the draft model remembers of one sequence: a cache of keys and values by
// position, and the tapped rows of the last blocks, which join the cache once
// it is known that they stay.
struct DFlashContext {
  // Tapped rows that are kept until drafting resumes.
  static constexpr int32_t kTapRows = 64;

  // An empty one for sequences of at most `capacity` tokens. ResourceExhausted:
  // no memory.
  static absl::StatusOr<DFlashContext> Create(const DraftConfig& config,
                                              int64_t capacity);

  // Bytes that Create() would reserve.
  static int64_t Bytes(const DraftConfig& config, int64_t capacity);

  // Becomes what `from` is for a sequence whose first `covered` tokens have
  // been processed by the target: the cached rows of these, and the taps of
  // those not yet cached. Both are of the same draft; `from` has observed all
  // of `covered`, which is at most either capacity. Copies bits; cannot fail.
  void CopyFrom(const DFlashContext& from, int64_t covered);

  int64_t tap_floats() const { return taps.size() / kTapRows; }

  AttentionConfig attention;
  int64_t capacity = 0;
  KvStore kv;
  AlignedArray<float> taps;  // [kTapRows, taps * H]; position p: p mod kTapRows
  int64_t length = 0;        // Positions 0 .. length-1 are in `kv`.
};

// The draft model as a drafter. When the target covers m tokens, rows
// [context().length, m) are injected, so an abandoned step can neither lose a
// row nor inject one twice.
class DFlashDrafter : public BlockDrafter {
 public:
  // `model` must outlive it. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<DFlashDrafter>> Create(
      DraftModel* model, int64_t capacity);

  // The arguments of Propose(), for one of several drafters.
  struct Request {
    DFlashDrafter* drafter = nullptr;
    absl::Span<const TokenId> sequence;
    int32_t max_drafts = 0;
    std::vector<TokenId>* drafts = nullptr;
  };

  // Propose() for different drafters of one model, which share each weight that
  // is read. What a drafter answers does not depend on the others. After an
  // error `drafts` are unspecified; nothing else has changed that matters, and
  // what was injected by then is not injected again.
  static absl::Status ProposeMany(absl::Span<const Request> requests,
                                  CancelFlags cancel);

  DFlashDrafter* dflash() override { return this; }
  bool wants_taps() const override { return true; }
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override;
  absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                            CancelFlags cancel) override;
  absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                              CancelFlags cancel) override;
  void Reset() override { context_.length = 0; }

  DFlashContext* context() override { return &context_; }
  absl::Span<const float> margins() const override { return margins_; }

 private:
  DFlashDrafter(DraftModel* model, DFlashContext context)
      : model_(model), context_(std::move(context)) {}

  // Lists of a call, which take no memory for up to 16 drafters.
  using Injections = absl::InlinedVector<DraftInjection, 32>;
  using Blocks = absl::InlinedVector<DraftRequest, 16>;

  // Adds rows [context_.length, end) to `injections`: up to two pieces.
  void AddPending(int64_t end, Injections* injections);
  // Injects them alone.
  absl::Status InjectTo(int64_t end, CancelFlags cancel);

  DraftModel* const model_;
  DFlashContext context_;
  absl::InlinedVector<float, kMaxBlockRows> margins_;  // Of the last drafts.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_DFLASH_DRAFTER_H_
