// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_EMULATED_H_
#define DELTAEDGE_TESTS_TESTING_EMULATED_H_

#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

namespace deltaedge::testing {

// Whether an emulator runs this test (tools/toolchain/emulate.sh), which takes
// 30 to 100 times as long.
inline bool Emulated() { return std::getenv("DELTAEDGE_EMULATE") != nullptr; }

// How much of `what` a test does: `all`, or `few` in an emulator, where all
// would take minutes. The test's log then says so, once.
template <class T>
T FewerIfEmulated(const std::string& what, T all, T few) {
  if (!Emulated()) return all;
  static auto* const told = new std::set<std::string>;
  if (told->insert(what).second) {
    std::cout << "emulated: " << what << ": " << few << ", not " << all << "\n";
  }
  return few;
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_EMULATED_H_
