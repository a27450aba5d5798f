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
// clock, or where not all have one, its highest clock. Ordered by that, the cut
// is where two neighbours differ by the largest factor, if that is at least
// 1.25: the little cores of Arm and x86 differ by more from the next larger
// ones, large ones among each other by less. `root` stands in front of "/sys";
// tests give a folder. Reads files; call it once.
BigCores FindBigCores(const cpu_set_t& allowed, const std::string& root = "");

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_BIG_CORES_H_
