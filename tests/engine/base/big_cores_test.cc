// SPDX-License-Identifier: Apache-2.0

#include "engine/base/big_cores.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

cpu_set_t Set(const std::vector<int>& numbers) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int number : numbers) CPU_SET(number, &cpus);
  return cpus;
}

// A folder with speeds of the tester's choice.
class BigCoresTest : public ::testing::Test {
 protected:
  BigCoresTest()
      : root_(::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
  }
  ~BigCoresTest() override { std::filesystem::remove_all(root_); }

  // Of processors 0, 1, ...; 0: has no file.
  void Write(const std::string& name, const std::vector<int>& speeds) {
    for (size_t i = 0; i < speeds.size(); ++i) {
      if (speeds[i] == 0) continue;
      const std::filesystem::path file(
          absl::StrCat(root_, "/sys/devices/system/cpu/cpu", i, "/", name));
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << speeds[i] << "\n";
    }
  }
  void Capacities(const std::vector<int>& speeds) {
    Write("cpu_capacity", speeds);
  }
  void Clocks(const std::vector<int>& speeds) {
    Write("cpufreq/cpuinfo_max_freq", speeds);
  }

  void Expect(const std::vector<int>& allowed, const std::vector<int>& big,
              const std::string& what) {
    const BigCores found = FindBigCores(Set(allowed), root_);
    const cpu_set_t expected = Set(big);
    EXPECT_TRUE(CPU_EQUAL(&found.cpus, &expected)) << found.what;
    EXPECT_EQ(found.what, what);
  }

  const std::string root_;
};

TEST_F(BigCoresTest, NoFiles) {
  Expect({0, 1, 2, 5}, {0, 1, 2, 5}, "processors 0-2,5, how fast is not known");
}

TEST_F(BigCoresTest, TwoKinds) {
  Capacities({397, 397, 397, 397, 1024, 1024, 1002, 1002});
  Expect({0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7},
         "processors 4-7, the big ones of 0-7 (capacity at least 1002, the "
         "others at most 397)");
}

TEST_F(BigCoresTest, ThreeKindsAreCutWhereTheyDifferMost) {
  Capacities({326, 326, 326, 743, 743, 792, 792, 1024});
  Expect({0, 1, 2, 3, 4, 5, 6, 7}, {3, 4, 5, 6, 7},
         "processors 3-7, the big ones of 0-7 (capacity at least 743, the "
         "others at most 326)");
}

TEST_F(BigCoresTest, AmongThoseThatAreAllowedOnly) {
  Capacities({397, 397, 397, 397, 1024, 1024, 1024, 1024});
  Expect({0, 2, 3}, {0, 2, 3}, "processors 0,2-3, all alike");
  Expect({3, 4, 6}, {4, 6},
         "processors 4,6, the big ones of 3-4,6 (capacity at least 1024, the "
         "others at most 397)");
  Expect({7}, {7}, "processors 7, all alike");
}

TEST_F(BigCoresTest, ClocksWhereNotAllHaveACapacity) {
  Capacities({1024, 0, 1024});
  Clocks({1800000, 1800000, 2400000});
  Expect({0, 1, 2}, {2},
         "processors 2, the big ones of 0-2 (kHz at least 2400000, the others "
         "at most 1800000)");
}

TEST_F(BigCoresTest, FavouredCoresAreLikeTheOthers) {
  Clocks({5000000, 5000000, 5700000, 5500000});
  Expect({0, 1, 2, 3}, {0, 1, 2, 3}, "processors 0-3, all alike");
}

TEST_F(BigCoresTest, ZeroIsNoSpeed) {
  Capacities({1024, 1024});
  std::ofstream(root_ + "/sys/devices/system/cpu/cpu1/cpu_capacity") << "0\n";
  Expect({0, 1}, {0, 1}, "processors 0-1, how fast is not known");
}

}  // namespace
}  // namespace deltaedge
