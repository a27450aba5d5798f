// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_BASE_CPU_TARGETS_H_
#define DELTAEDGE_KERNELS_BASE_CPU_TARGETS_H_

#include <string>
#include <vector>

namespace deltaedge {

// Kernels are compiled once for every CPU target (a set of instructions such as
// "AVX2", "AVX3_ZEN4", "NEON" or "SVE2"; the names are Highway's), and the best
// one that the CPU supports is chosen when the first kernel runs. The choice is
// one for the whole process, and so is what these functions change.
//
// Results of one target are reproducible to the bit. Two targets may differ in
// the last bits.

// The targets that this build holds and this CPU supports, best first; never
// empty. Not changed by forcing. Thread-safe.
const std::vector<std::string>& CpuTargets();

// The target that kernels run on. Thread-safe.
const char* CpuTarget();

// Makes kernels run on the target called `name`, one of CpuTargets(); an empty
// name gives the choice back to the CPU. On an unknown name returns false and
// changes nothing. Not thread-safe: no kernel may run meanwhile.
bool ForceCpuTarget(const std::string& name);

// Forces the target that the environment variable DELTAEDGE_CPU names; when it
// is unset or empty, changes nothing and returns true. `*name` becomes the
// variable's value, and on an unknown name the result is false and nothing has
// changed. To be called before the first kernel runs.
bool ForceCpuTargetFromEnvironment(std::string* name);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_BASE_CPU_TARGETS_H_
