// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_EMBEDDING_H_
#define DELTAEDGE_ENGINE_OPS_EMBEDDING_H_

#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

// Copies the rows of `table` [V, H] that `tokens` name, in their order, to x:
// [tokens.size(), H], dense. The table must be kF32 and every token in
// 0 .. V-1: the model file and the session have seen to that. Any thread.
void EmbedRows(const MatrixView& table, absl::Span<const TokenId> tokens,
               float* x);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_EMBEDDING_H_
