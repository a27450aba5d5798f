// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SPEC_CUSTOM_DRAFTER_H_
#define DELTAEDGE_ENGINE_SPEC_CUSTOM_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/drafter.h"
#include "engine/spec/block_drafter.h"
#include "engine/types.h"

namespace deltaedge {

// An application's own Drafter, which sees tokens only.
class CustomDrafter : public NullDrafter {
 public:
  explicit CustomDrafter(std::shared_ptr<Drafter> drafter)
      : drafter_(std::move(drafter)) {}

  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags, std::vector<TokenId>* drafts) override {
    drafter_->Propose(sequence, max_drafts, drafts);
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Drafter> drafter_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SPEC_CUSTOM_DRAFTER_H_
