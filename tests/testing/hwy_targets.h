// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_HWY_TARGETS_H_
#define DELTAEDGE_TESTS_TESTING_HWY_TARGETS_H_

#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace deltaedge::testing {

// Calls `body()` once for every Highway target that was compiled and that this
// CPU can run, with that target chosen for all dynamic dispatch, and restores
// the CPU's own choice afterwards. Failures name the target. Not to be nested;
// the choice is process-wide, so no kernel may run on another thread meanwhile.
template <class Body>
void ForEachHwyTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_HWY_TARGETS_H_
