// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_CPU_TARGET_H_
#define DELTAEDGE_ENGINE_OPS_CPU_TARGET_H_

#include <string>

#include "absl/status/status.h"

namespace deltaedge {

// The set of instructions that our kernels use in this process, such as "AVX2".
std::string CpuTargetName();

// Follows the environment variable DELTAEDGE_CPU, which names the set to use
// instead of the best one; unset means the best one. Looks once in a process:
// later calls give the first call's answer.
// InvalidArgument: a name that this CPU or build does not have; lists those it
// has. Thread-safe; must come before the first kernel runs.
absl::Status ApplyCpuTargetEnvironment();

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_CPU_TARGET_H_
