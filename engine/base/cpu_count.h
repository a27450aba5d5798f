// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_CPU_COUNT_H_
#define DELTAEDGE_ENGINE_BASE_CPU_COUNT_H_

#include <optional>
#include <string>

namespace deltaedge {

// How many threads this process can keep busy at once: the processors it may
// run on, or fewer where a container's quota grants less time than that. At
// least 1. Reads files; call it once.
int AvailableCpus();

// The processor time that Linux control groups grant this process, in
// processors: the least of the quotas of its group and of all groups above,
// version 2 or 1, rounded up, at least 1. Nothing if there is no quota, or none
// that can be read. `root` stands in front of "/proc" and "/sys"; tests give a
// folder.
std::optional<int> CgroupCpus(const std::string& root = "");

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_CPU_COUNT_H_
