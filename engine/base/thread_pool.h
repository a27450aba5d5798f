// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_
#define DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_

#include <sched.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "pthreadpool.h"

namespace deltaedge {

// The threads of an engine: the caller and `threads() - 1` workers. Workers
// compute in the engine's floating-point mode (fp_mode.h); the caller sets its
// own.
//
// A pool runs one job at a time, and a worker spins for some 25 ms after a job
// before it sleeps, so that launches microseconds apart cost one or two
// microseconds. Rest() before a pause sends them to sleep at once.
class ThreadPool {
 public:
  static constexpr int kMaxThreads = 256;

  enum class Placement {
    kAnywhere,  // Where the system puts them.
    kBigCores,  // Workers stay on the big cores (big_cores.h).
  };

  // `num_threads` 0 stands for AvailableCpus(), no more of them than there are
  // big cores, kMaxThreads at most. More than AvailableCpus() are made as asked
  // for, with a warning in the log. A system that refuses to keep workers
  // somewhere is no error. InvalidArgument if it is not in 0 .. kMaxThreads;
  // ResourceExhausted if the system does not grant that many threads. `root` as
  // for FindBigCores.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(
      int num_threads, Placement placement = Placement::kAnywhere,
      const std::string& root = "");

  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // For pthreadpool_parallelize_* and for whoever takes a pool. Null when there
  // is one thread: jobs then run in the caller.
  pthreadpool_t get() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return pool_; }
  int threads() const { return threads_; }

  // Where workers stay; null: anywhere. For a ScopedAffinity of the caller.
  const cpu_set_t* cpus() const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return cpus_.has_value() ? &*cpus_ : nullptr;
  }
  // How many threads, where, and why; for people.
  const std::string& description() const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return description_;
  }

  // Nothing is to be done for a while: workers stop spinning. The next job
  // wakes them. A job like any other: not while one runs.
  void Rest();

 private:
  ThreadPool(pthreadpool_t pool, int threads, std::optional<cpu_set_t> cpus,
             std::string description)
      : pool_(pool),
        threads_(threads),
        cpus_(cpus),
        description_(std::move(description)) {}

  const pthreadpool_t pool_;
  const int threads_;
  const std::optional<cpu_set_t> cpus_;
  const std::string description_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_
