// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_DEQUANTISE_H_
#define DELTAEDGE_ENGINE_MODEL_DEQUANTISE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/weights.h"

namespace deltaedge {

// Whether all of `scales`, as a matrix of `type` has them, are positive and
// normal. InvalidArgument names the first that is not.
absl::Status CheckScales(WeightType type, absl::Span<const std::byte> scales);

// Row `row` of `matrix`, which may be of any type, as floats: out [cols]. Each
// is the product that engine/model/weights.h gives, rounded once, so its bits
// are the same everywhere. `row` is in 0 .. rows-1. Any thread.
void DequantiseRow(const MatrixView& matrix, int64_t row, float* out);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_DEQUANTISE_H_
