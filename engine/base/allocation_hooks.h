// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_ALLOCATION_HOOKS_H_
#define DELTAEDGE_ENGINE_BASE_ALLOCATION_HOOKS_H_

#include <cstdint>

namespace deltaedge {

// For tests: a look at, and a hand in, every allocation made through
// aligned_buffer.h, in the whole process. All functions may be called from any
// thread.

// Bytes allocated and not yet freed, roundings and readable tails included.
int64_t LiveAllocatedBytes();

// Allocations tried since the process started, refused ones included.
int64_t AllocationCount();

// While it lives, the `nth` allocation from now on (1 is the next) is refused
// as if memory had run out; with `and_all_after`, so is every later one. At
// most one at a time.
class ScopedAllocationFailure {
 public:
  explicit ScopedAllocationFailure(int64_t nth, bool and_all_after = false);
  ~ScopedAllocationFailure();
  ScopedAllocationFailure(const ScopedAllocationFailure&) = delete;
  ScopedAllocationFailure& operator=(const ScopedAllocationFailure&) = delete;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_ALLOCATION_HOOKS_H_
