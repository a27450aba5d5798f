// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_TARGET_MODEL_H_
#define DELTAEDGE_ENGINE_GRAPH_TARGET_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/state/recurrent_store.h"
#include "engine/state/sequence_state.h"
#include "engine/types.h"
#include "pthreadpool.h"

namespace deltaedge {

// One run of rows through the target. All pointers are borrowed for the call.
struct TargetPass {
  absl::Span<const TokenId> tokens;  // [rows]; ids checked by the caller
  BlockPlan plan;                    // rows == tokens.size()
  TargetSequence* sequence = nullptr;

  // Null: a block, whose journals and ring columns are written beside the state
  // (rows <= T_max); kept rows of the block before are folded in on the way.
  // Else a prompt chunk: the states after its last row go here, nothing of
  // `sequence` changes but free rows of its KV.
  SpareStates* spare = nullptr;

  // Outputs; null: not wanted, and not computed where that saves work.
  float* logits = nullptr;        // [rows, vocab_size]
  float* final_hidden = nullptr;  // [rows, H], after the final norm
  // Outputs of the tapped layers side by side, in the order in which
  // TargetModel::Create was given them: [rows, taps * H].
  float* taps = nullptr;

  // Looked at before every layer; may be null.
  const std::atomic<bool>* cancel = nullptr;
};

// A Gated DeltaNet hybrid decoder (docs/models.md 1): embeds tokens, runs them
// through all layers, and scores what may follow. The weights, and the buffers
// of one pass. Virtual for the sake of tests, which put a scripted model in its
// place.
//
// Thread-compatible: one Run() or Head() at a time.
class TargetModel {
 public:
  virtual ~TargetModel() = default;

  // Runs `pass`. The caller has called Begin() on the plan and publishes it
  // afterwards. A row's outputs, bit for bit, depend only on the tokens up to
  // it: not on `rows`, on the number of threads, or on block or chunk.
  // Cancelled: `cancel` was set; the sequence is where it was before Begin().
  virtual absl::Status Run(const TargetPass& pass) = 0;

  // Scores [rows, vocab_size] of rows x [rows, H] that are already normalised,
  // for a draft that shares the output matrix. 64 readable bytes past x.
  virtual absl::Status Head(const float* x, int32_t rows, float* logits) = 0;

  // Rows of the embedding table, [rows, H].
  virtual void Embed(absl::Span<const TokenId> tokens, float* x) const = 0;

  virtual const TargetConfig& config() const = 0;
  // Rows that one pass may have.
  virtual int32_t max_rows() const = 0;
  // Memory held: packed weights and the buffers of a pass.
  virtual int64_t packed_bytes() const = 0;
  virtual int64_t scratch_bytes() const = 0;
};

// The real one. `weights` must outlive it (the embedding table is read in
// place; everything else is packed, that is copied). `taps`: 0-based layer ids,
// see TargetPass::taps. `max_rows`: longest block or chunk.
// `options`: what products need on this machine (ops/row_check.h). `pool` may
// be null and must outlive the model. ResourceExhausted, Unimplemented,
// Internal: as Linear::Create.
absl::StatusOr<std::unique_ptr<TargetModel>> MakeTargetModel(
    const TargetConfig& config, const TargetWeights& weights,
    absl::Span<const int32_t> taps, int32_t max_rows,
    const LinearOptions& options, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_TARGET_MODEL_H_
