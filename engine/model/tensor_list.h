// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_TENSOR_LIST_H_
#define DELTAEDGE_ENGINE_MODEL_TENSOR_LIST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace deltaedge {

// The tensors of a model file, from one table: the writer, the reader and the
// checks of both walk the same list, so that none of them can know a tensor
// that another does not.

// What a tensor is to those who choose types.
enum class TensorRole {
  kFloat,    // Always kF32: norms, convolution, decay, projections of the
             // gates, routers.
  kHead,     // Embedding table and output matrix.
  kGdn,      // Projections into and out of a gated delta layer.
  kMatrix,   // All other matrices.
  kExperts,  // Experts among which a token chooses.
};

// A tensor as it is announced to a writer.
struct TensorSpec {
  std::string name;
  WeightType type = WeightType::kF32;
  std::vector<int32_t> shape;  // Outermost dimension first; 1 or 2 of them.
  TensorRole role = TensorRole::kFloat;
};

// A tensor that a model has, and the place in its weights that shows it.
// Exactly one of the two pointers is set.
struct TensorSlot {
  std::string name;
  std::vector<int32_t> shape;
  MatrixView* matrix = nullptr;
  const float** vector = nullptr;
  TensorRole role = TensorRole::kFloat;
};

// All tensors of a model of this config, which has passed Validate(), in the
// order in which a forward pass meets them. Sizes `weights->layers`; the slots
// point into `weights` and are valid as long as that vector is not resized. A
// tied head has no slot: whoever fills the slots copies the view.
std::vector<TensorSlot> TensorSlots(const TargetConfig& config,
                                    TargetWeights* weights);
std::vector<TensorSlot> TensorSlots(const DraftConfig& config,
                                    DraftWeights* weights);

// The same as announcements, all of them kF32. A converter changes the type of
// matrices that it quantises.
std::vector<TensorSpec> TensorSpecs(const TargetConfig& config);
std::vector<TensorSpec> TensorSpecs(const DraftConfig& config);

// The parts of a tensor in its segment, in bytes: numbers from the start, then,
// if the type has scales, zeros up to a multiple of 64, then the scales.
struct TensorLayout {
  int64_t number_bytes = 0;
  int64_t scale_offset = 0;
  int64_t scale_bytes = 0;  // 0: no scales, and scale_offset == number_bytes.

  int64_t size_bytes() const { return scale_offset + scale_bytes; }
};

// Nothing if the type is unknown, a dimension is not positive or not one that
// the type can have, or the size does not fit int64_t.
std::optional<TensorLayout> LayoutOf(WeightType type,
                                     absl::Span<const int32_t> shape);

// Its size_bytes().
std::optional<int64_t> TensorBytes(WeightType type,
                                   absl::Span<const int32_t> shape);

// "f32", "q8" and so on; "unknown" for others.
absl::string_view WeightTypeName(WeightType type);

// All that a file may hold, kF32 first.
inline constexpr WeightType kWeightTypes[] = {
    WeightType::kF32, WeightType::kQ8, WeightType::kQ4, WeightType::kQ8W};

// "[3, 4]", for messages.
std::string ShapeText(absl::Span<const int32_t> shape);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_TENSOR_LIST_H_
