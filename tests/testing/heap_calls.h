// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_HEAP_CALLS_H_
#define DELTAEDGE_TESTS_TESTING_HEAP_CALLS_H_

#include <cstdint>

namespace deltaedge::testing {

// How often memory was asked for since the process started, by any thread:
// malloc and all that stands beside it, operator new included, and
// engine/base/aligned_buffer.h. For programs that link this. Works under a
// sanitizer too, which has hooks for it; without one it needs glibc.
int64_t HeapCalls();

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_HEAP_CALLS_H_
