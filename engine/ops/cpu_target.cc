// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/cpu_target.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/cpu_targets.h"

namespace deltaedge {

std::string CpuTargetName() { return CpuTarget(); }

absl::Status ApplyCpuTargetEnvironment() {
  // Leaked on purpose: it must outlive every static destructor.
  static const absl::Status* const answer = [] {
    std::string name;
    if (ForceCpuTargetFromEnvironment(&name)) return new absl::Status;
    return new absl::Status(absl::InvalidArgumentError(absl::StrCat(
        "DELTAEDGE_CPU is \"", name, "\"; this CPU and build have ",
        absl::StrJoin(CpuTargets(), ", "))));
  }();
  return *answer;
}

}  // namespace deltaedge
