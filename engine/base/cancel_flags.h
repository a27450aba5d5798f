// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_CANCEL_FLAGS_H_
#define DELTAEDGE_ENGINE_BASE_CANCEL_FLAGS_H_

#include <atomic>

#include "absl/types/span.h"

namespace deltaedge {

// Whether what is running should be abandoned. A pass that serves several
// sequences ends early only when all of them were cancelled; one that was
// cancelled alone goes along to the end and is dropped then. Borrows the flags.
class CancelFlags {
 public:
  // Never.
  CancelFlags() = default;
  // When `flag` is set; null: never.
  CancelFlags(const std::atomic<bool>* flag)  // NOLINT: meant to convert
      : one_(flag) {}
  // When all of `flags` are set; none of them null. Empty: never.
  explicit CancelFlags(absl::Span<const std::atomic<bool>* const> flags)
      : all_(flags) {}

  bool cancelled() const {
    if (one_ != nullptr) return one_->load(std::memory_order_relaxed);
    for (const std::atomic<bool>* flag : all_) {
      if (!flag->load(std::memory_order_relaxed)) return false;
    }
    return !all_.empty();
  }

 private:
  const std::atomic<bool>* one_ = nullptr;
  absl::Span<const std::atomic<bool>* const> all_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_CANCEL_FLAGS_H_
