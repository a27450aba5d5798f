// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TOOLS_GOLDEN_CHECK_GOLDEN_FILES_H_
#define DELTAEDGE_TESTS_TOOLS_GOLDEN_CHECK_GOLDEN_FILES_H_

#include <cstdlib>
#include <string>

namespace deltaedge::testing {

// A file or folder that the test lists in its `data`, by its path from the top.
inline std::string Runfile(const std::string& path) {
  const char* folder = std::getenv("TEST_SRCDIR");
  return std::string(folder == nullptr ? "." : folder) + "/deltaedge/" + path;
}

inline std::string GoldenFile(const std::string& path) {
  return Runfile("tests/testdata/golden/" + path);
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TOOLS_GOLDEN_CHECK_GOLDEN_FILES_H_
