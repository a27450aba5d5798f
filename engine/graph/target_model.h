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
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"

namespace deltaedge {

// What the routers of all layers with experts (L of them) decided about `rows`
// rows: their scores, and by rank the experts of each row and the weights of
// their answers.
struct RouterOutputs {
  float* logits = nullptr;   // [L, rows, E]
  int32_t* ids = nullptr;    // [L, rows, k]
  float* weights = nullptr;  // [L, rows, k]
};

// One sequence's rows in a run through the target. All pointers are borrowed
// for the call.
struct TargetPass {
  absl::Span<const TokenId> tokens;  // [rows]; ids checked by the caller
  BlockPlan plan;                    // rows == tokens.size()
  TargetSequence* sequence = nullptr;

  // Null: a block, whose journals and ring columns are written beside the state
  // (rows <= T_max); kept rows of the block before are folded in on the way.
  // Else a prompt chunk: the states after its last row go here, nothing of
  // `sequence` changes but free rows of its KV.
  SpareStates* spare = nullptr;

  // Outputs; null: not wanted, and not computed where that saves work. Scores
  // of passes that lie one behind the other come from one product, and so do
  // their best.
  float* logits = nullptr;        // [rows, vocab_size]
  ArgMax* best = nullptr;         // [rows], what ArgMaxRows finds in the scores
  float* final_hidden = nullptr;  // [rows, H], after the final norm
  // Outputs of the tapped layers side by side, in the order in which
  // TargetModel::Create was given them: [rows, taps * H].
  float* taps = nullptr;
  const RouterOutputs* routers = nullptr;  // room for what they decide

  // Looked at before every layer; may be null. A run ends early when all of its
  // passes were cancelled.
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

  // Runs the rows of all `passes`, of different sequences, at most max_rows()
  // in all, so that they share each weight that is read. The caller has called
  // Begin() on every plan and publishes them afterwards. A row's outputs, bit
  // for bit, depend only on its own sequence's tokens up to it: not on `rows`,
  // on the number of threads, on block or chunk, or on the company.
  // At most one pass may write to a `spare`. An error is one of all passes:
  // every sequence is where it was before Begin().
  // Cancelled: all passes were cancelled.
  virtual absl::Status Run(absl::Span<const TargetPass> passes) = 0;
  // One alone.
  absl::Status Run(const TargetPass& pass) {
    return Run(absl::MakeConstSpan(&pass, 1));
  }

  // Scores [rows, vocab_size] of rows x [rows, H] that are already normalised,
  // and the best of each row [rows], for a draft that shares the output matrix;
  // at most max_rows() of them. Without `logits` (null) scores are not kept,
  // and `second` [rows] may ask for each row's second best score
  // (Linear::RunArgMax). 64 readable bytes past x.
  virtual absl::Status Head(const float* x, int32_t rows, float* logits,
                            ArgMax* best, float* second) = 0;

  // Rows of the embedding table, [rows, H].
  virtual void Embed(absl::Span<const TokenId> tokens, float* x) const = 0;

  virtual const TargetConfig& config() const = 0;
  // Rows that one run may have.
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
