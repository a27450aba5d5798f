// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_INPUT_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_INPUT_H_

#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/weights.h"
#include "kernels/quant/quantize_rows.h"
#include "pthreadpool.h"

namespace deltaedge {

// Whether products with such weights want rows of int8.
inline bool TakesInt8(WeightType type) {
  return type == WeightType::kQ8 || type == WeightType::kQ4;
}

// A batch of rows on its way into products. Weights of 8 and 4 bits want rows
// of int8: they are made when the first such product runs, and serve all that
// take the batch.
//
//   input.Set(h, rows, hidden_size);
//   q->Run(input, queries, pool);
//   kv->Run(input, keys_and_values, pool);
//
// Holds the int8 rows of one batch, so a model needs one. Not thread-safe.
class LinearInput {
 public:
  // Room for batches of up to `max_rows` rows of up to `max_features` numbers.
  // ResourceExhausted: no memory.
  static absl::StatusOr<LinearInput> Allocate(int32_t max_rows,
                                              int32_t max_features);

  // x: [rows, features], dense, not to be changed while products take it.
  // kReadablePastEnd bytes behind it are readable, as an AlignedBuffer's are:
  // vector loads may look there, nothing depends on what they find.
  void Set(const float* x ABSL_ATTRIBUTE_LIFETIME_BOUND, int32_t rows,
           int32_t features);

  static constexpr int64_t kReadablePastEnd = AlignedBuffer::kReadablePastEnd;

  const float* x() const { return x_; }
  int32_t rows() const { return rows_; }
  int32_t features() const { return features_; }

  // x as int8, and how each row was rounded (QuantizeRows).
  struct Quantized {
    const int8_t* q;                      // [rows, features]
    const RowQuantization* quantization;  // [rows]
  };
  Quantized Quantize(pthreadpool_t pool);

  // Memory held.
  int64_t bytes() const { return q_.size_bytes() + quantization_.size_bytes(); }

 private:
  const float* x_ = nullptr;
  int32_t rows_ = 0;
  int32_t features_ = 0;
  bool quantized_ = false;
  AlignedArray<int8_t> q_;
  AlignedArray<RowQuantization> quantization_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_INPUT_H_
