// SPDX-License-Identifier: Apache-2.0

#include "engine/base/cpu_count.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

// A folder with files of the tester's choice below it.
class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest()
      : root_(::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file(root_ + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int> Cpus() const { return CgroupCpus(root_); }

  const std::string root_;
};

TEST_F(CgroupTest, NoFiles) { EXPECT_EQ(Cpus(), std::nullopt); }

TEST_F(CgroupTest, Version2) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(Cpus(), std::nullopt);
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Cpus(), std::nullopt);
  Write("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(Cpus(), 4);
  Write("/sys/fs/cgroup/a/b/cpu.max", "400001 100000\n");
  EXPECT_EQ(Cpus(), 5);
  Write("/sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
  EXPECT_EQ(Cpus(), 1);
}

TEST_F(CgroupTest, Version2TakesTheLeastOfAllGroupsAbove) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(Cpus(), 3);
  Write("/sys/fs/cgroup/cpu.max", "100000 50000\n");
  EXPECT_EQ(Cpus(), 2);
}

TEST_F(CgroupTest, Version2InAContainerWithoutItsOwnNamespace) {
  Write("/proc/self/cgroup", "0::/../../docker/abc\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(Cpus(), 2);
}

TEST_F(CgroupTest, Version1) {
  Write("/proc/self/cgroup",
        "12:memory:/m\n5:cpu,cpuacct:/docker/abc\n1:name=systemd:/s\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cpus(), std::nullopt);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "600000\n");
  EXPECT_EQ(Cpus(), 6);
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "120000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cpus(), 2);
}

TEST_F(CgroupTest, IgnoresWhatItCannotRead) {
  for (const char* text : {"", "x y\n", "100000\n", "100000 0\n", "-5 100000\n",
                           "1 2 3\n", "99999999999999999999 1\n"}) {
    Write("/proc/self/cgroup", "0::/\nnonsense\n:\n::\n");
    Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Cpus(), std::nullopt) << text;
  }
  Write("/sys/fs/cgroup/cpu.max", "9000000000000000000 1\n");
  EXPECT_GT(Cpus(), 1000000);
}

TEST(AvailableCpusTest, FollowsAffinity) {
  const int cpus = AvailableCpus();
  EXPECT_GE(cpus, 1);
  EXPECT_LE(cpus, static_cast<int>(std::thread::hardware_concurrency()));

  cpu_set_t before;
  if (sched_getaffinity(0, sizeof(before), &before) != 0) GTEST_SKIP();
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AvailableCpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace deltaedge
