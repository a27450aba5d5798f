// SPDX-License-Identifier: Apache-2.0

#include "engine/base/fp_mode.h"

#include <cfenv>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

#if defined(__SSE2__) || defined(__aarch64__)
constexpr bool kFlushes = true;
#else
constexpr bool kFlushes = false;
#endif

// Results that depend on the rounding direction and on denormals. `volatile`
// keeps the compiler from computing them in its own mode.
std::vector<float> Probe() {
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  volatile float tiny = std::numeric_limits<float>::min();
  volatile float denormal = std::numeric_limits<float>::denorm_min();
  volatile float scale = 0x1p+100f;
  return {one / three,  -one / three,     one + 0x1p-30f * one, -(one + tiny),
          tiny / three, denormal * scale, one / three * 7.0f};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class FpModeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(std::fegetenv(&at_start_), 0); }
  void TearDown() override { std::fesetenv(&at_start_); }

 private:
  std::fenv_t at_start_;
};

TEST_F(FpModeTest, DoesNotDependOnTheCallersMode) {
  std::vector<float> usual;
  {
    const ScopedFpMode mode;
    usual = Probe();
    EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  }
  if (kFlushes) {
    EXPECT_EQ(usual[4], 0.0f);
    EXPECT_EQ(usual[5], 0.0f);
  }
  for (int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    const std::vector<float> callers = Probe();
    EXPECT_FALSE(SameBits(callers, usual));
    {
      const ScopedFpMode mode;
      EXPECT_TRUE(SameBits(Probe(), usual));
    }
    EXPECT_EQ(std::fegetround(), rounding);
    EXPECT_TRUE(SameBits(Probe(), callers));
  }
}

TEST_F(FpModeTest, RestoresExceptionFlags) {
  volatile float zero = 0.0f;
  std::feclearexcept(FE_ALL_EXCEPT);
  std::feraiseexcept(FE_OVERFLOW);
  {
    const ScopedFpMode mode;
    volatile float infinite = 1.0f / zero;
    static_cast<void>(infinite);
    std::feraiseexcept(FE_INVALID);
  }
  EXPECT_EQ(std::fetestexcept(FE_OVERFLOW | FE_DIVBYZERO | FE_INVALID),
            FE_OVERFLOW);
}

TEST_F(FpModeTest, Nests) {
  std::fesetround(FE_UPWARD);
  {
    const ScopedFpMode outer;
    const std::vector<float> usual = Probe();
    {
      const ScopedFpMode inner;
      EXPECT_TRUE(SameBits(Probe(), usual));
    }
    EXPECT_TRUE(SameBits(Probe(), usual));
  }
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
}

TEST_F(FpModeTest, NewThreadsInheritIt) {
  const ScopedFpMode mode;
  const std::vector<float> usual = Probe();
  std::vector<float> of_thread;
  std::thread([&of_thread] { of_thread = Probe(); }).join();
  EXPECT_TRUE(SameBits(of_thread, usual));
}

}  // namespace
}  // namespace deltaedge
