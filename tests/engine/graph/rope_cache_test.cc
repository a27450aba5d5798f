// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/rope_cache.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/rope/rope.h"

namespace deltaedge {
namespace {

constexpr int32_t kDim = 10;
constexpr double kTheta = 1e4;

// Positions that were not seen, that were, both, and those that are not kept.
TEST(RopeCacheTest, RowsAreThoseOfTheTable) {
  absl::StatusOr<RopeCache> cache = RopeCache::Create(kDim, kTheta);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const struct {
    int64_t position;
    int32_t rows;
  } kCases[] = {{7, 3},
                {0, 1},
                {5, 9},
                {10, 0},
                {14, 1},
                {2000, 256},
                {RopeCache::kKept - 4, 4},
                {RopeCache::kKept - 3, 4},
                {RopeCache::kKept + 100, 2},
                {RopeCache::kKept - 1, 1},
                {100, 16}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.position);
    const size_t floats = static_cast<size_t>(c.rows) * kDim / 2;
    std::vector<float> cos(floats + 1, 7.0f), sin(cos), kept_cos(cos),
        kept_sin(cos);
    RopeTable(c.position, c.rows, kDim, kTheta, cos.data(), sin.data());
    cache->Copy(c.position, c.rows, kept_cos.data(), kept_sin.data());
    EXPECT_EQ(kept_cos, cos);
    EXPECT_EQ(kept_sin, sin);
  }
}

TEST(RopeCacheTest, NothingIsRotated) {
  absl::StatusOr<RopeCache> cache = RopeCache::Create(0, kTheta);
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache->Copy(3, 4, nullptr, nullptr);
}

}  // namespace
}  // namespace deltaedge
