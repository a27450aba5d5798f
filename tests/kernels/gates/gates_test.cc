// SPDX-License-Identifier: Apache-2.0

#include "kernels/gates/gates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gates/gates_reference.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/safetensors_lite.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Golden;
using testing::Random;
using testing::SameBits;

using Floats = std::vector<float>;

// Of each value: exp, log1p and a division, each good to one or two units in
// the last place (6e-8).
constexpr double kLimit = 1e-6;
constexpr double kSmallestNormal = std::numeric_limits<float>::min();

struct Gates {
  Floats log_decay, beta;  // [rows, heads]
};

// a, b [rows, heads], dense here and laid out with odd strides for the kernel.
Gates RunGates(int heads, const Floats& a, const Floats& b,
               const Floats& neg_exp_a, const Floats& dt_bias) {
  const size_t width = static_cast<size_t>(heads);
  const size_t rows = a.size() / width;
  CanaryBuffer<float> a_rows(rows * (width + 1), 1);
  CanaryBuffer<float> b_rows(rows * (width + 2), 2);
  CanaryBuffer<float> log_decay(rows * width, 3);
  CanaryBuffer<float> beta(rows * width, 1);
  for (size_t t = 0; t < rows; ++t) {
    std::copy(&a[t * width], &a[t * width] + width, &a_rows[t * (width + 1)]);
    std::copy(&b[t * width], &b[t * width] + width, &b_rows[t * (width + 2)]);
  }
  const CanaryBuffer<float> scale(neg_exp_a, 1);
  const CanaryBuffer<float> bias(dt_bias, 3);
  GdnGatesForward(static_cast<int32_t>(rows), heads, a_rows.data(),
                  static_cast<int64_t>(width) + 1, b_rows.data(),
                  static_cast<int64_t>(width) + 2, scale.data(), bias.data(),
                  log_decay.data(), beta.data());
  EXPECT_TRUE(log_decay.Intact());
  EXPECT_TRUE(beta.Intact());
  return {log_decay.ToVector(), beta.ToVector()};
}

// Relative to the value itself; what lies below the normal numbers is flushed.
void ExpectNear(float actual, double expected, const std::string& what) {
  ASSERT_NEAR(actual, expected,
              kLimit * std::fabs(expected) + 1.001 * kSmallestNormal)
      << what;
}

TEST(GdnGatesTest, AgreeWithTheGoldens) {
  const Golden golden("tests/testdata/ops/gates.safetensors");
  ASSERT_EQ(golden.error(), "");
  const int heads = static_cast<int>(golden["A_log"].dim(0));
  Floats neg_exp_a;
  for (const float a_log : golden["A_log"].floats) {
    neg_exp_a.push_back(
        static_cast<float>(-std::exp(static_cast<double>(a_log))));
  }
  ForEachHwyTarget([&] {
    const Gates gates = RunGates(heads, golden["a"].floats, golden["b"].floats,
                                 neg_exp_a, golden["dt_bias"].floats);
    ASSERT_EQ(gates.log_decay.size(), golden["g"].floats.size());
    // The float sum a + dt_bias alone moves exp(-60) by more than the limit, so
    // here the limit is relative to the largest value.
    double largest = 0.0;
    for (const float g : golden["g"].floats) {
      largest = std::max(largest, std::fabs(static_cast<double>(g)));
    }
    for (size_t i = 0; i < gates.beta.size(); ++i) {
      ASSERT_NEAR(gates.log_decay[i], golden["g"].floats[i], kLimit * largest);
      ExpectNear(gates.beta[i], golden["beta"].floats[i], "beta");
    }
  });
}

TEST(GdnGatesTest, AgreeWithTheReferenceForAnyNumberOfHeads) {
  constexpr int kRows = 5;
  ForEachHwyTarget([] {
    for (int heads = 1; heads <= 35; ++heads) {
      Random random(static_cast<uint64_t>(heads));
      const size_t width = static_cast<size_t>(heads);
      const Floats a = random.Uniforms(kRows * width, -15.0f, 25.0f);
      const Floats b = random.Uniforms(kRows * width, -20.0f, 20.0f);
      const Floats neg_exp_a = random.Uniforms(width, -16.0f, -0.01f);
      const Floats dt_bias = random.Uniforms(width, -8.0f, 3.0f);
      const Gates gates = RunGates(heads, a, b, neg_exp_a, dt_bias);
      for (size_t i = 0; i < a.size(); ++i) {
        const size_t h = i % width;
        // The sum is rounded before anything else happens to it.
        const float x = a[i] + dt_bias[h];
        ExpectNear(gates.log_decay[i],
                   GdnLogDecayReference(x, neg_exp_a[h], 0.0), "log_decay");
        ExpectNear(gates.beta[i], GdnBetaReference(b[i]), "beta");
      }
    }
  });
}

TEST(GdnGatesTest, AgreeWithTheReferenceAtExtremes) {
  Floats values;
  for (float x = -130.0f; x <= 130.0f; x += 0.0625f) values.push_back(x);
  for (const float x : {0.0f, 1e-30f, 1e-10f, 1e-4f, 19.999998f, 20.0f,
                        20.000002f, 1e4f, 1e30f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  ForEachHwyTarget([&] {
    const Gates gates = RunGates(1, values, values, {-1.0f}, {0.0f});
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string what = std::to_string(values[i]);
      ExpectNear(gates.log_decay[i], GdnLogDecayReference(values[i], -1.0, 0.0),
                 what);
      ExpectNear(gates.beta[i], GdnBetaReference(values[i]), what);
      EXPECT_LE(gates.log_decay[i], 0.0f) << what;
      EXPECT_GE(gates.beta[i], 0.0f) << what;
      EXPECT_LE(gates.beta[i], 1.0f) << what;
    }
  });
}

TEST(GdnGatesTest, ARowDoesNotDependOnTheOthers) {
  constexpr int kRows = 7;
  ForEachHwyTarget([] {
    for (const int heads : {1, 3, 16, 21}) {
      Random random(static_cast<uint64_t>(heads));
      const size_t width = static_cast<size_t>(heads);
      const Floats a = random.Gaussians(kRows * width, 5.0f);
      const Floats b = random.Gaussians(kRows * width, 5.0f);
      const Floats neg_exp_a = random.Uniforms(width, -4.0f, -0.1f);
      const Floats dt_bias = random.Gaussians(width);
      const Gates all = RunGates(heads, a, b, neg_exp_a, dt_bias);
      for (size_t t = 0; t < kRows; ++t) {
        const auto row = [&](const Floats& values) {
          return Floats(values.begin() + t * width,
                        values.begin() + (t + 1) * width);
        };
        const Gates one = RunGates(heads, row(a), row(b), neg_exp_a, dt_bias);
        EXPECT_TRUE(SameBits(one.log_decay, row(all.log_decay)));
        EXPECT_TRUE(SameBits(one.beta, row(all.beta)));
      }
    }
  });
}

}  // namespace
}  // namespace deltaedge
