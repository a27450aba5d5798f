// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/draft_runner.h"

#include "engine/base/status_macros.h"

namespace deltaedge {

absl::StatusOr<std::unique_ptr<DraftRunner>> DraftRunner::Create(
    const ModelPair& pair, WindowMode window, int64_t max_rows,
    pthreadpool_t pool) {
  DraftConfig config = pair.draft()->draft_config();
  switch (window) {
    case WindowMode::kAsConfigured:
      break;
    case WindowMode::kCausal:
      config.sliding_mask = SlidingMask::kCausal;
      break;
    case WindowMode::kSymmetric:
      config.sliding_mask = SlidingMask::kSymmetric;
      break;
    case WindowMode::kFull:
      for (DraftLayerConfig& layer : config.layers) layer.sliding_window = 0;
      break;
  }
  std::unique_ptr<DraftRunner> runner(new DraftRunner);
  DELTAEDGE_ASSIGN_OR_RETURN(
      runner->target_, TargetRunner::Create(pair.target(), config.target_layers,
                                            max_rows, pool));
  DELTAEDGE_ASSIGN_OR_RETURN(
      runner->draft_,
      DraftModel::Create(config, pair.draft()->draft_weights(),
                         &runner->target_->model(),
                         runner->target_->model().max_rows(),
                         runner->target_->linear_options(), pool));
  return runner;
}

}  // namespace deltaedge
