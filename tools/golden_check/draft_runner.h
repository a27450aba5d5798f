// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_RUNNER_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_RUNNER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/graph/draft_model.h"
#include "engine/model/config.h"
#include "pthreadpool.h"
#include "tools/golden_check/model_pair.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {

// What sliding layers of a draft see, whatever its checkpoint says.
enum class WindowMode {
  kAsConfigured,
  kCausal,
  kSymmetric,
  kFull,  // No window at all.
};

// A target whose tapped layers are those of the draft, and the draft.
class DraftRunner {
 public:
  // `pair` has a draft; it and `pool` must outlive the result.
  static absl::StatusOr<std::unique_ptr<DraftRunner>> Create(
      const ModelPair& pair, WindowMode window, int64_t max_rows,
      pthreadpool_t pool);

  TargetRunner& target() { return *target_; }
  DraftModel& draft() { return *draft_; }
  const DraftConfig& config() const { return draft_->config(); }

 private:
  DraftRunner() = default;

  std::unique_ptr<TargetRunner> target_;
  std::unique_ptr<DraftModel> draft_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_RUNNER_H_
