// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_AFFINITY_H_
#define DELTAEDGE_ENGINE_BASE_AFFINITY_H_

#include <sched.h>

#include <optional>

namespace deltaedge {

// The processors that the system may run the calling thread on: all of its own,
// less what an affinity mask or a control group takes away. Nothing if it does
// not say, or has more of them than a cpu_set_t holds, 1024.
std::optional<cpu_set_t> ThreadAffinity();

// Keeps the calling thread on those of `cpus` that it may run on, and gives it
// back the others at the end. Does nothing if `cpus` is null, if the thread
// stays there anyway, if it may run on none of them, or if the system refuses.
// Threads that are made meanwhile stay there for good.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(const cpu_set_t* cpus);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  std::optional<cpu_set_t> before_;  // To be set again.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_AFFINITY_H_
