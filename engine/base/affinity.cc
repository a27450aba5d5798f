// SPDX-License-Identifier: Apache-2.0

#include "engine/base/affinity.h"

#include <sched.h>

#include <optional>

namespace deltaedge {

std::optional<cpu_set_t> ThreadAffinity() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return std::nullopt;
  return cpus;
}

ScopedAffinity::ScopedAffinity(const cpu_set_t* cpus) {
  if (cpus == nullptr) return;
  const std::optional<cpu_set_t> before = ThreadAffinity();
  if (!before.has_value()) return;
  cpu_set_t narrowed;
  CPU_AND(&narrowed, &*before, cpus);
  if (CPU_COUNT(&narrowed) == 0 || CPU_EQUAL(&narrowed, &*before)) return;
  if (sched_setaffinity(0, sizeof(narrowed), &narrowed) == 0) before_ = before;
}

ScopedAffinity::~ScopedAffinity() {
  if (before_.has_value()) sched_setaffinity(0, sizeof(*before_), &*before_);
}

}  // namespace deltaedge
