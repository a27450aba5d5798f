// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_
#define DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_

#include <memory>

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

  // `num_threads` 0 stands for AvailableCpus(), kMaxThreads at most. More than
  // AvailableCpus() are made as asked for, with a warning in the log.
  // InvalidArgument if it is not in 0 .. kMaxThreads; ResourceExhausted if the
  // system does not grant that many threads.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int num_threads);

  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // For pthreadpool_parallelize_* and for whoever takes a pool. Null when there
  // is one thread: jobs then run in the caller.
  pthreadpool_t get() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return pool_; }
  int threads() const { return threads_; }

  // Nothing is to be done for a while: workers stop spinning. The next job
  // wakes them. A job like any other: not while one runs.
  void Rest();

 private:
  ThreadPool(pthreadpool_t pool, int threads)
      : pool_(pool), threads_(threads) {}

  const pthreadpool_t pool_;
  const int threads_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_THREAD_POOL_H_
