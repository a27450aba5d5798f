// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_MACHINE_H_
#define DELTAEDGE_TOOLS_BENCH_MACHINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"

namespace deltaedge {

// The processor's name as the system has it, or "unknown".
std::string CpuName();

// Threads of an engine that has nothing to do spin for a while before they
// sleep, and take a core from whoever has threads of its own; this waits until
// none does.
void LetOthersRest();

// A read of memory from end to end, of far more than caches hold: the most that
// anything whose data comes from memory can reach.
//
// Thread-compatible.
class ReadStream {
 public:
  static constexpr int64_t kBytes = int64_t{320} << 20;

  // With so many threads, as ThreadPool::Create. ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ReadStream>> Create(int threads);

  // Reads all once.
  absl::Duration Read();

 private:
  ReadStream(AlignedBuffer buffer, std::unique_ptr<ThreadPool> pool)
      : buffer_(std::move(buffer)), pool_(std::move(pool)) {}

  const AlignedBuffer buffer_;
  const std::unique_ptr<ThreadPool> pool_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_MACHINE_H_
