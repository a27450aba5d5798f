// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_XNN_TILES_H_
#define DELTAEDGE_ENGINE_OPS_XNN_TILES_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace deltaedge {

// A kernel of XNNPACK's: xnn_gemm_ukernel_fn, or xnn_dqgemm_ukernel_fn if it
// takes int8 rows.
using XnnKernel = void (*)();

struct XnnTile {
  int32_t rows;  // It takes so many at most.
  XnnKernel kernel;
};

// Kernels for more than one row and for fewer than `tallest` takes, by their
// heights, that read the same packed weights and add up in the same order. An
// XNNPACK operator knows two heights, one row and the tallest, so that two rows
// take it as long as ten or fourteen. Empty if none are known.
absl::Span<const XnnTile> LowerTiles(XnnKernel tallest);

// What XNNPACK's packed weights depend on beside the weights: its version, the
// processor, the shapes of its kernels.
std::string XnnPackingIdentity();

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_XNN_TILES_H_
