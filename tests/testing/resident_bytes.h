// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_RESIDENT_BYTES_H_
#define DELTAEDGE_TESTS_TESTING_RESIDENT_BYTES_H_

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace deltaedge::testing {

// Bytes of mappings that are in this process's resident memory, as Linux tells
// in /proc/self/smaps; -1: it does not.

// Sum over the mappings for which `counts` says so, which is called with the
// line that begins with the mapping's addresses and ends in its file.
template <class Counts>
int64_t ResidentBytesIf(Counts counts) {
  std::ifstream maps("/proc/self/smaps");
  if (!maps) return -1;
  int64_t bytes = 0;
  bool counted = false;
  for (std::string line; std::getline(maps, line);) {
    int64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "Rss: %" SCNd64 " kB", &kibibytes) == 1) {
      if (counted) bytes += kibibytes << 10;
    } else if (line.find('-') < line.find(' ')) {
      counted = counts(line);
    }
  }
  return bytes;
}

// Of the mapping that holds `address`.
inline int64_t ResidentBytes(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return ResidentBytesIf([at](const std::string& line) {
    uintptr_t begin = 0, end = 0;
    std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end);
    return begin <= at && at < end;
  });
}

// Of all mappings of a file whose path ends in `file`.
inline int64_t ResidentBytesOfFile(const std::string& file) {
  return ResidentBytesIf([&file](const std::string& line) {
    return line.size() >= file.size() &&
           line.compare(line.size() - file.size(), file.size(), file) == 0;
  });
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_RESIDENT_BYTES_H_
