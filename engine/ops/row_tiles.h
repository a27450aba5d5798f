// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_ROW_TILES_H_
#define DELTAEDGE_ENGINE_OPS_ROW_TILES_H_

#include <cstdint>

#include "absl/types/span.h"

namespace deltaedge {

// How a batch of rows is cut into tiles for kernels of several heights. A
// kernel takes any number of rows up to its height, and as long for few as for
// all; one for less than three rows takes about as long as one for three,
// because it waits for its own sums.

// The place in `heights`, which ascend, of the first that holds `rows`. Not
// more than the last.
int32_t TileFor(absl::Span<const int32_t> heights, int32_t rows);

// Rows of each tile of a batch but the last, which has what is left: as even a
// cut as takes the least time, and of those the one of the fewest tiles.
// rows >= 1.
int32_t TileRows(absl::Span<const int32_t> heights, int32_t rows);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_ROW_TILES_H_
