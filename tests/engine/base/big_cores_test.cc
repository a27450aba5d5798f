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

TEST_F(BigCoresTest, OfThreeKindsTheSmallestStaysOut) {
  Capacities({400, 400, 400, 400, 512, 512, 512, 1024});
  Expect({0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7},
         "processors 4-7, the big ones of 0-7 (capacity at least 512, the "
         "others at most 400)");
}

// Boards, phones and laptops: cores and clocks as they are sold, capacities
// about as Linux makes them of these.
TEST_F(BigCoresTest, Layouts) {
  const struct {
    const char* name;
    std::vector<int> speeds, big;
    bool clocks = false;
  } cases[] = {
      {"Raspberry Pi 5: A76", {1024, 1024, 1024, 1024}, {0, 1, 2, 3}},
      {"RK3399: A53, A72", {381, 381, 381, 381, 1024, 1024}, {4, 5}},
      {"RK3588: A55, A76",
       {397, 397, 397, 397, 1024, 1024, 1002, 1002},
       {4, 5, 6, 7}},
      {"Kryo 585: A55, A77 of two clocks",
       {284, 284, 284, 284, 871, 871, 871, 1024},
       {4, 5, 6, 7}},
      {"Tensor: A55, A76, X1",
       {161, 161, 161, 161, 498, 498, 1024, 1024},
       {4, 5, 6, 7}},
      {"Snapdragon 8 Gen 1: A510, A710, X2",
       {261, 261, 261, 261, 724, 724, 724, 1024},
       {4, 5, 6, 7}},
      {"Snapdragon 8 Gen 2: A510, A715 and A710, X3",
       {213, 213, 213, 758, 758, 736, 736, 1024},
       {3, 4, 5, 6, 7}},
      {"Snapdragon 8 Gen 3: A520, A720 of two clocks, X4",
       {200, 200, 744, 744, 744, 792, 792, 1024},
       {2, 3, 4, 5, 6, 7}},
      {"Snapdragon 8 Elite: one kind of two clocks",
       {837, 837, 837, 837, 837, 837, 1024, 1024},
       {0, 1, 2, 3, 4, 5, 6, 7}},
      {"... and its faster version",
       {808, 808, 808, 808, 808, 808, 1024, 1024},
       {0, 1, 2, 3, 4, 5, 6, 7}},
      {"Dimensity 9300: A720, X4 of two clocks",
       {462, 462, 462, 462, 898, 898, 898, 1024},
       {4, 5, 6, 7}},
      {"Dimensity 9500: three kinds that are all called big",
       {480, 480, 480, 480, 790, 790, 790, 1024},
       {4, 5, 6, 7}},
      {"Core i5-13600K: E, P",
       {5100000, 5100000, 3900000, 3900000},
       {0, 1},
       true},
      {"Core Ultra 7 155H: P, E, E of the chip's low-power part",
       {4800000, 4800000, 3800000, 3800000, 2500000, 2500000},
       {0, 1, 2, 3},
       true},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    std::filesystem::remove_all(root_);
    c.clocks ? Clocks(c.speeds) : Capacities(c.speeds);
    std::vector<int> all;
    for (size_t i = 0; i < c.speeds.size(); ++i) {
      all.push_back(static_cast<int>(i));
    }
    const BigCores found = FindBigCores(Set(all), root_);
    const cpu_set_t big = Set(c.big);
    EXPECT_TRUE(CPU_EQUAL(&found.cpus, &big)) << found.what;
  }
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
