// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/weights.h"
#include "pthreadpool.h"

namespace deltaedge {

struct LinearOptions {
  // Batches of fewer rows are filled up to this many with copies of the last
  // row. More than 1 only on a machine whose kernels for few rows round
  // differently from those for many (row_check.h finds out); each call then
  // costs as much as this many rows. 1 .. kMaxMinRows.
  int32_t min_rows = 1;

  static constexpr int32_t kMaxMinRows = 64;
};

// y = x W^T for a batch of rows. W is made of one or more matrices that share
// their inputs and whose outputs lie side by side, so that one launch serves
// all of them.
//
// The promise on which lossless speculation stands: a row's bits depend on that
// row and on W only, not on the number of rows, on its place among them, or on
// the number of threads. It holds for one machine and one build.
//
//   absl::StatusOr<std::unique_ptr<Linear>> qkv =
//       Linear::Create({q, k, v}, "attention.qkv");
//   ...
//   absl::Status status = (*qkv)->Run(x, rows, y, pool.get());
//
// Not thread-safe: one Run at a time, since it keeps the call's pointers.
class Linear {
 public:
  // XNNPACK with `parts`, each [rows, in], in the order of the outputs. They
  // are read during the call only: weights are packed into memory of their own.
  // While it runs, several parts that are not neighbours in memory need room
  // for a plain copy as well. `name` stands in errors.
  //
  // InvalidArgument: no part, an empty or absent one, or parts that differ in
  // their inputs. Unimplemented: a weight type, or a processor, that XNNPACK or
  // this class does not serve. ResourceExhausted: no memory. Internal: anything
  // else that XNNPACK refuses.
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options = {});

  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  // x: [rows, in_features()], y: [rows, out_features()], both dense; they must
  // not overlap. kReadablePastEnd bytes behind x are readable, as an
  // AlignedBuffer's are: vector loads may look there, nothing depends on what
  // they find. `pool` may be null: the caller's thread does all. 0 rows do
  // nothing. Allocates nothing. Internal if XNNPACK refuses; y is then
  // unspecified.
  absl::Status Run(const float* x, int32_t rows, float* y, pthreadpool_t pool);

  static constexpr int64_t kReadablePastEnd = AlignedBuffer::kReadablePastEnd;

  int32_t in_features() const { return in_features_; }
  int32_t out_features() const { return out_features_; }
  // Memory that the weights occupy, packed.
  int64_t packed_bytes() const { return packed_bytes_; }

 protected:
  struct Shape {
    int32_t in_features = 0;
    int32_t out_features = 0;
  };

  // The shape that `parts` make together; errors as for Create.
  static absl::StatusOr<Shape> CheckParts(absl::Span<const MatrixView> parts,
                                          absl::string_view name);

  explicit Linear(const Shape& shape)
      : in_features_(shape.in_features), out_features_(shape.out_features) {}

  // For factories: makes room for padding.
  absl::Status Configure(const LinearOptions& options, absl::string_view name);
  void set_packed_bytes(int64_t bytes) { packed_bytes_ = bytes; }

  // Run without padding, for at least one row.
  virtual absl::Status Multiply(const float* x, int32_t rows, float* y,
                                pthreadpool_t pool) = 0;

 private:
  const int32_t in_features_;
  const int32_t out_features_;
  int64_t packed_bytes_ = 0;
  int32_t min_rows_ = 1;
  // Empty unless min_rows_ > 1.
  AlignedArray<float> padded_x_;  // [min_rows_, in_features_]
  AlignedArray<float> padded_y_;  // [min_rows_, out_features_]
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_H_
