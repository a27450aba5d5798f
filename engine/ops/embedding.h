// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_EMBEDDING_H_
#define DELTAEDGE_ENGINE_OPS_EMBEDDING_H_

#include "absl/types/span.h"
#include "engine/base/mmap_file.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

// The rows of `table` [V, H] that `tokens` name, in their order: x
// [tokens.size(), H], dense. The table stays as it is stored, of any type; only
// these rows become floats (engine/model/dequantise.h). Every token is in
// 0 .. V-1: the session has seen to that. `file`: null, or what the table lies
// in, of which no more than these rows is then looked at. Any thread.
void EmbedRows(const MatrixView& table, const MmapFile* file,
               absl::Span<const TokenId> tokens, float* x);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_EMBEDDING_H_
