// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_LINEAR_H_
#define DELTAEDGE_ENGINE_OPS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/huge_page_arena.h"
#include "engine/model/weights.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/packed_cache.h"
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"

namespace deltaedge {

struct LinearOptions {
  // All batches go through one kernel, the one for the most rows, however few
  // they are; each then costs as much as a full tile of rows. For a machine
  // whose kernels for few rows round differently from those for many
  // (row_check.h finds out).
  bool one_kernel = false;

  // Packed weights that are there already, or a place to leave them, for the
  // products that are made next; null: neither. Borrowed while they are made;
  // what they are taken from must outlive the products.
  PackedPieces* packed = nullptr;

  // Where weights that are packed lie; shared with the products. Null: each
  // product has memory of its own, of which less is in huge pages.
  std::shared_ptr<HugePageArena> arena;
};

// All that packed weights depend on beside the weights, in words: the processor
// and the kernels that were chosen for it.
std::string PackingIdentity();

// y = x W^T for a batch of rows. W is made of one or more matrices that share
// their inputs and whose outputs lie side by side, so that one launch serves
// all of them. With weights of kQ8 and kQ4, x stands for what LinearInput makes
// of it, scale * (q - zero_point); with kF32 and kQ8W for itself.
//
// The promise on which lossless speculation stands: a row's bits depend on that
// row and on W only, not on the number of rows, on its place among them, or on
// the number of threads. It holds for one machine and one build.
//
//   absl::StatusOr<std::unique_ptr<Linear>> qkv =
//       Linear::Create({q, k, v}, "attention.qkv");
//   ...
//   input.Set(x, rows, (*qkv)->in_features());
//   (*qkv)->Run(input, y, pool.get());
//
// Weights cross memory once, whatever the number of rows: a few columns at a
// time, for all rows.
//
// Immutable: Run may be called from several threads, with an input and a pool
// each.
class Linear {
 public:
  // XNNPACK's kernels with `parts`, each [rows, in], in the order of the
  // outputs. They are read during the call only: weights are packed into other
  // memory. While it runs, several parts that are not neighbours in memory need
  // room for a plain copy as well. `name` stands in errors.
  //
  // InvalidArgument: no part, an empty or absent one, or parts that differ in
  // their inputs or in their weight type; kQ4 with a number of inputs that is
  // not a multiple of kQ4Block; kQ8 with more than kMaxQ8Features inputs.
  // Unimplemented: a weight type, or a processor, that XNNPACK or this class
  // does not serve; without AVX2, kQ4 with a number of inputs that is not a
  // multiple of 2 * kQ4Block. DataLoss: a scale that is not a positive normal
  // number, or options.packed holds something else. ResourceExhausted: no
  // memory. Internal: anything else that XNNPACK refuses. Where options.packed
  // wants weights in its file and has no room: PackedPieces::status().
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options = {});

  // More products of two bytes might not fit a sum of 32 bits.
  static constexpr int32_t kMaxQ8Features = 65536;

  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  // y: [rows, out_features()], dense, apart from the input. The input has
  // in_features(). `pool` may be null: the caller's thread does all. 0 rows do
  // nothing. Allocates nothing and cannot fail.
  void Run(LinearInput& input, float* y, pthreadpool_t pool) const;

  // Run(), of which only the best output of each row is wanted: what
  // ArgMaxRows() finds in y, into best [rows]; into second [rows] the largest
  // of the other outputs (minus infinity if there are none), unless it is null,
  // which is a little faster. The outputs themselves pass through a few
  // kilobytes of each thread.
  void RunArgMax(LinearInput& input, ArgMax* best, float* second,
                 pthreadpool_t pool) const;

  // Part of a product, for LinearStack: `rows` rows of the batch from `row`,
  // and `outputs` outputs from `output`, a multiple of panel_outputs(). `y` is
  // where the first goes; rows of it are `y_stride` floats apart.
  struct Part {
    int32_t row, rows;
    int32_t output, outputs;
    float* y;
    int64_t y_stride;
  };
  // The numbers that Run makes, in the caller's thread, inside of a launch. If
  // the weights want int8, input.Quantize() has been called. Several threads
  // may share an input.
  virtual void RunPart(LinearInput& input, const Part& part) const = 0;
  // Outputs whose weights are packed together.
  virtual int32_t panel_outputs() const = 0;
  // Outputs of a good part of `outputs` that `threads` share.
  virtual int32_t PartOutputs(int64_t outputs, int64_t threads) const = 0;

  int32_t in_features() const { return shape_.in_features; }
  int32_t out_features() const { return shape_.out_features; }
  // Memory that the weights occupy, packed; 0 if it is LinearOptions::packed's.
  int64_t packed_bytes() const { return packed_bytes_; }

 protected:
  struct Shape {
    int32_t in_features = 0;
    int32_t out_features = 0;
  };

  // The shape that `parts` make together; errors as for Create.
  static absl::StatusOr<Shape> CheckParts(absl::Span<const MatrixView> parts,
                                          absl::string_view name);

  explicit Linear(const Shape& shape) : shape_(shape) {}
  void set_packed_bytes(int64_t bytes) { packed_bytes_ = bytes; }

  // Run and RunArgMax, for at least one row.
  virtual void Multiply(LinearInput& input, float* y,
                        pthreadpool_t pool) const = 0;
  virtual void MultiplyArgMax(LinearInput& input, ArgMax* best, float* second,
                              pthreadpool_t pool) const = 0;

 private:
  const Shape shape_;
  int64_t packed_bytes_ = 0;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_LINEAR_H_
