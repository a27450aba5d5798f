// SPDX-License-Identifier: Apache-2.0

#include "kernels/attn/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attn/attention_reference.h"
#include "kernels/base/argument_error.h"
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

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int rows;
  int ratio;  // query heads of a key head
  int kv_heads;
  int head_dim;
  int64_t capacity;
};

// Queries, keys and values of one call. Keys and values exist at the positions
// that some row sees; every other float of the store, and the gaps between the
// query heads, are NaN.
struct Problem {
  Shape shape;
  std::vector<KeyRange> range;
  int64_t q_head_stride;
  int64_t q_row_stride;
  std::vector<float> q;
  std::vector<float> k, v;  // [capacity, kv_heads, head_dim]
  std::vector<float> k_store, v_store;
  float scale;

  int q_heads() const { return shape.kv_heads * shape.ratio; }
  int64_t out_row() const { return int64_t{q_heads()} * shape.head_dim; }

  Problem(const Shape& s, std::vector<KeyRange> ranges, uint64_t seed)
      : shape(s), range(std::move(ranges)) {
    Random random(seed);
    q_head_stride = s.head_dim + 3;
    q_row_stride = q_heads() * q_head_stride + 5;
    q.assign(static_cast<size_t>(s.rows * q_row_stride), kNaN);
    for (int i = 0; i < s.rows * q_heads(); ++i) {
      for (int d = 0; d < s.head_dim; ++d) {
        q[i / q_heads() * q_row_stride + i % q_heads() * q_head_stride + d] =
            random.Gaussian();
      }
    }
    const size_t size =
        static_cast<size_t>(s.capacity * s.kv_heads * s.head_dim);
    k = random.Gaussians(size);
    v = random.Gaussians(size);
    scale = 1.5f / std::sqrt(static_cast<float>(s.head_dim));
    Store();
  }

  // Writes k and v into a new store, one run of positions at a time.
  void Store() {
    k_store.assign(static_cast<size_t>(KvKeyFloats(
                       shape.kv_heads, shape.head_dim, shape.capacity)),
                   kNaN);
    v_store.assign(static_cast<size_t>(KvValueFloats(
                       shape.kv_heads, shape.head_dim, shape.capacity)),
                   kNaN);
    std::vector<bool> seen(static_cast<size_t>(shape.capacity));
    for (const KeyRange& r : range) {
      std::fill(seen.begin() + r.begin, seen.begin() + r.end, true);
    }
    const int64_t stride = int64_t{shape.kv_heads} * shape.head_dim;
    for (int64_t p = 0; p < shape.capacity; ++p) {
      if (!seen[static_cast<size_t>(p)]) continue;
      KvWrite(View(), p, 1, k.data() + p * stride, stride,
              v.data() + p * stride, stride);
    }
  }

  KvView View() {
    return {k_store.data(), v_store.data(), shape.kv_heads, shape.head_dim,
            shape.capacity};
  }

  AttentionBlock Block(float* out, int64_t out_stride) {
    return {shape.rows,    q_heads(),    View(), q.data(), q_row_stride,
            q_head_stride, range.data(), scale,  out,      out_stride};
  }

  std::vector<float> Run(pthreadpool_t pool = nullptr) {
    CanaryBuffer<float> out(static_cast<size_t>(shape.rows * out_row()),
                            shape.rows % 4);
    const AttentionBlock block = Block(out.data(), out_row());
    ArgumentError error;
    EXPECT_TRUE(CheckAttentionBlock(block, &error)) << error.argument;
    AttentionForward(block, pool);
    EXPECT_TRUE(out.Intact());
    return out.ToVector();
  }

  std::vector<float> RunRow(int row) {
    std::vector<float> out(static_cast<size_t>(out_row()));
    AttentionBlock block = Block(out.data(), out_row());
    block.rows = 1;
    block.q += row * q_row_stride;
    block.range += row;
    AttentionForward(block, nullptr);
    return out;
  }

  // A weight is off by the error of its score: a chain of head_dim roundings of
  // terms that add up to `magnitude`, which err in both directions, twice (the
  // maximum has the same); and by the exponential's. The sums over keys are
  // chains of as many roundings.
  void ExpectNearReference(const std::vector<float>& out) {
    std::vector<double> expected(out.size());
    AttentionReference(Block(nullptr, out_row()), k.data(), v.data(),
                       expected.data());
    const int64_t dim = shape.head_dim;
    for (int r = 0; r < shape.rows; ++r) {
      for (int h = 0; h < q_heads(); ++h) {
        const float* query = q.data() + r * q_row_stride + h * q_head_stride;
        double magnitude = 0;
        double largest = 0;
        for (int64_t p = range[r].begin; p < range[r].end; ++p) {
          const int64_t at = (p * shape.kv_heads + h / shape.ratio) * dim;
          double sum = 0;
          for (int64_t d = 0; d < dim; ++d) {
            sum += std::abs(double{query[d]} * k[at + d]);
            largest = std::max(largest, std::abs(double{v[at + d]}));
          }
          magnitude = std::max(magnitude, sum * scale);
        }
        const double keys = static_cast<double>(range[r].end - range[r].begin);
        const double limit =
            largest * 0x1p-24 *
            (2 * std::sqrt(double(dim)) * magnitude + 8 + 2 * std::sqrt(keys));
        for (int64_t d = 0; d < dim; ++d) {
          const size_t at = static_cast<size_t>(r * out_row() + h * dim + d);
          ASSERT_NEAR(out[at], expected[at], limit)
              << "row " << r << " head " << h << " element " << d;
        }
      }
    }
  }
};

enum Kind { kCausal, kAll, kSlidingCausal, kSymmetric, kAnything, kKinds };

// Ranges of `rows` rows at the end of `length` positions.
std::vector<KeyRange> Ranges(Kind kind, int rows, int64_t length,
                             Random* random) {
  std::vector<KeyRange> ranges;
  const int64_t window = random->Int(1, 150);
  for (int64_t p = length - rows; p < length; ++p) {
    const int64_t low = std::max<int64_t>(0, p - window + 1);
    switch (kind) {
      case kCausal:
        ranges.push_back({0, p + 1});
        break;
      case kAll:
        ranges.push_back({0, length});
        break;
      case kSlidingCausal:
        ranges.push_back({low, p + 1});
        break;
      case kSymmetric:
        ranges.push_back({low, std::min(length, p + window)});
        break;
      default: {
        const int64_t begin = random->Int(0, static_cast<int>(length) - 1);
        ranges.push_back({begin, random->Int(static_cast<int>(begin) + 1,
                                             static_cast<int>(length))});
      }
    }
  }
  return ranges;
}

Problem RandomProblem(uint64_t seed) {
  Random random(seed);
  constexpr int kHeadDims[] = {4, 8, 12, 16, 20, 32, 44, 64, 128, 256};
  constexpr int kRatios[] = {1, 2, 3, 4, 6};
  Shape shape;
  shape.rows = random.OneIn(3) ? 1 : random.Int(2, 19);
  shape.ratio = kRatios[random.Int(0, 4)];
  shape.kv_heads = random.Int(1, 3);
  shape.head_dim = kHeadDims[random.Int(0, 9)];
  const int64_t length = shape.rows + random.Int(0, 200);
  shape.capacity = length + random.Int(0, 20);
  std::vector<KeyRange> ranges =
      Ranges(static_cast<Kind>(seed % kKinds), shape.rows, length, &random);
  return Problem(shape, std::move(ranges), seed);
}

TEST(AttentionTest, MatchesReferenceForAnyShapeAndRange) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Problem problem = RandomProblem(seed);
    ForEachHwyTarget([&] { problem.ExpectNearReference(problem.Run()); });
  }
}

// Every begin and end around the borders of groups and blocks.
TEST(AttentionTest, MatchesReferenceForEveryBorder) {
  constexpr int kBorders[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130};
  std::vector<KeyRange> ranges;
  for (const int begin : kBorders) {
    for (const int end : kBorders) {
      if (begin < end) ranges.push_back({begin, end});
    }
  }
  const int rows = static_cast<int>(ranges.size());
  Problem problem({rows, 2, 1, 16, 130}, ranges, 1);
  ForEachHwyTarget([&] {
    const std::vector<float> out = problem.Run();
    problem.ExpectNearReference(out);
    for (int r = 0; r < rows; ++r) {
      EXPECT_TRUE(SameBits(problem.RunRow(r).data(),
                           out.data() + r * problem.out_row(),
                           static_cast<size_t>(problem.out_row())))
          << r;
    }
  });
}

TEST(AttentionTest, RowHasTheSameBitsInCompanyAndWithThreads) {
  std::vector<Problem> problems;
  for (uint64_t seed = 100; seed < 110; ++seed) {
    problems.push_back(RandomProblem(seed));
  }
  ForEachHwyTarget([&] {
    std::vector<std::vector<float>> all;
    for (Problem& problem : problems) {
      all.push_back(problem.Run());
      for (int r = 0; r < problem.shape.rows; ++r) {
        EXPECT_TRUE(SameBits(problem.RunRow(r).data(),
                             all.back().data() + r * problem.out_row(),
                             static_cast<size_t>(problem.out_row())))
            << "problem " << all.size() - 1 << " row " << r;
      }
    }
    for (const size_t threads : {1, 2, 3}) {
      const ThreadPool pool(threads);
      for (size_t i = 0; i < problems.size(); ++i) {
        EXPECT_TRUE(SameBits(problems[i].Run(pool.get()), all[i]))
            << "problem " << i << " threads " << threads;
      }
    }
  });
}

// 41 rows x 4 heads are three tiles of 64 queries.
TEST(AttentionTest, PrefillHasTheBitsOfDecoding) {
  constexpr int kRows = 41;
  Random random(7);
  Problem problem({kRows, 4, 2, 32, 170}, Ranges(kCausal, kRows, 163, &random),
                  7);
  const ThreadPool pool(2);
  ForEachHwyTarget([&] {
    const std::vector<float> all = problem.Run(pool.get());
    problem.ExpectNearReference(all);
    for (int r = 0; r < kRows; ++r) {
      EXPECT_TRUE(SameBits(problem.RunRow(r).data(),
                           all.data() + r * problem.out_row(),
                           static_cast<size_t>(problem.out_row())))
          << "row " << r;
    }
  });
}

TEST(AttentionTest, CapacityDoesNotMatter) {
  Random random(8);
  const std::vector<KeyRange> ranges = Ranges(kCausal, 5, 70, &random);
  Problem tight({5, 2, 2, 24, 70}, ranges, 8);
  Problem wide = tight;
  wide.shape.capacity = 4000;
  wide.k.resize(4000 * 2 * 24);
  wide.v.resize(4000 * 2 * 24);
  wide.Store();
  ForEachHwyTarget([&] { EXPECT_TRUE(SameBits(tight.Run(), wide.Run())); });
}

// Whatever lies outside a row's range, a finite row stays what it is: also
// where another row of the same tile does see it.
TEST(AttentionTest, KeysOutsideTheRangeDoNotShow) {
  for (const float poison :
       {kNaN, std::numeric_limits<float>::infinity(), 1e38f}) {
    SCOPED_TRACE(poison);
    // The last row sees keys 90 .. 99, the others do not.
    Problem clean({6, 1, 1, 16, 100},
                  {{0, 90}, {3, 90}, {70, 90}, {89, 90}, {64, 80}, {80, 90}},
                  9);
    Problem poisoned = clean;
    poisoned.range.back() = {90, 100};
    for (int64_t p = 90; p < 100; ++p) {
      for (int64_t d = 0; d < 16; ++d) {
        poisoned.k[p * 16 + d] = poison;
        poisoned.v[p * 16 + d] = poison;
      }
    }
    poisoned.Store();
    ForEachHwyTarget([&] {
      const std::vector<float> expected = clean.Run();
      const std::vector<float> out = poisoned.Run();
      EXPECT_TRUE(SameBits(out.data(), expected.data(), 5 * 16));
    });
  }
}

TEST(AttentionTest, NaNInsideTheRangeShows) {
  for (const int64_t bad : {3, 66, 99}) {
    Problem problem({3, 2, 1, 16, 100}, {{0, 100}, {bad, bad + 1}, {4, 66}},
                    10);
    problem.k[bad * 16 + 5] = kNaN;
    problem.Store();
    ForEachHwyTarget([&] {
      const std::vector<float> out = problem.Run();
      const size_t row = 2 * 16;
      for (size_t i = 0; i < 2 * row; ++i) EXPECT_TRUE(std::isnan(out[i]));
      for (size_t i = 2 * row; i < 3 * row; ++i) {
        EXPECT_TRUE(std::isfinite(out[i]));
      }
    });
  }
}

TEST(AttentionTest, HugeScoresPickTheLargest) {
  constexpr int kKeys = 200;
  for (const float size : {1e3f, 1e10f, 1e33f}) {
    for (const int slope : {1, -1}) {
      SCOPED_TRACE(::testing::Message() << size << " x " << slope);
      Problem problem({1, 1, 1, 4, kKeys}, {{0, kKeys}}, 11);
      problem.scale = 1.0f;
      for (int p = 0; p < kKeys; ++p) {
        for (int d = 0; d < 4; ++d) problem.k[p * 4 + d] = 0.0f;
        problem.k[p * 4] = size * static_cast<float>(slope * (p - 100));
      }
      problem.q[0] = 1.0f;
      problem.Store();
      const int winner = slope > 0 ? kKeys - 1 : 0;
      ForEachHwyTarget([&] {
        const std::vector<float> out = problem.Run();
        for (int d = 0; d < 4; ++d) {
          EXPECT_EQ(out[d], problem.v[winner * 4 + d]);
        }
      });
    }
  }
}

TEST(AttentionTest, EqualScoresAverage) {
  constexpr int kKeys = 160;
  for (const float score : {0.0f, 1e30f, -1e30f}) {
    SCOPED_TRACE(score);
    Problem problem({1, 2, 1, 8, kKeys}, {{0, kKeys}}, 12);
    problem.scale = 1.0f;
    std::fill(problem.q.begin(), problem.q.end(), 0.0f);
    for (int h = 0; h < 2; ++h) problem.q[h * problem.q_head_stride] = 1.0f;
    for (int p = 0; p < kKeys; ++p) {
      problem.k[p * 8] = score;
      for (int d = 0; d < 8; ++d) {
        problem.v[p * 8 + d] = static_cast<float>(p % 5 + d);
      }
    }
    problem.Store();
    ForEachHwyTarget([&] {
      const std::vector<float> out = problem.Run();
      // Small integers: exact.
      for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i], 2.0f + i % 8);
    });
  }
}

TEST(AttentionTest, OneKeyIsItsValue) {
  Problem problem({2, 3, 2, 20, 65}, {{64, 65}, {17, 18}}, 13);
  ForEachHwyTarget([&] {
    const std::vector<float> out = problem.Run();
    for (int r = 0; r < 2; ++r) {
      for (int h = 0; h < 6; ++h) {
        const int64_t p = problem.range[r].begin;
        EXPECT_TRUE(SameBits(out.data() + r * problem.out_row() + h * 20,
                             problem.v.data() + (p * 2 + h / 3) * 20, 20));
      }
    }
  });
}

TEST(AttentionTest, NoRowsIsNothing) {
  Problem problem({1, 1, 1, 4, 1}, {{0, 1}}, 14);
  AttentionBlock block = problem.Block(nullptr, 4);
  block.rows = 0;
  ArgumentError error;
  EXPECT_TRUE(CheckAttentionBlock(block, &error));
  AttentionForward(block, nullptr);
}

TEST(KvStoreTest, HoldsTheDocumentedLayoutAndNothingElse) {
  constexpr int kHeads = 2;
  constexpr int kDim = 12;
  constexpr int64_t kCapacity = 37;
  constexpr int64_t kPadded = 48;
  ASSERT_EQ(KvKeyFloats(kHeads, kDim, kCapacity), kHeads * kPadded * kDim);
  ASSERT_EQ(KvValueFloats(kHeads, kDim, kCapacity), kHeads * kPadded * kDim);
  Random random(15);
  for (int position = 0; position < kCapacity; ++position) {
    for (const int rows : {0, 1, 2, 16, 17, 37}) {
      if (position + rows > kCapacity) continue;
      CanaryBuffer<float> k_store(kHeads * kPadded * kDim, 1);
      CanaryBuffer<float> v_store(kHeads * kPadded * kDim, 3);
      const KvView view = {k_store.data(), v_store.data(), kHeads, kDim,
                           kCapacity};
      const int64_t k_stride = kHeads * kDim + 1;
      const int64_t v_stride = kHeads * kDim + 2;
      std::vector<float> k =
          random.Gaussians(static_cast<size_t>(rows * k_stride));
      std::vector<float> v =
          random.Gaussians(static_cast<size_t>(rows * v_stride));
      KvWrite(view, position, rows, k.data(), k_stride, v.data(), v_stride);
      EXPECT_TRUE(k_store.Intact() && v_store.Intact());
      for (int64_t p = 0; p < kPadded; ++p) {
        for (int h = 0; h < kHeads; ++h) {
          for (int d = 0; d < kDim; ++d) {
            const float key =
                k_store[((h * kPadded / 16 + p / 16) * kDim + d) * 16 + p % 16];
            const float value = v_store[(h * kPadded + p) * kDim + d];
            if (p >= position && p < position + rows) {
              EXPECT_EQ(key, k[(p - position) * k_stride + h * kDim + d]);
              EXPECT_EQ(value, v[(p - position) * v_stride + h * kDim + d]);
            } else {
              EXPECT_TRUE(std::isnan(key) && std::isnan(value));
            }
          }
        }
      }
      CanaryBuffer<float> k_read(static_cast<size_t>(rows) * kHeads * kDim);
      CanaryBuffer<float> v_read(static_cast<size_t>(rows) * kHeads * kDim);
      KvRead(view, position, rows, k_read.data(), v_read.data());
      EXPECT_TRUE(k_read.Intact() && v_read.Intact());
      for (int r = 0; r < rows; ++r) {
        EXPECT_TRUE(SameBits(k_read.data() + r * kHeads * kDim,
                             k.data() + r * k_stride, kHeads * kDim));
        EXPECT_TRUE(SameBits(v_read.data() + r * kHeads * kDim,
                             v.data() + r * v_stride, kHeads * kDim));
      }
    }
  }
}

// Bits that a copy must not touch: quiet and signalling NaN, -0, denormals.
std::vector<float> AnyBits(Random& random, size_t size) {
  std::vector<float> values(size);
  for (float& value : values) {
    const uint32_t bits = static_cast<uint32_t>(random.Bits());
    std::memcpy(&value, &bits, sizeof(value));
  }
  return values;
}

TEST(KvCopyTest, CopiesBitsBetweenCapacitiesAndNothingElse) {
  constexpr int kHeads = 3;
  constexpr int kDim = 4;
  const int64_t capacities[] = {1, 15, 16, 17, 37, 48, 50};
  Random random(23);
  for (const int64_t from_capacity : capacities) {
    for (const int64_t to_capacity : capacities) {
      const size_t from_floats =
          static_cast<size_t>(KvKeyFloats(kHeads, kDim, from_capacity));
      const size_t to_floats =
          static_cast<size_t>(KvKeyFloats(kHeads, kDim, to_capacity));
      const int64_t to_padded = (to_capacity + 15) / 16 * 16;
      for (const int64_t rows : {0, 1, 2, 15, 16, 17, 32, 33, 37, 48, 50}) {
        if (rows > std::min(from_capacity, to_capacity)) continue;
        SCOPED_TRACE("from " + std::to_string(from_capacity) + " to " +
                     std::to_string(to_capacity) + " rows " +
                     std::to_string(rows));
        CanaryBuffer<float> from_k(AnyBits(random, from_floats), 1);
        CanaryBuffer<float> from_v(AnyBits(random, from_floats), 3);
        const std::vector<float> before_k = AnyBits(random, to_floats);
        const std::vector<float> before_v = AnyBits(random, to_floats);
        CanaryBuffer<float> to_k(before_k, 5);
        CanaryBuffer<float> to_v(before_v, 7);
        const KvView from = {from_k.data(), from_v.data(), kHeads, kDim,
                             from_capacity};
        const KvView to = {to_k.data(), to_v.data(), kHeads, kDim, to_capacity};
        KvCopy(from, rows, to);
        EXPECT_TRUE(to_k.Intact() && to_v.Intact());

        const size_t row_floats = static_cast<size_t>(rows) * kHeads * kDim;
        std::vector<float> k(row_floats), v(row_floats);
        std::vector<float> k_copy(row_floats), v_copy(row_floats);
        KvRead(from, 0, static_cast<int32_t>(rows), k.data(), v.data());
        KvRead(to, 0, static_cast<int32_t>(rows), k_copy.data(), v_copy.data());
        EXPECT_TRUE(SameBits(k, k_copy));
        EXPECT_TRUE(SameBits(v, v_copy));

        const int64_t keys = (rows + 15) / 16 * 16 * kDim;
        const int64_t values = rows * kDim;
        for (int64_t h = 0; h < kHeads; ++h) {
          const int64_t begin = h * to_padded * kDim;
          EXPECT_TRUE(SameBits(&to_k[begin] + keys, &before_k[begin] + keys,
                               to_padded * kDim - keys));
          EXPECT_TRUE(SameBits(&to_v[begin] + values, &before_v[begin] + values,
                               to_padded * kDim - values));
        }
      }
    }
  }
}

TEST(KvCopyTest, NoRowsNeedNoMemory) {
  const KvView empty = {nullptr, nullptr, 2, 8, 0};
  KvCopy(empty, 0, empty);
}

TEST(CheckAttentionBlockTest, NamesTheFirstUnsoundArgument) {
  Problem problem({2, 2, 2, 8, 20}, {{0, 19}, {0, 20}}, 16);
  std::vector<float> out(static_cast<size_t>(2 * problem.out_row()));
  std::vector<KeyRange> range = problem.range;
  const auto check = [&](auto&& spoil) {
    AttentionBlock block = problem.Block(out.data(), problem.out_row());
    range = problem.range;
    block.range = range.data();
    spoil(block);
    ArgumentError error = {"", -1, 0, ""};
    if (CheckAttentionBlock(block, &error)) return std::string("sound");
    EXPECT_STRNE(error.allowed, "");
    return error.argument +
           (error.index < 0 ? "" : std::to_string(error.index)) + "=" +
           std::to_string(error.value);
  };
  using B = AttentionBlock;
  EXPECT_EQ(check([](B&) {}), "sound");
  EXPECT_EQ(check([](B& b) { b.rows = -1; }), "rows=-1");
  EXPECT_EQ(check([](B& b) { b.kv.kv_heads = 0; }), "kv.kv_heads=0");
  EXPECT_EQ(check([](B& b) { b.q_heads = 0; }), "q_heads=0");
  EXPECT_EQ(check([](B& b) { b.q_heads = 3; }), "q_heads=3");
  EXPECT_EQ(check([](B& b) { b.kv.head_dim = 0; }), "kv.head_dim=0");
  EXPECT_EQ(check([](B& b) { b.kv.head_dim = 10; }), "kv.head_dim=10");
  EXPECT_EQ(check([](B& b) { b.kv.head_dim = 516; }), "kv.head_dim=516");
  EXPECT_EQ(check([](B& b) { b.kv.capacity = -1; }), "kv.capacity=-1");
  EXPECT_EQ(check([](B& b) { b.kv.k = nullptr; }), "kv.k=0");
  EXPECT_EQ(check([](B& b) { b.kv.v = nullptr; }), "kv.v=0");
  EXPECT_EQ(check([](B& b) { b.q = nullptr; }), "q=0");
  EXPECT_EQ(check([](B& b) { b.range = nullptr; }), "range=0");
  EXPECT_EQ(check([](B& b) { b.out = nullptr; }), "out=0");
  EXPECT_EQ(check([](B& b) { b.q_row_stride = -1; }), "q_row_stride=-1");
  EXPECT_EQ(check([](B& b) { b.q_head_stride = -1; }), "q_head_stride=-1");
  EXPECT_EQ(check([](B& b) { b.out_row_stride = 31; }), "out_row_stride=31");
  EXPECT_EQ(check([&](B&) { range[1].begin = -1; }), "range[].begin1=-1");
  EXPECT_EQ(check([&](B&) { range[1] = {5, 5}; }), "range[].end1=5");
  EXPECT_EQ(check([&](B&) { range[0].end = 21; }), "range[].end0=21");
}

}  // namespace
}  // namespace deltaedge
