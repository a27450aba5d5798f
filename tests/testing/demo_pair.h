// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_DEMO_PAIR_H_
#define DELTAEDGE_TESTS_TESTING_DEMO_PAIR_H_

#include <cstdlib>
#include <string>

#include "engine/options.h"

namespace deltaedge::testing {

// A file that the test lists in its `data`, by its path from the top.
inline std::string Runfile(const std::string& path) {
  const char* folder = std::getenv("TEST_SRCDIR");
  return std::string(folder == nullptr ? "." : folder) + "/deltaedge/" + path;
}

// The default pair of examples/chat: a trained target and its draft.
inline ModelFiles DemoPair() {
  return {Runfile("examples/chat/model/target.gdn"),
          Runfile("examples/chat/model/draft.gdn")};
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_DEMO_PAIR_H_
