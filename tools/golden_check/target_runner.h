// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_RUNNER_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/cancel_flags.h"
#include "engine/graph/target_model.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/model_file.h"
#include "engine/ops/linear.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/stepper.h"
#include "engine/state/recurrent_store.h"
#include "engine/types.h"
#include "pthreadpool.h"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

// Proposes what it is told to.
class ScriptedDrafter : public NullDrafter {
 public:
  absl::Status Propose(absl::Span<const TokenId>, int32_t, CancelFlags,
                       std::vector<TokenId>* proposal) override {
    *proposal = drafts;
    return absl::OkStatus();
  }

  std::vector<TokenId> drafts;
};

// A target with all that is needed to run it by hand.
class TargetRunner {
 public:
  // `taps` as for MakeTargetModel(). `max_rows`: the longest prompt in one
  // chunk. `file` and `pool` must outlive it.
  static absl::StatusOr<std::unique_ptr<TargetRunner>> Create(
      const ModelFile& file, absl::Span<const int32_t> taps, int64_t max_rows,
      pthreadpool_t pool);

  const TargetConfig& config() const { return model_->config(); }
  int64_t vocab_size() const { return config().vocab_size; }
  TargetModel& model() { return *model_; }
  Stepper& stepper() { return *stepper_; }
  // How products must be run on this machine.
  const LinearOptions& linear_options() const { return linear_options_; }

  // An empty sequence for blocks of kMaxBlockRows.
  absl::StatusOr<TargetSequence> NewSequence(
      int64_t capacity, Rollback rollback = Rollback::kJournal) const;

  // A step of the stepper, alone and greedy. The scores of its rows are in
  // logits(), [1 + drafts, vocab_size], until the next one.
  absl::Status Step(absl::Span<const TokenId> tokens, int32_t max_drafts,
                    TargetSequence* sequence, BlockDrafter* drafter,
                    StepResult* result);
  const float* logits() const { return logits_.data(); }
  // A chunk. `logits`: null, or [tokens, vocab_size].
  absl::Status Prefill(absl::Span<const TokenId> tokens,
                       TargetSequence* sequence, BlockDrafter* drafter,
                       float* logits = nullptr);

  // All outputs of TargetPass for a prompt as one chunk, which is appended to
  // `sequence`.
  struct Outputs {
    std::vector<float> logits;        // [rows, vocab_size]
    std::vector<float> final_hidden;  // [rows, H]
    AlignedArray<float> taps;         // [rows, taps * H]
    // As RouterOutputs; empty without experts.
    std::vector<float> router_logits, router_weights;
    std::vector<int32_t> router_ids;
  };
  absl::StatusOr<Outputs> Run(absl::Span<const TokenId> tokens,
                              TargetSequence* sequence);

  // States, convolution columns, keys and values of all layers, side by side.
  absl::StatusOr<std::vector<float>> WholeState(TargetSequence* sequence) const;

  // Compares a tensor of one layer: `kind` is conv_state (columns 1 to 3),
  // rec_state, k or v.
  absl::Status CompareState(absl::string_view name, absl::string_view kind,
                            int32_t layer, const GoldenFloats& golden,
                            TargetSequence* sequence, Report* report) const;

 private:
  explicit TargetRunner(SpareStates spare) : spare_(std::move(spare)) {}

  LinearOptions linear_options_;
  std::unique_ptr<TargetModel> model_;
  std::unique_ptr<Stepper> stepper_;
  SpareStates spare_;
  Sampler greedy_;
  std::vector<float> logits_;  // [kMaxBlockRows, vocab_size]
  int64_t tap_floats_ = 0;
};

// The columns that are ever read again, [3, channels], of a golden's
// convolution state [channels, 4].
std::vector<float> NewestConvColumns(absl::Span<const float> state,
                                     int64_t channels);

// Index and lead over the runner-up of the largest of `logits`, which are two
// at least; the lowest index on ties. -1: not numbers.
struct Winner {
  TokenId token = -1;
  double logit = 0;
  double gap = 0;
};
Winner FindWinner(absl::Span<const float> logits);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_RUNNER_H_
