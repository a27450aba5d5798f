// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_MICRO_FIXTURE_H_
#define DELTAEDGE_TOOLS_BENCH_MICRO_FIXTURE_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "pthreadpool.h"

// What micro-benchmarks share. They run on one thread of their own, in which
// none of this is thread-safe.
namespace deltaedge {

// Data that takes this much is not in any cache when it is met again.
inline constexpr int64_t kColdBytes = int64_t{300} << 20;

// There is nobody to report an error to.
template <class T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << "\n";
    std::exit(1);
  }
  return *std::move(value);
}

// The pool of `threads` threads, made when first asked for; null for one.
pthreadpool_t Pool(int threads);

// Numbers that are cheap to make and never denormal.
class Numbers {
 public:
  uint32_t Bits() {
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 8;
  }
  float Float() { return static_cast<float>(Bits()) * 0x1p-23f - 1.0f; }

 private:
  uint32_t state_ = 1;
};

// `count` of them, from -limit to limit.
AlignedArray<float> RandomFloats(int64_t count, float limit = 1.0f);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_MICRO_FIXTURE_H_
