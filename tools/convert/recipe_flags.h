// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_
#define DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {

// What the flags --weights, --head, --gdn and --experts say, which a program
// has that links this. InvalidArgument names the flag, its value and what is
// allowed.
absl::StatusOr<WeightRecipe> RecipeFromFlags();

// The name of one of them that the command line gives; empty: it gives none.
absl::string_view GivenRecipeFlag();

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_RECIPE_FLAGS_H_
