// SPDX-License-Identifier: Apache-2.0

#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/norm/norm_reference.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/safetensors_lite.h"
#include "tests/testing/thread_pool.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Golden;
using testing::Random;
using testing::SameBits;
using testing::ThreadPool;

// Of one rounding to float.
constexpr double kRounding = 0x1p-24;

// A sum of squares of at least four lanes and four accumulators is a chain of
// dim / 16 additions; the square root halves its error. Six more roundings:
// tree, mean, eps, sqrt, inverse, products.
double NormLimit(int dim) { return (6 + dim / 32.0) * kRounding; }
// The exponential is good to two units in the last place, its sum, quotient and
// product to half a unit each.
constexpr double kSiluLimit = 7 * kRounding;

void ExpectNear(const float* actual, const double* expected, int dim,
                double limit) {
  for (int i = 0; i < dim; ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), limit * std::abs(expected[i]))
        << "element " << i << " of " << dim << ": " << actual[i] << " for "
        << expected[i];
  }
}

double RelativeError(const std::vector<float>& actual,
                     const std::vector<float>& expected) {
  double error = 0;
  double scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(double{actual[i]} - expected[i]));
    scale = std::max(scale, std::abs(double{expected[i]}));
  }
  return error / scale;
}

TEST(NormTest, MatchesGoldens) {
  const Golden golden("tests/testdata/ops/norms.safetensors");
  ASSERT_EQ(golden.error(), "");
  const float kEps[] = {1e-6f, 1e-6f, 1e-5f};
  ForEachHwyTarget([&] {
    for (int c = 0; c < 3; ++c) {
      const std::string name = "norm" + std::to_string(c) + ".";
      SCOPED_TRACE(name);
      const auto& x = golden[name + "x"];
      const auto& gate = golden[name + "gate"];
      const int rows = static_cast<int>(x.dim(0));
      const int dim = static_cast<int>(x.dim(1));
      ASSERT_GT(x.size(), 0);
      std::vector<float> y(x.floats.size());

      std::vector<float> weight = golden[name + "zero_centred_weight"].floats;
      for (float& w : weight) w = static_cast<float>(1.0 + w);
      RmsNorm(rows, dim, x.floats.data(), dim, weight.data(), kEps[c], y.data(),
              dim, nullptr);
      EXPECT_LE(RelativeError(y, golden[name + "rmsnorm_out"].floats), 1e-6);

      GatedRmsNormHeads(1, rows, dim, x.floats.data(), 0, dim,
                        gate.floats.data(), 0, dim,
                        golden[name + "gated_weight"].floats.data(), kEps[c],
                        y.data(), 0, dim, nullptr);
      EXPECT_LE(RelativeError(y, golden[name + "gated_out"].floats), 1e-6);

      L2NormHeads(rows, 1, dim, x.floats.data(), dim, 0, 1e-6f, 1.0f, y.data(),
                  dim, 0, nullptr);
      EXPECT_LE(RelativeError(y, golden[name + "l2norm_out"].floats), 1e-6);
    }
  });
}

std::vector<int> Lengths() {
  std::vector<int> lengths;
  for (int i = 1; i <= 34; ++i) lengths.push_back(i);
  for (const int i : {48, 63, 65, 100, 127, 128, 129, 256, 1000}) {
    lengths.push_back(i);
  }
  return lengths;
}

TEST(NormTest, EveryLengthAndAlignmentMatchesReference) {
  constexpr int kRows = 2;
  constexpr int kHeads = 3;
  constexpr float kEps = 1e-5f;
  constexpr float kScale = 0.25f;
  ForEachHwyTarget([&] {
    Random random(1);
    for (const int dim : Lengths()) {
      SCOPED_TRACE(dim);
      const size_t misalign = static_cast<size_t>(dim) % 4;
      // Gaps between heads and rows, of NaN, that must neither be read nor
      // written.
      const int head_stride = dim + 1;
      const int row_stride = kHeads * head_stride + 2;
      const size_t size = static_cast<size_t>(kRows) * row_stride;
      const auto fill = [&](float deviation) {
        CanaryBuffer<float> buffer(size, misalign);
        for (int v = 0; v < kRows * kHeads; ++v) {
          float* to = buffer.data() + v / kHeads * row_stride +
                      v % kHeads * head_stride;
          for (int i = 0; i < dim; ++i) to[i] = deviation * random.Gaussian();
        }
        return buffer;
      };
      const CanaryBuffer<float> x = fill(3.0f);
      const CanaryBuffer<float> gate = fill(4.0f);
      const CanaryBuffer<float> weight(random.Gaussians(dim), misalign);
      CanaryBuffer<float> rms(size, misalign);
      CanaryBuffer<float> l2(size, misalign);
      CanaryBuffer<float> gated(size, misalign);
      RmsNormHeads(kRows, kHeads, dim, x.data(), row_stride, head_stride,
                   weight.data(), kEps, rms.data(), row_stride, head_stride,
                   nullptr);
      L2NormHeads(kRows, kHeads, dim, x.data(), row_stride, head_stride, kEps,
                  kScale, l2.data(), row_stride, head_stride, nullptr);
      GatedRmsNormHeads(kRows, kHeads, dim, x.data(), row_stride, head_stride,
                        gate.data(), row_stride, head_stride, weight.data(),
                        kEps, gated.data(), row_stride, head_stride, nullptr);
      std::vector<double> expected(dim);
      for (int v = 0; v < kRows * kHeads; ++v) {
        const int at = v / kHeads * row_stride + v % kHeads * head_stride;
        RmsNormReference(dim, x.data() + at, weight.data(), kEps,
                         expected.data());
        ExpectNear(rms.data() + at, expected.data(), dim, NormLimit(dim));
        L2NormReference(dim, x.data() + at, kEps, kScale, expected.data());
        ExpectNear(l2.data() + at, expected.data(), dim, NormLimit(dim));
        GatedRmsNormReference(dim, x.data() + at, gate.data() + at,
                              weight.data(), kEps, expected.data());
        ExpectNear(gated.data() + at, expected.data(), dim,
                   NormLimit(dim) + kSiluLimit);
        // Still a NaN: nothing was written behind the head.
        EXPECT_TRUE(std::isnan(rms[at + dim]));
        EXPECT_TRUE(std::isnan(l2[at + dim]));
        EXPECT_TRUE(std::isnan(gated[at + dim]));
      }
      EXPECT_TRUE(rms.Intact() && l2.Intact() && gated.Intact());
    }
  });
}

// 100 rows of 3 x 129 are three tasks.
TEST(NormTest, VectorHasTheSameBitsInCompanyAndWithThreads) {
  constexpr int kRows = 100;
  constexpr int kHeads = 3;
  constexpr int kDim = 129;
  constexpr int kRow = kHeads * kDim;
  Random random(2);
  const std::vector<float> x = random.Gaussians(kRows * kRow);
  const std::vector<float> gate = random.Gaussians(kRows * kRow);
  const std::vector<float> weight = random.Gaussians(kDim);
  const auto run = [&](int rows, int heads, int at, pthreadpool_t pool) {
    std::vector<float> y(3 * static_cast<size_t>(rows) * heads * kDim);
    float* rms = y.data();
    float* l2 = rms + rows * heads * kDim;
    float* gated = l2 + rows * heads * kDim;
    RmsNormHeads(rows, heads, kDim, x.data() + at, kRow, kDim, weight.data(),
                 1e-6f, rms, heads * kDim, kDim, pool);
    L2NormHeads(rows, heads, kDim, x.data() + at, kRow, kDim, 1e-6f, 0.5f, l2,
                heads * kDim, kDim, pool);
    GatedRmsNormHeads(rows, heads, kDim, x.data() + at, kRow, kDim,
                      gate.data() + at, kRow, kDim, weight.data(), 1e-6f, gated,
                      heads * kDim, kDim, pool);
    return y;
  };
  ForEachHwyTarget([&] {
    const std::vector<float> all = run(kRows, kHeads, 0, nullptr);
    for (const int v : {0, 1, 77, kRows * kHeads - 1}) {
      const std::vector<float> alone = run(1, 1, v * kDim, nullptr);
      for (int op = 0; op < 3; ++op) {
        EXPECT_TRUE(SameBits(alone.data() + op * kDim,
                             all.data() + (op * kRows * kHeads + v) * kDim,
                             kDim));
      }
    }
    for (const size_t threads : {1, 2, 3}) {
      const ThreadPool pool(threads);
      EXPECT_TRUE(SameBits(run(kRows, kHeads, 0, pool.get()), all)) << threads;
    }
  });
}

TEST(NormTest, WorksInPlace) {
  constexpr int kRows = 3;
  constexpr int kDim = 37;
  Random random(3);
  const std::vector<float> x = random.Gaussians(kRows * kDim);
  const std::vector<float> gate = random.Gaussians(kRows * kDim);
  const std::vector<float> weight = random.Gaussians(kDim);
  ForEachHwyTarget([&] {
    std::vector<float> y(x.size());
    std::vector<float> in_place = x;
    RmsNorm(kRows, kDim, x.data(), kDim, weight.data(), 1e-6f, y.data(), kDim,
            nullptr);
    RmsNorm(kRows, kDim, in_place.data(), kDim, weight.data(), 1e-6f,
            in_place.data(), kDim, nullptr);
    EXPECT_TRUE(SameBits(in_place, y));

    GatedRmsNormHeads(kRows, 1, kDim, x.data(), kDim, 0, gate.data(), kDim, 0,
                      weight.data(), 1e-6f, y.data(), kDim, 0, nullptr);
    in_place = x;
    GatedRmsNormHeads(kRows, 1, kDim, in_place.data(), kDim, 0, gate.data(),
                      kDim, 0, weight.data(), 1e-6f, in_place.data(), kDim, 0,
                      nullptr);
    EXPECT_TRUE(SameBits(in_place, y));
    in_place = gate;
    GatedRmsNormHeads(kRows, 1, kDim, x.data(), kDim, 0, in_place.data(), kDim,
                      0, weight.data(), 1e-6f, in_place.data(), kDim, 0,
                      nullptr);
    EXPECT_TRUE(SameBits(in_place, y));
  });
}

TEST(NormTest, ExtremesStayFiniteAndNaNShows) {
  constexpr int kDim = 19;
  const std::vector<float> ones(kDim, 1.0f);
  const float kNaN = std::numeric_limits<float>::quiet_NaN();
  ForEachHwyTarget([&] {
    std::vector<float> y(kDim);
    for (const float value : {0.0f, 1e-30f, -1e17f, 1e17f}) {
      const std::vector<float> x(kDim, value);
      RmsNorm(1, kDim, x.data(), kDim, ones.data(), 1e-6f, y.data(), kDim,
              nullptr);
      const double sign = value < 0 ? -1 : 1;
      const double expected = std::abs(value) > 1 ? sign : value * 1e3;
      for (const float v : y) EXPECT_NEAR(v, expected, 1e-6);
      L2NormHeads(1, 1, kDim, x.data(), kDim, 0, 1e-6f, 1.0f, y.data(), kDim, 0,
                  nullptr);
      for (const float v : y) {
        EXPECT_NEAR(v, expected / (std::abs(value) > 1 ? std::sqrt(kDim) : 1),
                    1e-6);
      }
    }
    // silu: x for large gates, 0 for small ones.
    for (const float g : {1e4f, 1e30f, -100.0f, -1e4f, -1e30f}) {
      const std::vector<float> gate(kDim, g);
      GatedRmsNormHeads(1, 1, kDim, ones.data(), kDim, 0, gate.data(), kDim, 0,
                        ones.data(), 1e-12f, y.data(), kDim, 0, nullptr);
      for (const float v : y) {
        EXPECT_NEAR(v, std::max(g, 0.0f), std::max(g, 0.0f) * 1e-6) << g;
      }
    }
    std::vector<float> x = ones;
    x[kDim - 1] = kNaN;
    RmsNorm(1, kDim, x.data(), kDim, ones.data(), 1e-6f, y.data(), kDim,
            nullptr);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
  });
}

}  // namespace
}  // namespace deltaedge
