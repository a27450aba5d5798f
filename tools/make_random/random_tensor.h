// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_MAKE_RANDOM_RANDOM_TENSOR_H_
#define DELTAEDGE_TOOLS_MAKE_RANDOM_RANDOM_TENSOR_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {

// Which random numbers: those of a seed, as a checkpoint of floats holds them
// or as one of bfloat16 does, in which only A_log and the norm of delta layers
// are floats.
struct RandomNumbers {
  uint64_t seed = 1;
  bool bf16 = false;
};

// Any part of one tensor of a random model (make_random.h), in both forms: what
// a checkpoint would hold, and what conversion makes of it, to the bit.
class RandomTensor {
 public:
  // A tensor of TensorSpecs() of a model of `kind`.
  RandomTensor(const TensorSpec& spec, ModelKind kind,
               const RandomNumbers& numbers);

  int64_t elements() const { return elements_; }
  int64_t columns() const { return columns_; }
  // Whether a checkpoint holds it as bfloat16.
  bool bf16() const { return bf16_; }

  // Elements [first, first + count) as the model file of floats has them.
  std::vector<float> Stored(int64_t first, int64_t count) const;
  // As a checkpoint has them, in its order: that of the model file but for a
  // convolution, where the taps of a channel lie side by side.
  std::vector<float> Source(int64_t first, int64_t count) const;

 private:
  // How a tensor's numbers are drawn.
  enum class Draw {
    kMatrix,           // Deviation 1/sqrt(columns): keeps its input's size.
    kHead,             // Twice that: logits of deviation 2.
    kGain,             // 1 + 0.1 * normal.
    kZeroCentredGain,  // Likewise, but checkpoints hold 1 less.
    kTaps,    // Deviation 1/2: four of them keep the size of their input.
    kDecay,   // -16 .. -1; checkpoints hold the logarithm of the magnitude.
    kDtBias,  // -6.9 .. -2.25: steps of 0.001 to 0.1 after softplus.
  };
  static Draw DrawOf(absl::string_view tensor, ModelKind kind);

  uint64_t Bits(int64_t i) const;
  double Uniform(int64_t i) const;
  double Normal(int64_t i) const;
  // What a checkpoint holds for element `i` of the model file.
  float SourceOf(int64_t i) const;

  const Draw draw_;
  const bool bf16_;
  uint64_t key_;
  int64_t elements_ = 1;
  const int64_t columns_;
  const double root_;  // Of columns_.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_MAKE_RANDOM_RANDOM_TENSOR_H_
