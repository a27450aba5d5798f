// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_HUGE_PAGE_ARENA_H_
#define DELTAEDGE_ENGINE_BASE_HUGE_PAGE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/aligned_buffer.h"

namespace deltaedge {

// Memory for many arrays that live and die together, such as the weights of a
// model, one behind the other so that all of it can be in huge pages
// (AlignedBuffer::AllocateHugePages). Occupies what was handed out and at most
// a huge page more for each of a few blocks. Not thread-safe.
class HugePageArena {
 public:
  // Without `huge_pages`, of small ones: for those who do not want any.
  explicit HugePageArena(bool huge_pages = true) : huge_pages_(huge_pages) {}
  HugePageArena(const HugePageArena&) = delete;
  HugePageArena& operator=(const HugePageArena&) = delete;

  // Zeroed, aligned and readable past its end as an AlignedBuffer is; lives as
  // long as the arena. ResourceExhausted as AlignedBuffer::Allocate.
  // size_bytes >= 0.
  absl::StatusOr<std::byte*> Allocate(
      int64_t size_bytes, absl::string_view what) ABSL_ATTRIBUTE_LIFETIME_BOUND;

 private:
  const bool huge_pages_;
  std::vector<AlignedBuffer> blocks_;
  int64_t used_bytes_ = 0;  // Of the last block.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_HUGE_PAGE_ARENA_H_
