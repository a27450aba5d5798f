// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_
#define DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_

#include "absl/status/statusor.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {

// What the flags --weights, --head and --gdn say, which a program has that
// links this. InvalidArgument names the flag, its value and what is allowed.
absl::StatusOr<WeightRecipe> RecipeFromFlags();

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_
