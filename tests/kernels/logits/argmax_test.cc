// SPDX-License-Identifier: Apache-2.0

#include "kernels/logits/argmax.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/logits/argmax_reference.h"
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
using testing::ThreadPool;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void ExpectSame(const ArgMax& actual, const ArgMax& expected) {
  EXPECT_EQ(actual.index, expected.index);
  EXPECT_EQ(actual.finite, expected.finite);
  EXPECT_EQ(actual.value, expected.value);
}

ArgMax One(const std::vector<float>& x) {
  ArgMax out;
  ArgMaxRows(1, static_cast<int32_t>(x.size()), x.data(),
             static_cast<int64_t>(x.size()), &out, nullptr);
  return out;
}

// Few distinct values, so that most rows have ties; guards are NaN and would
// show in `finite`.
TEST(ArgMaxTest, EveryLengthAndAlignmentMatchesReference) {
  constexpr int kRows = 3;
  Random random(1);
  for (int dim = 1; dim <= 150; ++dim) {
    SCOPED_TRACE(dim);
    const int stride = dim + 1;
    CanaryBuffer<float> x(static_cast<size_t>(kRows) * stride, dim % 7);
    for (int i = 0; i < kRows * dim; ++i) {
      x[i / dim * stride + i % dim] = static_cast<float>(random.Int(-9, 3));
    }
    ForEachHwyTarget([&] {
      CanaryBuffer<ArgMax> out(kRows);
      ArgMaxRows(kRows, dim, x.data(), stride, out.data(), nullptr);
      EXPECT_TRUE(out.Intact());
      for (int r = 0; r < kRows; ++r) {
        const ArgMax expected = ArgMaxReference(dim, x.data() + r * stride);
        EXPECT_TRUE(expected.finite);
        ExpectSame(out[r], expected);
      }
    });
  }
}

TEST(ArgMaxTest, EveryPlaceWinsAndTiesGoToTheLowest) {
  constexpr int kDim = 101;
  ForEachHwyTarget([&] {
    for (int i = 0; i < kDim; ++i) {
      std::vector<float> x(kDim, -5.0f);
      x[i] = -4.0f;
      EXPECT_EQ(One(x).index, i);
      x[kDim - 1] = -4.0f;
      EXPECT_EQ(One(x).index, i);
    }
    EXPECT_EQ(One(std::vector<float>(kDim, 1.0f)).index, 0);
    EXPECT_EQ(One({-0.0f, 0.0f}).index, 0);
    EXPECT_EQ(One({-1.0f, 0.0f, -0.0f}).index, 1);
  });
}

TEST(ArgMaxTest, AnyPlaceMakesTheRowNotFinite) {
  constexpr int kDim = 101;
  ForEachHwyTarget([&] {
    for (int i = 0; i < kDim; ++i) {
      for (const float bad : {kNaN, -kNaN, kInf, -kInf}) {
        std::vector<float> x(kDim, 1.0f);
        x[17] = 2.0f;
        x[i] = bad;
        ExpectSame(One(x), ArgMaxReference(kDim, x.data()));
        EXPECT_FALSE(One(x).finite);
      }
    }
    for (const float bad : {kNaN, -kInf}) {
      const std::vector<float> x(kDim, bad);
      ExpectSame(One(x), ArgMaxReference(kDim, x.data()));
      EXPECT_EQ(One(x).index, 0);
    }
    ExpectSame(One({kNaN, -kInf}), {0, -kInf, false});
    ExpectSame(One({-1.0f, -1e-40f, 1e-40f}), {1, 0.0f, true});
    // Large, but finite.
    EXPECT_TRUE(One({3e38f, -3e38f, 3e38f}).finite);
  });
}

// Few distinct values, so that the second best is often the best's equal.
TEST(ArgMaxTest, TheSecondBestMatchesReferenceHoweverARowIsCut) {
  Random random(3);
  for (int dim = 1; dim <= 120; ++dim) {
    SCOPED_TRACE(dim);
    CanaryBuffer<float> x(static_cast<size_t>(dim), dim % 7);
    for (int i = 0; i < dim; ++i) {
      x[i] = static_cast<float>(random.Int(-9, dim % 2 == 0 ? 3 : 3000));
      if (random.OneIn(40)) x[i] = kNaN;
      if (random.OneIn(40)) x[i] = -kInf;
    }
    const ArgMax best = ArgMaxReference(dim, x.data());
    const float second = SecondReference(dim, x.data(), best);
    const int cut = random.Int(0, dim);
    ForEachHwyTarget([&] {
      std::vector<float> part(x.data(), x.data() + dim);
      EXPECT_EQ(SecondOfPart(dim, part.data(), 0, best), second);
      ArgMax all = {dim, -kInf, true};
      float all_second = -kInf;
      const int ends[] = {0, cut, dim};
      for (const int i : {1, 0}) {
        const int size = ends[i + 1] - ends[i];
        if (size == 0) continue;
        part.assign(x.data() + ends[i], x.data() + ends[i + 1]);
        const ArgMax one = ArgMaxOfPart(size, part.data(), ends[i]);
        const float one_second = SecondOfPart(size, part.data(), ends[i], one);
        EXPECT_EQ(SecondTogether(one, one_second, all, all_second),
                  SecondTogether(all, all_second, one, one_second));
        all_second = SecondTogether(all, all_second, one, one_second);
        all = Together(all, one);
      }
      EXPECT_EQ(all.index, best.index);
      EXPECT_EQ(all_second, second);
    });
  }
}

// A vocabulary that is cut into parts, ties across their borders, more rows
// than one launch takes.
TEST(ArgMaxTest, LargeRowsWithThreadsMatchReference) {
  constexpr int kRows = 37;
  constexpr int kDim = 151936;
  constexpr int kRow = 2000;  // rows overlap: they begin 2000 floats apart
  Random random(2);
  std::vector<float> x(static_cast<size_t>(kRows - 1) * kRow + kDim);
  for (float& v : x) v = static_cast<float>(random.Int(0, 3000000));
  x[kDim / 2] = x[kDim / 2 + 30000] = x[kDim - 1] = 3e6f;
  x[100] = kNaN;
  std::vector<ArgMax> expected;
  for (int r = 0; r < kRows; ++r) {
    expected.push_back(ArgMaxReference(kDim, x.data() + r * kRow));
  }
  for (const size_t threads : {0, 1, 2, 3}) {
    const ThreadPool pool(threads);
    std::vector<ArgMax> out(kRows);
    ArgMaxRows(kRows, kDim, x.data(), kRow, out.data(), pool.get());
    for (int r = 0; r < kRows; ++r) ExpectSame(out[r], expected[r]);
  }
}

// However a row is cut, and in whatever order its parts come.
TEST(ArgMaxTest, PartsTogetherMatchTheRow) {
  constexpr int32_t kDim = 97;
  Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> x(kDim);
    for (float& v : x) v = static_cast<float>(random.Int(-9, 2));
    for (const float v : {kNaN, kInf, -kInf, -0.0f, 1e-40f, -1e-40f}) {
      if (random.OneIn(3)) x[random.Int(0, kDim - 1)] = v;
    }
    if (random.OneIn(10)) x.assign(kDim, random.OneIn(2) ? kNaN : -kInf);
    const int32_t cuts[] = {0, random.Int(1, 40), random.Int(41, 96), kDim};
    ArgMax parts[3];
    for (int i = 0; i < 3; ++i) {
      parts[i] =
          ArgMaxOfPart(cuts[i + 1] - cuts[i], x.data() + cuts[i], cuts[i]);
    }
    const ArgMax expected = ArgMaxReference(kDim, x.data());
    ExpectSame(Together(parts[0], Together(parts[1], parts[2])), expected);
    ExpectSame(Together(Together(parts[2], parts[0]), parts[1]), expected);
  }
}

}  // namespace
}  // namespace deltaedge
