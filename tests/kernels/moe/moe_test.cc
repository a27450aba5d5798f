// SPDX-License-Identifier: Apache-2.0

#include "kernels/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/moe/moe_reference.h"
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

// A difference of logits is rounded, up to 16 here, and so is the exponent: 16
// half units in the last place of e; sums and a quotient follow.
constexpr double kRouteLimit = 24 * 0x1p-24;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed Route(int rows, int experts, int top_k, bool normalise,
             const float* logits, int stride, pthreadpool_t pool = nullptr) {
  const size_t size = static_cast<size_t>(rows) * top_k;
  CanaryBuffer<int32_t> ids(size);
  CanaryBuffer<float> weights(size, 3);
  MoeRoute(rows, experts, top_k, normalise, logits, stride, ids.data(),
           weights.data(), pool);
  EXPECT_TRUE(ids.Intact() && weights.Intact());
  return {ids.ToVector(), weights.ToVector()};
}

TEST(MoeRouteTest, MatchesReference) {
  constexpr int kRows = 5;
  for (const int experts : {1, 2, 3, 7, 8, 16, 17, 33, 60, 256, 512, 1024}) {
    for (const int top_k : {1, 2, 8, 10}) {
      if (top_k > experts) continue;
      SCOPED_TRACE(experts);
      SCOPED_TRACE(top_k);
      Random random(static_cast<uint64_t>(experts + top_k));
      const int stride = experts + 1;
      const CanaryBuffer<float> logits(random.Gaussians(kRows * stride, 2.0f),
                                       1);
      for (const bool normalise : {false, true}) {
        ForEachHwyTarget([&] {
          const Routed ours =
              Route(kRows, experts, top_k, normalise, logits.data(), stride);
          for (int row = 0; row < kRows; ++row) {
            const float* const l = logits.data() + row * stride;
            const MoeChoice truth = MoeRouteReference(
                std::vector<double>(l, l + experts), top_k, normalise);
            for (int j = 0; j < top_k; ++j) {
              const int at = row * top_k + j;
              EXPECT_EQ(ours.ids[at], truth.ids[j]);
              EXPECT_NEAR(ours.weights[at], truth.weights[j],
                          kRouteLimit * truth.weights[j]);
            }
          }
        });
      }
    }
  }
}

TEST(MoeRouteTest, OfEqualsTheLowestIndexComesFirst) {
  const std::vector<float> logits = {1, 3, 2, 3, 1, 3, 0, -0.0f, 2};
  ForEachHwyTarget([&] {
    const Routed routed = Route(1, 9, 9, true, logits.data(), 9);
    EXPECT_EQ(routed.ids, (std::vector<int32_t>{1, 3, 5, 2, 8, 0, 4, 6, 7}));
  });
}

TEST(MoeRouteTest, ExtremesAndNumbersThatAreNone) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {1e30f, -1e30f, 0, 1},     {-kInf, -kInf, 5, -200},
      {kNaN, 1, kNaN, 2},        {kNaN, kNaN, kNaN, kNaN},
      {kInf, 0, kInf, 1},        {-kInf, -kInf, -kInf, -kInf},
      {3.4e38f, -3.4e38f, 0, 0},
  };
  ForEachHwyTarget([&] {
    for (const std::vector<float>& logits : rows) {
      for (const bool normalise : {false, true}) {
        const Routed routed = Route(1, 4, 3, normalise, logits.data(), 4);
        const std::set<int32_t> ids(routed.ids.begin(), routed.ids.end());
        EXPECT_EQ(ids.size(), 3u);
        EXPECT_TRUE(*ids.begin() >= 0 && *ids.rbegin() < 4);
      }
    }
    const Routed sure = Route(1, 4, 2, true, rows[0].data(), 4);
    EXPECT_EQ(sure.weights, (std::vector<float>{1, 0}));
    // Numbers come before what is none, and the weights show that there was
    // one.
    const Routed none = Route(1, 4, 3, false, rows[2].data(), 4);
    EXPECT_EQ(none.ids, (std::vector<int32_t>{3, 1, 0}));
    EXPECT_TRUE(std::isnan(none.weights[0]));
  });
}

TEST(MoeRouteTest, RowHasTheSameBitsInCompanyAndWithThreads) {
  constexpr int kRows = 100, kExperts = 257, kTopK = 8;
  Random random(7);
  const std::vector<float> logits = random.Gaussians(kRows * kExperts, 3.0f);
  for (const bool normalise : {false, true}) {
    ForEachHwyTarget([&] {
      const Routed all =
          Route(kRows, kExperts, kTopK, normalise, logits.data(), kExperts);
      for (int row = 0; row < kRows; ++row) {
        const Routed one = Route(1, kExperts, kTopK, normalise,
                                 logits.data() + row * kExperts, kExperts);
        EXPECT_TRUE(
            SameBits(one.ids.data(), all.ids.data() + row * kTopK, kTopK));
        EXPECT_TRUE(SameBits(one.weights.data(),
                             all.weights.data() + row * kTopK, kTopK));
      }
      for (const size_t threads : {2, 3}) {
        const ThreadPool pool(threads);
        const Routed shared = Route(kRows, kExperts, kTopK, normalise,
                                    logits.data(), kExperts, pool.get());
        EXPECT_TRUE(SameBits(shared.ids, all.ids));
        EXPECT_TRUE(SameBits(shared.weights, all.weights));
      }
    });
  }
}

// Answers, places and weights for `rows` rows.
struct Answers {
  Answers(int rows, int dim, int top_k, uint64_t seed) {
    Random random(seed);
    x = random.Gaussians(rows * top_k * dim);
    y = random.Gaussians(rows * dim);
    logits = random.Gaussians(2 * rows, 3.0f);
    for (int i = 0; i < rows * top_k; ++i) {
      // A permutation, as pairs that were sorted by expert are.
      places.push_back((i * 7 + 3) % (rows * top_k));
      weights.push_back(static_cast<float>(random.Unit()));
    }
  }
  std::vector<float> x, y, logits, weights;
  std::vector<int32_t> places;
};

TEST(MoeGatherTest, EveryChoiceGetsItsRow) {
  constexpr int kRows = 50, kDim = 37, kTopK = 3;
  const Answers a(kRows, kDim, kTopK, 1);
  for (const size_t threads : {1, 3}) {
    const ThreadPool pool(threads);
    CanaryBuffer<float> x(a.x.size(), 1);
    MoeGather(kRows, kDim, kTopK, a.y.data(), a.places.data(), x.data(),
              pool.get());
    EXPECT_TRUE(x.Intact());
    for (int i = 0; i < kRows * kTopK; ++i) {
      EXPECT_TRUE(SameBits(x.data() + a.places[i] * kDim,
                           a.y.data() + i / kTopK * kDim, kDim));
    }
  }
}

TEST(MoeCombineTest, EveryLengthAndAlignmentMatchesReference) {
  constexpr int kRows = 4;
  for (const int dim : {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100}) {
    for (const int top_k : {1, 2, 5}) {
      const Answers a(kRows, dim, top_k, static_cast<uint64_t>(dim * top_k));
      const size_t misalign = static_cast<size_t>(dim) % 5;
      const CanaryBuffer<float> x(a.x, misalign);
      ForEachHwyTarget([&] {
        CanaryBuffer<float> y(a.y, misalign);
        MoeCombine(kRows, dim, top_k, x.data(), a.places.data(),
                   a.weights.data(), a.logits.data(), 2, y.data(), nullptr);
        EXPECT_TRUE(y.Intact());
        for (int i = 0; i < kRows * dim; ++i) {
          const int row = i / dim;
          std::vector<double> values, weights;
          double scale = std::abs(a.y[i]);
          for (int j = 0; j < top_k; ++j) {
            const int pair = row * top_k + j;
            values.push_back(a.x[a.places[pair] * dim + i % dim]);
            weights.push_back(a.weights[pair]);
            scale += std::abs(values.back() * weights.back());
          }
          // A rounding for each term, and that of the sigmoid.
          EXPECT_NEAR(
              y[i],
              MoeCombineReference(values, weights, a.logits[2 * row], a.y[i]),
              scale * (top_k + 8) * 0x1p-24);
        }
      });
    }
  }
}

TEST(MoeCombineTest, AnswersAreAddedByRank) {
  // 2^24 + 1 - 2^24: 1 is lost if it comes second.
  const std::vector<float> x = {0x1p24f, 1, -0x1p24f};
  const std::vector<float> weights = {1, 1, 1};
  const float off = -200;
  const auto combined = [&](const std::vector<int32_t>& places) {
    float y = 9;
    MoeCombine(1, 1, 3, x.data(), places.data(), weights.data(), &off, 1, &y,
               nullptr);
    return y;
  };
  ForEachHwyTarget([&] {
    EXPECT_EQ(combined({0, 1, 2}), 0.0f);
    EXPECT_EQ(combined({0, 2, 1}), 1.0f);
    EXPECT_EQ(combined({2, 0, 1}), 1.0f);
  });
}

TEST(MoeCombineTest, RowHasTheSameBitsInCompanyAndWithThreads) {
  constexpr int kRows = 60, kDim = 331, kTopK = 3;
  const Answers a(kRows, kDim, kTopK, 5);
  ForEachHwyTarget([&] {
    std::vector<float> all = a.y;
    MoeCombine(kRows, kDim, kTopK, a.x.data(), a.places.data(),
               a.weights.data(), a.logits.data(), 2, all.data(), nullptr);
    std::vector<float> singly = a.y;
    for (int row = 0; row < kRows; ++row) {
      MoeCombine(1, kDim, kTopK, a.x.data(), a.places.data() + row * kTopK,
                 a.weights.data() + row * kTopK, a.logits.data() + 2 * row, 2,
                 singly.data() + row * kDim, nullptr);
    }
    EXPECT_TRUE(SameBits(singly, all));
    for (const size_t threads : {2, 3}) {
      const ThreadPool pool(threads);
      std::vector<float> shared = a.y;
      MoeCombine(kRows, kDim, kTopK, a.x.data(), a.places.data(),
                 a.weights.data(), a.logits.data(), 2, shared.data(),
                 pool.get());
      EXPECT_TRUE(SameBits(shared, all));
    }
  });
}

}  // namespace
}  // namespace deltaedge
