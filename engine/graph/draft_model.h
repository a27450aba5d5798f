// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_
#define DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // `weights` and `target` must outlive it. `max_rows`: the most rows of one
  // Inject(), at least the block size. Errors as Linear::Create.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(
      const DraftConfig& config, const DraftWeights& weights,
      TargetModel* target, int32_t max_rows, const LinearOptions& options,
      pthreadpool_t pool);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Writes context keys and values for positions position .. position+rows-1
  // into `kv` (docs/models.md 2.1). taps: [rows, taps * H], as
  // TargetPass::taps, with 64 readable bytes behind. Cancelled: some layers may
  // be written; to be done again.
  absl::Status Inject(const float* taps, int64_t position, int32_t rows,
                      int64_t capacity, KvStore* kv,
                      const std::atomic<bool>* cancel);

  // Guesses `drafts` tokens after `anchor`, which stands at `position`; context
  // rows 0 .. position-1 must have been injected (docs/models.md 2.2).
  // Overwrites rows position .. position+drafts of `kv`, which hold nothing
  // yet; the context stays. 1 <= drafts < block_size, position + drafts <
  // capacity. logits: null, or [drafts, vocab_size]. out: [drafts], the best
  // guess of each row, lowest id on ties.
  absl::Status Draft(TokenId anchor, int64_t position, int32_t drafts,
                     int64_t capacity, KvStore* kv,
                     const std::atomic<bool>* cancel, float* logits,
                     TokenId* out);

  // What the last Inject() and Draft() computed on their way, for comparison
  // with a reference: ctx [rows, H] after hidden_norm; output of each layer and
  // after the final norm, [1 + drafts, H]. Null: not wanted.
  struct Trace {
    std::vector<float> context;
    std::vector<std::vector<float>> hidden;
    std::vector<float> final_hidden;
  };
  void set_trace(Trace* trace);

  const DraftConfig& config() const;
  int64_t packed_bytes() const;
  int64_t scratch_bytes() const;

 private:
  class Impl;
  explicit DraftModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_DRAFT_MODEL_H_
