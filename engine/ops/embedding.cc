// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/base/mmap_file.h"
#include "engine/model/dequantise.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

namespace {

// Rows of more numbers than this are touched.
constexpr int32_t kMaxCopiedFloats = 8192;

// Row `row` of `table` alone, copied to `buffer`: scales, which have an
// alignment, then numbers.
MatrixView CopyRow(const MatrixView& table, int64_t row, const MmapFile& file,
                   std::byte* buffer) {
  const int64_t number_bytes = RowBytes(table);
  const int64_t scale_bytes = ScaleBytes(table);
  MatrixView copied = table;
  copied.rows = 1;
  copied.data = buffer + scale_bytes;
  file.Copy(static_cast<const std::byte*>(table.data) + row * number_bytes,
            static_cast<size_t>(number_bytes), buffer + scale_bytes);
  if (scale_bytes == 0) return copied;
  copied.scales = buffer;
  file.Copy(static_cast<const std::byte*>(table.scales) + row * scale_bytes,
            static_cast<size_t>(scale_bytes), buffer);
  return copied;
}

}  // namespace

void EmbedRows(const MatrixView& table, const MmapFile* file,
               absl::Span<const TokenId> tokens, float* x) {
  alignas(64) std::byte buffer[kMaxCopiedFloats * sizeof(float)];
  if (table.cols > kMaxCopiedFloats) file = nullptr;
  for (const TokenId token : tokens) {
    assert(token >= 0 && token < table.rows);
    if (file == nullptr) {
      DequantiseRow(table, token, x);
    } else {
      DequantiseRow(CopyRow(table, token, *file, buffer), 0, x);
    }
    x += table.cols;
  }
}

}  // namespace deltaedge
