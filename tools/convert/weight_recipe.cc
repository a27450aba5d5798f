// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/weight_recipe.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"

namespace deltaedge {
namespace {

WeightType WantedType(const WeightRecipe& recipe, TensorRole role) {
  switch (role) {
    case TensorRole::kFloat:
      return WeightType::kF32;
    case TensorRole::kHead:
      return recipe.head.value_or(recipe.weights);
    case TensorRole::kGdn:
      return recipe.gdn.value_or(recipe.weights);
    case TensorRole::kExperts:
      return recipe.experts.value_or(recipe.weights);
    case TensorRole::kMatrix:
      break;
  }
  return recipe.weights;
}

std::string AllTypeNames() {
  return absl::StrJoin(kWeightTypes, ", ",
                       [](std::string* out, WeightType type) {
                         absl::StrAppend(out, WeightTypeName(type));
                       });
}

}  // namespace

absl::Status CheckRecipe(const WeightRecipe& recipe, ModelKind kind) {
  for (const WeightType type :
       {recipe.weights, recipe.head.value_or(recipe.weights),
        recipe.gdn.value_or(recipe.weights),
        recipe.experts.value_or(recipe.weights)}) {
    if (std::find(std::begin(kWeightTypes), std::end(kWeightTypes), type) ==
        std::end(kWeightTypes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights of type ", static_cast<int>(type),
                       " cannot be written; allowed are ", AllTypeNames()));
    }
  }
  if (kind == ModelKind::kDraft &&
      (recipe.head || recipe.gdn || recipe.experts)) {
    return absl::InvalidArgumentError(
        "a draft has neither a head nor delta layers nor experts whose type "
        "could be chosen");
  }
  return absl::OkStatus();
}

WeightType TypeFor(const WeightRecipe& recipe, const TensorSpec& spec) {
  return FallsBack(recipe, spec) ? WeightType::kQ8
                                 : WantedType(recipe, spec.role);
}

bool FallsBack(const WeightRecipe& recipe, const TensorSpec& spec) {
  return WantedType(recipe, spec.role) == WeightType::kQ4 &&
         spec.shape.back() % kQ4Block != 0;
}

absl::StatusOr<WeightType> ParseWeightType(absl::string_view name) {
  for (const WeightType type : kWeightTypes) {
    if (name == WeightTypeName(type)) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is no type of weights; allowed are ", AllTypeNames()));
}

absl::StatusOr<WeightRecipe> ParseRecipe(absl::string_view text) {
  WeightRecipe recipe;
  bool first = true;
  for (absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    std::optional<WeightType>* part = nullptr;
    if (!std::exchange(first, false)) {
      if (absl::ConsumePrefix(&word, "head=")) {
        part = &recipe.head;
      } else if (absl::ConsumePrefix(&word, "gdn=")) {
        part = &recipe.gdn;
      } else if (absl::ConsumePrefix(&word, "experts=")) {
        part = &recipe.experts;
      }
      if (part == nullptr || part->has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", text,
                         "\" is no recipe: after the type of all, head=TYPE, "
                         "gdn=TYPE and experts=TYPE are allowed, once each"));
      }
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const WeightType type, ParseWeightType(word));
    if (part == nullptr) {
      recipe.weights = type;
    } else {
      *part = type;
    }
  }
  if (first) return absl::InvalidArgumentError("a recipe is empty");
  return recipe;
}

std::vector<StoredWeights> CountWeights(absl::Span<const TensorSpec> specs) {
  std::map<std::pair<TensorRole, WeightType>, StoredWeights> counts;
  for (const TensorSpec& spec : specs) {
    StoredWeights& stored = counts[{spec.role, spec.type}];
    stored.role = spec.role;
    stored.type = spec.type;
    ++stored.tensors;
    stored.bytes += TensorBytes(spec.type, spec.shape).value_or(0);
  }
  std::vector<StoredWeights> all;
  for (const auto& [key, stored] : counts) all.push_back(stored);
  return all;
}

absl::string_view TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kFloat:
      return "small";
    case TensorRole::kHead:
      return "embedding, head";
    case TensorRole::kGdn:
      return "delta layers";
    case TensorRole::kExperts:
      return "experts";
    case TensorRole::kMatrix:
      break;
  }
  return "attention, MLP";
}

std::string StoredText(const StoredWeights& stored) {
  return absl::StrFormat("%-16s%-4s %4d tensors, %.1f MiB",
                         TensorRoleName(stored.role),
                         WeightTypeName(stored.type), stored.tensors,
                         static_cast<double>(stored.bytes) / (1 << 20));
}

}  // namespace deltaedge
