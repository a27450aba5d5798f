// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_BIG_CORES_H_
#define DELTAEDGE_ENGINE_BASE_BIG_CORES_H_

#include <sched.h>

#include <string>

namespace deltaedge {

struct BigCores {
  cpu_set_t cpus;
  // Which they are and why, for people: "processors 4-7, the big ones of 0-7
  // (capacity at least 1024, the others at most 397)".
  std::string what;
};

// The fast ones of the processors `allowed`, of which there is at least one;
// all of them where they are alike or Linux does not know.
//
// How fast a processor is says its cpu_capacity, which covers its kind and its
// clock, or where not all have one, its highest clock. Little are those of the
// smallest kind and no others: from the slowest up to the first that is at
// least 1.25 times as fast as the one before it, if the fastest of all is at
// least 1.3 times as fast as they are. So a phone with one very large core,
// some large ones and little ones has two kinds of big cores, and one whose two
// kinds are nearly alike has no little ones. `root` stands in front of "/sys";
// tests give a folder. Reads files; call it once.
BigCores FindBigCores(const cpu_set_t& allowed, const std::string& root = "");

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_BIG_CORES_H_
