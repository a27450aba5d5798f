// SPDX-License-Identifier: Apache-2.0

#include "engine/base/fp_mode.h"

#include <cfenv>
#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace deltaedge {
namespace {

// The same bits that pthreadpool sets for PTHREADPOOL_FLAG_DISABLE_DENORMALS,
// so that a launch changes nothing.
void FlushDenormals() {
#if defined(__SSE2__)
  constexpr unsigned int kFlushToZero = 0x8000;
  constexpr unsigned int kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  constexpr uint64_t kFlushToZeroHalf = uint64_t{1} << 19;
  uint64_t fpcr;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
  fpcr |= kFlushToZero | kFlushToZeroHalf;
  __asm__ __volatile__("msr fpcr, %0" : : "r"(fpcr));
#endif
}

}  // namespace

ScopedFpMode::ScopedFpMode() {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
  FlushDenormals();
}

ScopedFpMode::~ScopedFpMode() { std::fesetenv(&saved_); }

}  // namespace deltaedge
