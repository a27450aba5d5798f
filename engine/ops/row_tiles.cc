// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_tiles.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "engine/base/checked_math.h"

namespace deltaedge {

int32_t TileFor(absl::Span<const int32_t> heights, int32_t rows) {
  const auto first = std::lower_bound(heights.begin(), heights.end(), rows);
  assert(first != heights.end());
  return static_cast<int32_t>(first - heights.begin());
}

int32_t TileRows(absl::Span<const int32_t> heights, int32_t rows) {
  assert(rows >= 1);
  const auto time = [&](int64_t tile_rows) -> int64_t {
    const int32_t tile = TileFor(heights, static_cast<int32_t>(tile_rows));
    return std::max(heights[tile], 3);
  };
  int64_t best_rows = 0;
  int64_t least_time = std::numeric_limits<int64_t>::max();
  for (auto height = heights.rbegin(); height != heights.rend(); ++height) {
    const int64_t tile_rows = DivideUp(rows, DivideUp(rows, *height));
    const int64_t whole_tiles = DivideUp(rows, tile_rows) - 1;
    const int64_t rest = rows - whole_tiles * tile_rows;
    const int64_t total = whole_tiles * time(tile_rows) + time(rest);
    if (total < least_time) {
      least_time = total;
      best_rows = tile_rows;
    }
  }
  return static_cast<int32_t>(best_rows);
}

}  // namespace deltaedge
