// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/machine.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "engine/base/status_macros.h"
#include "pthreadpool.h"

namespace deltaedge {

namespace {

constexpr int64_t kPartBytes = 1 << 20;

struct Reading {
  const std::byte* data;
  std::atomic<uint64_t> sum;  // So that somebody wants what is read.
};

void ReadPart(void* context, size_t part) {
  auto* const reading = static_cast<Reading*>(context);
  const std::byte* const data = reading->data + part * kPartBytes;
  constexpr int kLanes = 16;
  uint64_t sums[kLanes] = {};
  for (int64_t i = 0; i < kPartBytes; i += sizeof(sums)) {
    uint64_t words[kLanes];
    std::memcpy(words, data + i, sizeof(words));
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += words[lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum += lane;
  reading->sum.fetch_add(sum, std::memory_order_relaxed);
}

}  // namespace

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::pair<absl::string_view, absl::string_view> member =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(member.first) == "model name") {
      return std::string(absl::StripAsciiWhitespace(member.second));
    }
  }
  return "unknown";
}

void LetOthersRest() { absl::SleepFor(absl::Milliseconds(30)); }

absl::StatusOr<std::unique_ptr<ReadStream>> ReadStream::Create(int threads) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedBuffer buffer,
      AlignedBuffer::AllocateHugePages(kBytes, "a stream"));
  // Pages that were never written to may all be the same one.
  std::memset(buffer.data(), 1, kBytes);
  DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> pool,
                             ThreadPool::Create(threads));
  return std::unique_ptr<ReadStream>(
      new ReadStream(std::move(buffer), std::move(pool)));
}

absl::Duration ReadStream::Read() {
  Reading reading = {buffer_.data(), {0}};
  const auto start = std::chrono::steady_clock::now();
  pthreadpool_parallelize_1d(pool_->get(), ReadPart, &reading,
                             kBytes / kPartBytes, /*flags=*/0);
  const absl::Duration time =
      absl::FromChrono(std::chrono::steady_clock::now() - start);
  pool_->Rest();
  return time;
}

}  // namespace deltaedge
