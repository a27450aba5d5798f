// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_WEIGHT_WRITER_H_
#define DELTAEDGE_TOOLS_CONVERT_WEIGHT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {

// Appends floats to the tensors of a model file, which become on the way what
// was announced to the ModelWriter: a piece is all that is in memory.
class WeightWriter {
 public:
  // Borrows `writer`.
  explicit WeightWriter(ModelWriter* writer) : writer_(writer) {}

  // Errors of both are those of ModelWriter.
  absl::Status Begin(const TensorSpec& spec);
  // The next values, row-major and finite, in whole rows.
  absl::Status Append(absl::Span<const float> values);

  // About `values` numbers, in whole rows: a good piece of this tensor.
  static int64_t PieceOf(const TensorSpec& spec, int64_t values);

 private:
  ModelWriter* const writer_;
  TensorSpec spec_;
  std::vector<std::byte> numbers_, scales_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_WEIGHT_WRITER_H_
