// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_FP_MODE_H_
#define DELTAEDGE_ENGINE_BASE_FP_MODE_H_

#include <cfenv>

namespace deltaedge {

// While it lives, this thread computes in the engine's floating-point mode:
// round to nearest even, denormal operands and results taken as zero, no traps.
// Numbers must not depend on what the host app has set. The destructor puts the
// caller's mode back, exception flags included, so the host sees nothing of it.
//
// Threads started meanwhile inherit the mode for good. Must be destroyed by the
// thread that made it, in reverse order of construction. Costs some tens of
// nanoseconds: one for a step, not one for a row.
//
// Flushing denormals is done on x86 with SSE and on 64-bit Arm; 32-bit Arm's
// vector unit always does.
class ScopedFpMode {
 public:
  ScopedFpMode();
  ~ScopedFpMode();
  ScopedFpMode(const ScopedFpMode&) = delete;
  ScopedFpMode& operator=(const ScopedFpMode&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_FP_MODE_H_
