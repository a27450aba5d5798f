// SPDX-License-Identifier: Apache-2.0

#include "engine/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/cpu_count.h"
#include "engine/base/fp_mode.h"
#include "engine/base/log.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

void* WaitToLeave(void* leave) {
  static_cast<absl::Notification*>(leave)->WaitForNotification();
  return nullptr;
}

// Whether `count` threads can exist beside the present ones. pthreadpool does
// not look whether its threads were made, and waits for ever for one that was
// not.
bool SystemGrantsThreads(int count) {
  absl::Notification leave;
  std::vector<pthread_t> threads;
  threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, WaitToLeave, &leave) != 0) break;
    threads.push_back(thread);
  }
  leave.Notify();
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  return static_cast<int>(threads.size()) == count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(
    int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "number of threads is ", num_threads,
        "; allowed are 0 (as many as the process may use) to ", kMaxThreads));
  }
  if (num_threads == 1) return absl::WrapUnique(new ThreadPool(nullptr, 1));
  const int cpus = AvailableCpus();
  const int threads =
      num_threads == 0 ? std::min(cpus, kMaxThreads) : num_threads;
  if (threads == 1) return absl::WrapUnique(new ThreadPool(nullptr, 1));
  if (threads > cpus) {
    Log(LogLevel::kWarning,
        absl::StrCat("num_threads is ", threads,
                     ", of which this process may run ", cpus,
                     " at a time (affinity, cgroup quota): steps are far "
                     "slower than with ",
                     cpus));
  }
  const absl::Status no_threads = absl::ResourceExhaustedError(
      absl::StrCat("the system does not grant ", threads, " threads"));
  if (!SystemGrantsThreads(threads - 1)) return no_threads;
  const ScopedFpMode inherited_by_workers;
  const pthreadpool_t pool = pthreadpool_create(static_cast<size_t>(threads));
  if (pool == nullptr) return no_threads;
  return absl::WrapUnique(new ThreadPool(pool, threads));
}

void ThreadPool::Rest() {
  // How workers wait is up to the last job.
  pthreadpool_parallelize_1d(
      pool_, [](void*, size_t) {}, /*argument=*/nullptr,
      static_cast<size_t>(threads_), PTHREADPOOL_FLAG_YIELD_WORKERS);
}

ThreadPool::~ThreadPool() { pthreadpool_destroy(pool_); }

}  // namespace deltaedge
