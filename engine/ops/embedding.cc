// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

void EmbedRows(const MatrixView& table, absl::Span<const TokenId> tokens,
               float* x) {
  assert(table.type == WeightType::kF32);
  for (TokenId token : tokens) {
    assert(token >= 0 && token < table.rows);
    x = std::copy_n(table.f32() + int64_t{token} * table.cols, table.cols, x);
  }
}

}  // namespace deltaedge
