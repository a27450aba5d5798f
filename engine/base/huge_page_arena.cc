// SPDX-License-Identifier: Apache-2.0

#include "engine/base/huge_page_arena.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"

namespace deltaedge {
namespace {

// A block takes address space, and memory where it is touched.
constexpr int64_t kLeastBlock = int64_t{8} << 20;
constexpr int64_t kLargestBlock = int64_t{256} << 20;

}  // namespace

absl::StatusOr<std::byte*> HugePageArena::Allocate(int64_t size_bytes,
                                                   absl::string_view what) {
  assert(size_bytes >= 0);
  // The first block is as large as what is asked for, in case nothing else ever
  // is.
  int64_t block_bytes = size_bytes;
  if (!blocks_.empty()) {
    AlignedBuffer& last = blocks_.back();
    constexpr int64_t kUnit = AlignedBuffer::kAlignment;
    const int64_t start = (used_bytes_ + kUnit - 1) / kUnit * kUnit;
    if (size_bytes <= last.size_bytes() - start) {
      used_bytes_ = start + size_bytes;
      return last.data() + start;
    }
    block_bytes = std::max(block_bytes, std::clamp(2 * last.size_bytes(),
                                                   kLeastBlock, kLargestBlock));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedBuffer block,
      huge_pages_ ? AlignedBuffer::AllocateHugePages(block_bytes, what)
                  : AlignedBuffer::Allocate(block_bytes, what));
  blocks_.push_back(std::move(block));
  used_bytes_ = size_bytes;
  return blocks_.back().data();
}

}  // namespace deltaedge
