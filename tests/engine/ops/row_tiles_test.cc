// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_tiles.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

// Those of a batch, as their heights.
std::vector<int32_t> Tiles(const std::vector<int32_t>& heights, int32_t rows) {
  std::vector<int32_t> tiles;
  const int32_t tile_rows = TileRows(heights, rows);
  for (int32_t row = 0; row < rows; row += tile_rows) {
    tiles.push_back(heights[TileFor(heights, std::min(tile_rows, rows - row))]);
  }
  return tiles;
}

TEST(RowTilesTest, TileForIsTheLowestThatHolds) {
  const std::vector<int32_t> heights = {1, 5, 8, 10};
  EXPECT_EQ(TileFor(heights, 1), 0);
  EXPECT_EQ(TileFor(heights, 2), 1);
  EXPECT_EQ(TileFor(heights, 5), 1);
  EXPECT_EQ(TileFor(heights, 6), 2);
  EXPECT_EQ(TileFor(heights, 10), 3);
}

TEST(RowTilesTest, CutsEvenly) {
  const std::vector<int32_t> heights = {1, 5, 8, 10};
  using Heights = std::vector<int32_t>;
  EXPECT_EQ(Tiles(heights, 1), (Heights{1}));
  EXPECT_EQ(Tiles(heights, 2), (Heights{5}));
  EXPECT_EQ(Tiles(heights, 6), (Heights{8}));
  EXPECT_EQ(Tiles(heights, 10), (Heights{10}));
  EXPECT_EQ(Tiles(heights, 11), (Heights{8, 5}));
  EXPECT_EQ(Tiles(heights, 16), (Heights{8, 8}));
  EXPECT_EQ(Tiles(heights, 17), (Heights{10, 8}));
  EXPECT_EQ(Tiles(heights, 20), (Heights{10, 10}));
}

TEST(RowTilesTest, PrefersSeveralLowTilesToAHighOneHalfEmpty) {
  using Heights = std::vector<int32_t>;
  EXPECT_EQ(Tiles({1, 5, 14}, 9), (Heights{5, 5}));
  EXPECT_EQ(Tiles({1, 5, 14}, 13), (Heights{14}));
  EXPECT_EQ(Tiles({1, 4, 7}, 8), (Heights{4, 4}));
  // One row at a time costs as much as three.
  EXPECT_EQ(Tiles({1, 10}, 2), (Heights{1, 1}));
  EXPECT_EQ(Tiles({1, 10}, 4), (Heights{10}));
}

TEST(RowTilesTest, OneKernelTakesAll) {
  for (int32_t rows = 1; rows <= 100; ++rows) {
    for (const int32_t height : {1, 4, 10}) {
      EXPECT_EQ(Tiles({height}, rows).size(),
                static_cast<size_t>((rows + height - 1) / height));
    }
  }
}

TEST(RowTilesTest, WastesLessThanATile) {
  const std::vector<std::vector<int32_t>> kernels = {{1, 5, 7, 8, 10},
                                                     {1, 5, 8, 10, 14},
                                                     {1, 4, 5, 6, 7},
                                                     {1, 2, 3, 4},
                                                     {1, 4},
                                                     {1, 2, 3},
                                                     {8},
                                                     {1}};
  for (const std::vector<int32_t>& heights : kernels) {
    for (int32_t rows = 1; rows <= 600; ++rows) {
      int32_t sum = 0;
      for (const int32_t height : Tiles(heights, rows)) sum += height;
      EXPECT_GE(sum, rows);
      EXPECT_LT(sum, rows + heights.back()) << rows;
    }
  }
}

}  // namespace
}  // namespace deltaedge
