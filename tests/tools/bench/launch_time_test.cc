// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/launch_time.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

constexpr absl::Duration kInside = absl::Milliseconds(20);

TEST(LaunchTimeTest, SeesTheLaunchesOfKernels) {
  const std::vector<float> x(100, 1.0f);
  ArgMax best;
  const auto kernel = [&] {
    ArgMaxRows(1, 100, x.data(), 100, &best, nullptr);
  };
  kernel();
  LaunchTime time;
  EXPECT_EQ(time.launches(), 0);
  EXPECT_EQ(time.inside(), absl::ZeroDuration());
  kernel();
  kernel();
  EXPECT_EQ(time.launches(), 2);
}

TEST(LaunchTimeTest, SeesEveryKindThatKernelsUse) {
  int64_t calls = 0;
  const pthreadpool_t pool = nullptr;
  LaunchTime time;
  pthreadpool_parallelize_1d(
      pool, [](void* c, size_t) { ++*static_cast<int64_t*>(c); }, &calls, 3, 0);
  pthreadpool_parallelize_1d_tile_1d(
      pool, [](void* c, size_t, size_t) { ++*static_cast<int64_t*>(c); },
      &calls, 5, 2, 0);
  pthreadpool_parallelize_2d(
      pool, [](void* c, size_t, size_t) { ++*static_cast<int64_t*>(c); },
      &calls, 2, 3, 0);
  pthreadpool_parallelize_2d_tile_1d(
      pool,
      [](void* c, size_t, size_t, size_t) { ++*static_cast<int64_t*>(c); },
      &calls, 2, 5, 2, 0);
  pthreadpool_parallelize_3d(
      pool,
      [](void* c, size_t, size_t, size_t) { ++*static_cast<int64_t*>(c); },
      &calls, 2, 2, 2, 0);
  EXPECT_EQ(calls, 3 + 3 + 6 + 6 + 8);
  EXPECT_EQ(time.launches(), 5);
}

TEST(LaunchTimeTest, CountsWhatIsInsideAndNothingElse) {
  LaunchTime time;
  pthreadpool_parallelize_1d(
      nullptr, [](void*, size_t) { absl::SleepFor(kInside); }, nullptr, 1, 0);
  const absl::Duration inside = time.inside();
  EXPECT_GE(inside, kInside);
  absl::SleepFor(kInside);
  EXPECT_EQ(time.inside(), inside);
  EXPECT_GE(time.own(), absl::ZeroDuration());
}

}  // namespace
}  // namespace deltaedge
