// SPDX-License-Identifier: Apache-2.0

#include "engine/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/affinity.h"
#include "engine/base/big_cores.h"
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
    int num_threads, Placement placement, const std::string& root) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "number of threads is ", num_threads,
        "; allowed are 0 (as many as the process may use) to ", kMaxThreads));
  }
  const std::optional<cpu_set_t> allowed = ThreadAffinity();
  std::optional<BigCores> big;
  if (allowed.has_value()) big = FindBigCores(*allowed, root);
  // Some sandboxes refuse it.
  std::optional<cpu_set_t> cpus;
  if (placement == Placement::kBigCores && big.has_value() &&
      sched_setaffinity(0, sizeof(big->cpus), &big->cpus) == 0) {
    sched_setaffinity(0, sizeof(*allowed), &*allowed);
    cpus = big->cpus;
  }
  int most = std::min(AvailableCpus(), kMaxThreads);
  int threads = num_threads;
  if (cpus.has_value()) most = std::min(most, CPU_COUNT(&*cpus));
  if (threads == 0) {
    threads = big.has_value() ? std::min(most, CPU_COUNT(&big->cpus)) : most;
  } else if (threads > most) {
    Log(LogLevel::kWarning,
        absl::StrCat("num_threads is ", threads,
                     ", of which this process may run ", most,
                     " at a time (affinity, cgroup quota",
                     cpus.has_value() ? ", big cores" : "",
                     "): steps are far slower than with ", most));
  }
  std::string description = absl::StrCat(
      threads, threads == 1 ? " thread " : " threads ",
      cpus.has_value() ? "kept on " : "for ",
      big.has_value() ? big->what : "processors that the system does not tell",
      placement == Placement::kBigCores && !cpus.has_value()
          ? "; the system does not let them be kept there"
          : "");

  pthreadpool_t pool = nullptr;
  if (threads > 1) {
    const absl::Status no_threads = absl::ResourceExhaustedError(
        absl::StrCat("the system does not grant ", threads, " threads"));
    if (!SystemGrantsThreads(threads - 1)) return no_threads;
    // Workers inherit both.
    const ScopedFpMode fp_mode;
    const ScopedAffinity affinity(cpus.has_value() ? &*cpus : nullptr);
    pool = pthreadpool_create(static_cast<size_t>(threads));
    if (pool == nullptr) return no_threads;
  }
  return absl::WrapUnique(
      new ThreadPool(pool, threads, cpus, std::move(description)));
}

void ThreadPool::Rest() {
  // How workers wait is up to the last job.
  pthreadpool_parallelize_1d(
      pool_, [](void*, size_t) {}, /*argument=*/nullptr,
      static_cast<size_t>(threads_), PTHREADPOOL_FLAG_YIELD_WORKERS);
}

ThreadPool::~ThreadPool() { pthreadpool_destroy(pool_); }

}  // namespace deltaedge
