// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/recipe_flags.h"

#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "tools/cli/flags.h"
#include "tools/convert/weight_recipe.h"

ABSL_FLAG(deltaedge::FlagValue<std::string>, weights, std::string("f32"),
          "how matrices are stored: f32; q8, 8 bits with a scale for each row; "
          "q4, 4 bits with a scale for each 32 numbers; q8w, as q8 but for "
          "products that do not round their inputs. Small tensors and the "
          "gates' projections stay f32");
ABSL_FLAG(std::string, head, "",
          "type of embedding table and output matrix, which are one matrix "
          "where the head is tied. Default: as --weights");
ABSL_FLAG(std::string, gdn, "",
          "type of the projections into and out of gated delta layers. "
          "Default: as --weights");
ABSL_FLAG(std::string, experts, "",
          "type of the experts among which a token chooses. Default: as "
          "--weights");

namespace deltaedge {
namespace {

absl::StatusOr<WeightType> Parse(absl::string_view flag,
                                 const std::string& name) {
  absl::StatusOr<WeightType> type = ParseWeightType(name);
  if (type.ok()) return type;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", type.status().message()));
}

}  // namespace

absl::StatusOr<WeightRecipe> RecipeFromFlags() {
  WeightRecipe recipe;
  DELTAEDGE_ASSIGN_OR_RETURN(
      recipe.weights, Parse("weights", absl::GetFlag(FLAGS_weights).value));
  if (const std::string head = absl::GetFlag(FLAGS_head); !head.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(recipe.head, Parse("head", head));
  }
  if (const std::string gdn = absl::GetFlag(FLAGS_gdn); !gdn.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(recipe.gdn, Parse("gdn", gdn));
  }
  if (const std::string type = absl::GetFlag(FLAGS_experts); !type.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(recipe.experts, Parse("experts", type));
  }
  return recipe;
}

absl::string_view GivenRecipeFlag() {
  if (absl::GetFlag(FLAGS_weights).is_given) return "weights";
  if (!absl::GetFlag(FLAGS_head).empty()) return "head";
  if (!absl::GetFlag(FLAGS_gdn).empty()) return "gdn";
  if (!absl::GetFlag(FLAGS_experts).empty()) return "experts";
  return "";
}

}  // namespace deltaedge
