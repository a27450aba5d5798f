// SPDX-License-Identifier: Apache-2.0

#include "kernels/act/act.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/act/act_reference.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Random;
using testing::SameBits;
using testing::ThreadPool;

// The exponential is good to two units in the last place (four roundings); a
// sum, a quotient and two products follow. Results below the least normal float
// are 0.
constexpr double kLimit = 8 * 0x1p-24;
constexpr double kTiny = 0x1p-126;

std::vector<int> Lengths() {
  std::vector<int> lengths;
  for (int i = 0; i <= 34; ++i) lengths.push_back(i);
  for (const int i : {63, 64, 65, 200}) lengths.push_back(i);
  return lengths;
}

TEST(ActTest, EveryLengthAndAlignmentMatchesReference) {
  constexpr int kRows = 3;
  for (const int dim : Lengths()) {
    SCOPED_TRACE(dim);
    Random random(static_cast<uint64_t>(dim));
    const int stride = dim + 2;
    const size_t size = static_cast<size_t>(kRows) * stride;
    const size_t misalign = static_cast<size_t>(dim) % 5;
    const auto fill = [&](float deviation) {
      CanaryBuffer<float> buffer(size, misalign);
      for (int i = 0; i < kRows * dim; ++i) {
        buffer[i / dim * stride + i % dim] = deviation * random.Gaussian();
      }
      return buffer;
    };
    const CanaryBuffer<float> a = fill(10.0f);
    const CanaryBuffer<float> b = fill(10.0f);
    ForEachHwyTarget([&] {
      CanaryBuffer<float> glu(size, misalign);
      SwiGlu(kRows, dim, a.data(), stride, b.data(), stride, glu.data(), stride,
             nullptr);
      CanaryBuffer<float> gated(a.ToVector(), misalign);
      SigmoidGateHeads(1, kRows, dim, gated.data(), 0, stride, b.data(), 0,
                       stride, nullptr);
      CanaryBuffer<float> sum(a.ToVector(), misalign);
      AddRows(kRows, dim, sum.data(), stride, b.data(), stride, nullptr);
      for (int i = 0; i < kRows * stride; ++i) {
        if (i % stride >= dim) {
          // The gaps are NaN still.
          EXPECT_TRUE(std::isnan(glu[i]) && std::isnan(gated[i]) &&
                      std::isnan(sum[i]));
          continue;
        }
        const double x = SwiGluReference(a[i], b[i]);
        EXPECT_NEAR(glu[i], x, std::abs(x) * kLimit + kTiny);
        const double y = a[i] * SigmoidReference(b[i]);
        EXPECT_NEAR(gated[i], y, std::abs(y) * kLimit + kTiny);
        EXPECT_EQ(sum[i], a[i] + b[i]);
      }
      EXPECT_TRUE(glu.Intact() && gated.Intact() && sum.Intact());
    });
  }
}

// From where exp(-x) is 0 to where it would overflow a float, and far beyond.
TEST(ActTest, ExtremesAreRight) {
  std::vector<float> gate;
  for (float g = -130.0f; g <= 130.0f; g += 0.37f) gate.push_back(g);
  for (const float g : {0.0f, -0.0f, 1e-30f, 87.3f, 88.72f, 88.8f, 103.9f,
                        104.1f, 1e4f, 1e10f, 3e38f}) {
    gate.push_back(g);
    gate.push_back(-g);
  }
  const int dim = static_cast<int>(gate.size());
  const std::vector<float> ones(gate.size(), 1.0f);
  // silu(-x) from here on may be 0: exp(x) is no longer a float.
  const double kFlushed = 90 * std::exp(-88.5);
  ForEachHwyTarget([&] {
    std::vector<float> silu(gate.size());
    SwiGlu(1, dim, gate.data(), dim, ones.data(), dim, silu.data(), dim,
           nullptr);
    std::vector<float> sigmoid = ones;
    SigmoidGateHeads(1, 1, dim, sigmoid.data(), dim, dim, gate.data(), dim, dim,
                     nullptr);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double s = SigmoidReference(gate[i]);
      EXPECT_NEAR(sigmoid[i], s, s * kLimit + kTiny) << gate[i];
      const double x = gate[i] * s;
      EXPECT_NEAR(silu[i], x, std::abs(x) * kLimit + kFlushed) << gate[i];
    }
  });
}

TEST(ActTest, InfinityOfTheGateAndNaN) {
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {kInf, -kInf, kNaN, 1.0f};
  ForEachHwyTarget([&] {
    std::vector<float> x = {2.0f, 2.0f, 2.0f, kNaN};
    SigmoidGateHeads(1, 1, 4, x.data(), 4, 4, gate.data(), 4, 4, nullptr);
    EXPECT_EQ(x[0], 2.0f);
    EXPECT_EQ(x[1], 0.0f);
    EXPECT_TRUE(std::isnan(x[2]));
    EXPECT_TRUE(std::isnan(x[3]));
    const std::vector<float> up = {2.0f, 2.0f, 2.0f, kNaN};
    SwiGlu(1, 4, gate.data(), 4, up.data(), 4, x.data(), 4, nullptr);
    EXPECT_EQ(x[0], kInf);
    EXPECT_TRUE(std::isnan(x[2]));
    EXPECT_TRUE(std::isnan(x[3]));
  });
}

TEST(ActTest, SwiGluWorksInPlace) {
  constexpr int kDim = 37;
  Random random(3);
  const std::vector<float> gate = random.Gaussians(kDim);
  const std::vector<float> up = random.Gaussians(kDim);
  ForEachHwyTarget([&] {
    std::vector<float> y(kDim);
    SwiGlu(1, kDim, gate.data(), kDim, up.data(), kDim, y.data(), kDim,
           nullptr);
    std::vector<float> over_gate = gate;
    SwiGlu(1, kDim, over_gate.data(), kDim, up.data(), kDim, over_gate.data(),
           kDim, nullptr);
    EXPECT_TRUE(SameBits(over_gate, y));
    std::vector<float> over_up = up;
    SwiGlu(1, kDim, gate.data(), kDim, over_up.data(), kDim, over_up.data(),
           kDim, nullptr);
    EXPECT_TRUE(SameBits(over_up, y));
  });
}

// Element i of a row of 1001 against the same element first in a row of one; 40
// rows are three tasks.
TEST(ActTest, ElementHasTheSameBitsEverywhereAndWithThreads) {
  constexpr int kRows = 40;
  constexpr int kDim = 1001;
  Random random(4);
  const std::vector<float> a = random.Gaussians(kRows * kDim, 5.0f);
  const std::vector<float> b = random.Gaussians(kRows * kDim, 5.0f);
  const auto run = [&](int rows, int dim, int at, pthreadpool_t pool) {
    const size_t size = static_cast<size_t>(rows) * dim;
    std::vector<float> out(size);
    SwiGlu(rows, dim, a.data() + at, dim, b.data() + at, dim, out.data(), dim,
           pool);
    std::vector<float> x(a.begin() + at, a.begin() + at + rows * dim);
    SigmoidGateHeads(rows, 1, dim, x.data(), dim, dim, b.data() + at, dim, dim,
                     pool);
    out.insert(out.end(), x.begin(), x.end());
    AddRows(rows, dim, x.data(), dim, b.data() + at, dim, pool);
    out.insert(out.end(), x.begin(), x.end());
    return out;
  };
  ForEachHwyTarget([&] {
    const std::vector<float> all = run(kRows, kDim, 0, nullptr);
    for (int at = 0; at < kDim; ++at) {
      const std::vector<float> one = run(1, 1, at, nullptr);
      for (int op = 0; op < 3; ++op) {
        ASSERT_TRUE(
            SameBits(one.data() + op, all.data() + op * kRows * kDim + at, 1))
            << at;
      }
    }
    for (const size_t threads : {1, 2, 3}) {
      const ThreadPool pool(threads);
      EXPECT_TRUE(SameBits(run(kRows, kDim, 0, pool.get()), all)) << threads;
    }
  });
}

}  // namespace
}  // namespace deltaedge
