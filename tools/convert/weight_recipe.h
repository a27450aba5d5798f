// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_WEIGHT_RECIPE_H_
#define DELTAEDGE_TOOLS_CONVERT_WEIGHT_RECIPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"

namespace deltaedge {

// Which type each matrix of a model file gets. Norms, convolution, decay and
// the projections of the gates are float in any recipe (TensorRole).
struct WeightRecipe {
  WeightType weights = WeightType::kF32;
  // Embedding table and output matrix, which are one matrix where the head is
  // tied. Unset: as `weights`. Targets only.
  std::optional<WeightType> head;
  // Projections into and out of gated delta layers. Unset: as `weights`.
  // Targets only.
  std::optional<WeightType> gdn;
  // Experts among which a token chooses. Unset: as `weights`. Targets only, and
  // of no effect on those without experts.
  std::optional<WeightType> experts = {};
};

// InvalidArgument: a type that a file cannot hold, or one for a part that a
// model of this kind does not have.
absl::Status CheckRecipe(const WeightRecipe& recipe, ModelKind kind);

// The type of `spec` by a recipe that passed. A matrix that was to be kQ4 and
// whose columns are no multiple of kQ4Block is kQ8.
WeightType TypeFor(const WeightRecipe& recipe, const TensorSpec& spec);
// Whether that is what happened.
bool FallsBack(const WeightRecipe& recipe, const TensorSpec& spec);

// "f32", "q8", "q4" or "q8w". InvalidArgument for any other name.
absl::StatusOr<WeightType> ParseWeightType(absl::string_view name);

// A recipe in words, parted by spaces: the type of all, then perhaps one of the
// head, of the delta layers, of the experts, as in "q4 head=q8 gdn=q8".
// InvalidArgument for anything else.
absl::StatusOr<WeightRecipe> ParseRecipe(absl::string_view text);

// Tensors of one role and type, in bytes of the file.
struct StoredWeights {
  TensorRole role = TensorRole::kFloat;
  WeightType type = WeightType::kF32;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// What `specs` come to, by role and type, in the order of both.
std::vector<StoredWeights> CountWeights(absl::Span<const TensorSpec> specs);

// "attention, MLP" and so on, for people.
absl::string_view TensorRoleName(TensorRole role);

// One line for people.
std::string StoredText(const StoredWeights& stored);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_WEIGHT_RECIPE_H_
