// SPDX-License-Identifier: Apache-2.0

#include "engine/base/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/allocation_hooks.h"
#include "engine/base/checked_math.h"

namespace deltaedge {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> g_live_bytes{0};
std::atomic<int64_t> g_allocations{0};
// Allocations number g_fail_first .. g_fail_last are refused; counted from 1.
std::atomic<int64_t> g_fail_first{kNever};
std::atomic<int64_t> g_fail_last{kNever};

bool RefusedByTest() {
  const int64_t number = g_allocations.fetch_add(1) + 1;
  return number >= g_fail_first.load() && number <= g_fail_last.load();
}

bool IsMapped(int64_t capacity_bytes) {
  return capacity_bytes >= AlignedBuffer::kMappedBytes;
}

std::byte* Map(size_t size) {
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

void* AllocateZeroed(size_t size) {
  if (IsMapped(static_cast<int64_t>(size))) return Map(size);
  void* const data = std::aligned_alloc(AlignedBuffer::kAlignment, size);
  if (data != nullptr) std::memset(data, 0, size);
  return data;
}

void* AllocateZeroedHugePages(size_t size) {
  constexpr size_t kHugePage = AlignedBuffer::kHugePageBytes;
  if (size < kHugePage) return AllocateZeroed(size);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t pages = (size + page - 1) / page * page;
  std::byte* const mapped = Map(pages + kHugePage);
  if (mapped == nullptr) return nullptr;
  const size_t before =
      (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  std::byte* const data = mapped + before;
  if (before > 0) munmap(mapped, before);
  munmap(data + pages, kHugePage - before);
  // A wish: without it pages are small.
  madvise(data, pages, MADV_HUGEPAGE);
  return data;
}

}  // namespace

int64_t LiveAllocatedBytes() { return g_live_bytes.load(); }

int64_t AllocationCount() { return g_allocations.load(); }

ScopedAllocationFailure::ScopedAllocationFailure(int64_t nth,
                                                 bool and_all_after) {
  const int64_t number = g_allocations.load() + nth;
  g_fail_last.store(and_all_after ? kNever : number);
  g_fail_first.store(number);
}

ScopedAllocationFailure::~ScopedAllocationFailure() {
  g_fail_first.store(kNever);
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(int64_t size_bytes,
                                                      absl::string_view what) {
  return Allocate(size_bytes, what, AllocateZeroed);
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::AllocateHugePages(
    int64_t size_bytes, absl::string_view what) {
  return Allocate(size_bytes, what, AllocateZeroedHugePages);
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(
    int64_t size_bytes, absl::string_view what,
    void* (*allocate_zeroed)(size_t)) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size of ", what, " is ", size_bytes, " bytes; it must not be < 0"));
  }
  const std::optional<int64_t> with_tail =
      CheckedAdd(size_bytes, kReadablePastEnd);
  const std::optional<int64_t> capacity_bytes =
      with_tail ? CheckedRoundUp(*with_tail, kAlignment) : std::nullopt;
  const bool possible =
      capacity_bytes && static_cast<uint64_t>(*capacity_bytes) <=
                            std::numeric_limits<size_t>::max() - kHugePageBytes;
  void* const data = possible && !RefusedByTest()
                         ? allocate_zeroed(static_cast<size_t>(*capacity_bytes))
                         : nullptr;
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", what, ": ", size_bytes, " bytes"));
  }
  g_live_bytes.fetch_add(*capacity_bytes);
  AlignedBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_bytes_ = size_bytes;
  buffer.capacity_bytes_ = *capacity_bytes;
  return buffer;
}

void AlignedBuffer::Free() {
  if (data_ == nullptr) return;
  if (IsMapped(capacity_bytes_)) {
    munmap(data_, static_cast<size_t>(capacity_bytes_));
  } else {
    std::free(data_);
  }
  g_live_bytes.fetch_sub(capacity_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
  capacity_bytes_ = 0;
}

namespace internal {

absl::StatusOr<AlignedBuffer> AllocateElements(
    std::initializer_list<int64_t> shape, int64_t element_bytes,
    absl::string_view what) {
  std::optional<int64_t> size_bytes = element_bytes;
  for (int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("size of ", what, " is [",
                                                     absl::StrJoin(shape, ", "),
                                                     "]; it must not be < 0"));
    }
    if (size_bytes) size_bytes = CheckedMul(*size_bytes, extent);
  }
  if (!size_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", what, ": [", absl::StrJoin(shape, ", "), "] of ",
        element_bytes, " bytes each are more than can be addressed"));
  }
  return AlignedBuffer::Allocate(*size_bytes, what);
}

}  // namespace internal
}  // namespace deltaedge
