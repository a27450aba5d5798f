// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_
#define DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/graph/target_model.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"
#include "pthreadpool.h"

namespace deltaedge {

// Sizes of a draft's context for sequences of at most `capacity` tokens.
KvShape DraftKvShape(const DraftConfig& config, int64_t capacity);

// Rows of one sequence that are to join its context.
struct DraftInjection {
  // [rows, taps * H], as TargetPass::taps, with 64 readable bytes behind.
  const float* taps = nullptr;
  int64_t position = 0;  // Of the first row; position + rows <= capacity.
  int32_t rows = 0;
  int64_t capacity = 0;  // For which `kv` was made.
  KvStore* kv = nullptr;
};

// One sequence's block: `drafts` tokens after `anchor` are to be guessed.
struct DraftRequest {
  TokenId anchor = 0;
  // Of the anchor. Context rows 0 .. position-1 have been injected; rows
  // position .. position+drafts of `kv` hold nothing yet and are overwritten.
  int64_t position = 0;
  int32_t drafts = 0;  // 1 <= drafts < block_size, position + drafts < capacity
  int64_t capacity = 0;  // For which `kv` was made.
  KvStore* kv = nullptr;
  float* logits = nullptr;  // [drafts, vocab_size]; null: not wanted.
  TokenId* out = nullptr;   // [drafts], each row's best, lowest id on ties.
  // [drafts], by how much its score exceeds that of the second; 0 on ties, a
  // NaN if that is no number; null: not wanted.
  float* margins = nullptr;
};

// A DFlash block-diffusion draft (docs/models.md 2). Its past is not tokens but
// features of the target: for every position that the target has processed, the
// outputs of some target layers ("taps"), projected once and turned into keys
// and values of every draft layer. One pass over [anchor, mask, mask, ...] then
// guesses all tokens of a block at once, with the target's embedding table and
// output matrix.
//
// Thread-compatible: one call at a time, none while the target runs.
class DraftModel {
 public:
  // Rows of all blocks that one pass takes. Buffers start with room for one
  // block and grow up to this.
  static constexpr int32_t kMaxPassRows = 64;

  // `weights` and `target` must outlive it. `max_rows`: rows of which Inject()
  // takes care at a time. Errors as Linear::Create.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(
      const DraftConfig& config, const DraftWeights& weights,
      TargetModel* target, int32_t max_rows, const LinearOptions& options,
      pthreadpool_t pool);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Writes context keys and values of all injections (docs/models.md 2.1), any
  // number of rows. Those of different sequences, and pieces of one, share each
  // weight that is read. A row's bits depend on its taps and position only.
  // Cancelled: some rows may be written in some layers; to be done again, with
  // the same result.
  absl::Status Inject(absl::Span<const DraftInjection> injections,
                      CancelFlags cancel);

  // Guesses for all requests (docs/models.md 2.2), of different sequences, in
  // one pass or, beyond kMaxPassRows rows, several. What a request gets does
  // not depend on the others. The context stays.
  // Cancelled, ResourceExhausted: `logits` and `out` may be written in part; to
  // be done again, with the same result.
  absl::Status Draft(absl::Span<const DraftRequest> requests,
                     CancelFlags cancel);

  // What Inject() and Draft() compute on their way, for comparison with a
  // reference: ctx [rows, H] after hidden_norm, those of later injections
  // behind; output of each layer and after the final norm, [1 + drafts, H], of
  // one request alone. Null: not wanted.
  struct Trace {
    std::vector<float> context;
    std::vector<std::vector<float>> hidden;
    std::vector<float> final_hidden;
  };
  void set_trace(Trace* trace);

  const DraftConfig& config() const;
  int64_t packed_bytes() const;
  int64_t scratch_bytes() const;  // As grown so far.

 private:
  class Impl;
  explicit DraftModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_
