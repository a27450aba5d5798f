// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

#include <cassert>

#include "absl/types/span.h"
#include "engine/model/dequantise.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

void EmbedRows(const MatrixView& table, absl::Span<const TokenId> tokens,
               float* x) {
  for (TokenId token : tokens) {
    assert(token >= 0 && token < table.rows);
    DequantiseRow(table, token, x);
    x += table.cols;
  }
}

}  // namespace deltaedge
