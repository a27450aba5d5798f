// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear_input.h"

#include <cassert>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "kernels/quant/quantize_rows.h"
#include "pthreadpool.h"

namespace deltaedge {

absl::StatusOr<LinearInput> LinearInput::Allocate(int32_t max_rows,
                                                  int32_t max_features) {
  LinearInput input;
  DELTAEDGE_ASSIGN_OR_RETURN(
      input.q_, AlignedArray<int8_t>::Allocate({max_rows, max_features},
                                               "rounded inputs of products"));
  DELTAEDGE_ASSIGN_OR_RETURN(input.quantization_,
                             AlignedArray<RowQuantization>::Allocate(
                                 max_rows, "rounded inputs of products"));
  return input;
}

void LinearInput::Set(const float* x, int32_t rows, int32_t features) {
  assert(rows >= 0 && rows <= quantization_.size());
  assert(features >= 1 && int64_t{rows} * features <= q_.size());
  x_ = x;
  rows_ = rows;
  features_ = features;
  quantized_ = false;
}

LinearInput::Quantized LinearInput::Quantize(pthreadpool_t pool) {
  if (!quantized_) {
    QuantizeRows(rows_, features_, x_, q_.data(), quantization_.data(), pool);
    quantized_ = true;
  }
  return {q_.data(), quantization_.data()};
}

}  // namespace deltaedge
