// SPDX-License-Identifier: Apache-2.0

#include "engine/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cfenv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/affinity.h"
#include "engine/base/big_cores.h"
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
  const std::optional<cpu_set_t> cpus = ThreadAffinity();
  int big = ThreadPool::kMaxThreads;
  if (cpus.has_value()) {
    const BigCores found = FindBigCores(*cpus);
    big = CPU_COUNT(&found.cpus);
  }
  EXPECT_EQ((*pool)->threads(),
            std::min({AvailableCpus(), big, ThreadPool::kMaxThreads}));
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

// A machine whose first processor that is allowed is a little one.
class BigCoresPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<cpu_set_t> all = ThreadAffinity();
    if (!all.has_value() || CPU_COUNT(&*all) < 2) {
      GTEST_SKIP() << "needs two processors";
    }
    all_ = big_ = *all;
    bool little = true;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &all_)) continue;
      if (little) CPU_CLR(cpu, &big_);
      const std::filesystem::path folder(
          absl::StrCat(root_, "/sys/devices/system/cpu/cpu", cpu));
      std::filesystem::create_directories(folder);
      std::ofstream(folder / "cpu_capacity") << (little ? 400 : 1024);
      little = false;
    }
  }
  ~BigCoresPoolTest() override { std::filesystem::remove_all(root_); }

  const std::string root_ = ::testing::TempDir() + "/big_cores_pool";
  cpu_set_t all_, big_;
};

TEST_F(BigCoresPoolTest, ThereAreAsManyThreadsAsBigCores) {
  const auto pool =
      ThreadPool::Create(0, ThreadPool::Placement::kAnywhere, root_);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->threads(), std::min(AvailableCpus(), CPU_COUNT(&big_)));
  EXPECT_EQ((*pool)->cpus(), nullptr);
  EXPECT_TRUE(absl::StrContains((*pool)->description(), " for processors "))
      << (*pool)->description();
}

TEST_F(BigCoresPoolTest, WorkersStayThereAndTheCallerDoesNot) {
  const auto pool =
      ThreadPool::Create(4, ThreadPool::Placement::kBigCores, root_);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_TRUE(
      absl::StartsWith((*pool)->description(), "4 threads kept on processors "))
      << (*pool)->description();
  ASSERT_NE((*pool)->cpus(), nullptr);
  EXPECT_TRUE(CPU_EQUAL((*pool)->cpus(), &big_));
  struct Seen {
    std::mutex mutex;
    std::vector<std::pair<std::thread::id, cpu_set_t>> cpus;
  } seen;
  // Until a worker had its turn.
  const auto workers = [&seen] {
    return std::count_if(seen.cpus.begin(), seen.cpus.end(), [](const auto& s) {
      return s.first != std::this_thread::get_id();
    });
  };
  while (workers() == 0) {
    pthreadpool_parallelize_1d(
        (*pool)->get(),
        [](void* context, size_t) {
          auto* to = static_cast<Seen*>(context);
          const std::optional<cpu_set_t> cpus = ThreadAffinity();
          const std::lock_guard<std::mutex> lock(to->mutex);
          to->cpus.emplace_back(std::this_thread::get_id(), *cpus);
        },
        &seen, 256, /*flags=*/0);
  }
  for (const auto& [thread, cpus] : seen.cpus) {
    const bool caller = thread == std::this_thread::get_id();
    EXPECT_TRUE(CPU_EQUAL(&cpus, caller ? &all_ : &big_)) << caller;
  }
}

}  // namespace
}  // namespace deltaedge
