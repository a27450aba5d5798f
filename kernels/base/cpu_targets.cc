// SPDX-License-Identifier: Apache-2.0

#include "kernels/base/cpu_targets.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "hwy/per_target.h"
#include "hwy/targets.h"

namespace deltaedge {
namespace {

const std::vector<int64_t>& Targets() {
  static const std::vector<int64_t>* const kTargets =
      new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  return *kTargets;
}

}  // namespace

const std::vector<std::string>& CpuTargets() {
  static const std::vector<std::string>* const kNames = [] {
    auto* names = new std::vector<std::string>();
    for (const int64_t target : Targets()) {
      names->push_back(hwy::TargetName(target));
    }
    return names;
  }();
  return *kNames;
}

const char* CpuTarget() { return hwy::TargetName(hwy::DispatchedTarget()); }

bool ForceCpuTarget(const std::string& name) {
  // Highway detects targets only while none is forced.
  const std::vector<int64_t>& targets = Targets();
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    return true;
  }
  for (const int64_t target : targets) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      return true;
    }
  }
  return false;
}

bool ForceCpuTargetFromEnvironment(std::string* name) {
  const char* value = std::getenv("DELTAEDGE_CPU");
  *name = value == nullptr ? "" : value;
  return name->empty() || ForceCpuTarget(*name);
}

}  // namespace deltaedge
