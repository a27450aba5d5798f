// SPDX-License-Identifier: Apache-2.0

#include "engine/base/thread_pool.h"

#include <algorithm>
#include <cfenv>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/cpu_count.h"
#include "engine/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

TEST(ThreadPoolTest, HasTheThreadsAskedFor) {
  for (int threads : {1, 2, 3, 5}) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_EQ((*pool)->threads(), threads);
    EXPECT_EQ((*pool)->get() == nullptr, threads == 1);
    EXPECT_EQ(pthreadpool_get_threads_count((*pool)->get()),
              static_cast<size_t>(threads));
  }
}

TEST(ThreadPoolTest, ZeroIsAsManyAsThereAre) {
  absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(0);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->threads(),
            std::min(AvailableCpus(), ThreadPool::kMaxThreads));
}

TEST(ThreadPoolTest, WarnsOfMoreThanCanRun) {
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel level, absl::string_view message) {
    if (level == LogLevel::kWarning) warnings.emplace_back(message);
  });
  const int cpus = std::min(AvailableCpus(), ThreadPool::kMaxThreads - 1);
  for (int threads : {0, 1, cpus}) {
    ASSERT_TRUE(ThreadPool::Create(threads).ok());
  }
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  const auto pool = ThreadPool::Create(cpus + 1);
  SetLogSink(nullptr);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->threads(), cpus + 1);
  EXPECT_THAT(
      warnings,
      ::testing::ElementsAre(::testing::AllOf(
          ::testing::HasSubstr("num_threads is " + std::to_string(cpus + 1)),
          ::testing::HasSubstr("may run " + std::to_string(cpus)))));
}

TEST(ThreadPoolTest, RefusesOtherNumbers) {
  for (int threads : {-1, ThreadPool::kMaxThreads + 1, 1 << 30}) {
    EXPECT_EQ(ThreadPool::Create(threads).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ThreadPoolTest, RunsEveryIndexOnce) {
  for (int threads : {1, 3}) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    std::vector<int> runs(1000, 0);
    pthreadpool_parallelize_1d(
        (*pool)->get(),
        [](void* context, size_t i) { ++static_cast<int*>(context)[i]; },
        runs.data(), runs.size(), /*flags=*/0);
    EXPECT_EQ(runs, std::vector<int>(1000, 1));
  }
}

struct Mode {
  std::thread::id thread;
  int rounding = -1;
};

TEST(ThreadPoolTest, WorkersHaveTheEnginesFloatingPointMode) {
  std::fesetround(FE_UPWARD);
  absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(4);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::vector<Mode> modes(256);
  pthreadpool_parallelize_1d((*pool)->get(),
                             [](void* context, size_t i) {
                               static_cast<Mode*>(context)[i] = {
                                   std::this_thread::get_id(),
                                   std::fegetround()};
                               std::this_thread::yield();
                             },
                             modes.data(), modes.size(), /*flags=*/0);
  for (const Mode& mode : modes) EXPECT_EQ(mode.rounding, FE_TONEAREST);
}

}  // namespace
}  // namespace deltaedge
