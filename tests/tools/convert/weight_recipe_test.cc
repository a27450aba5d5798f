// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/weight_recipe.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

TensorSpec Spec(TensorRole role, int32_t rows, int32_t cols) {
  return {"name", WeightType::kF32, {rows, cols}, role};
}

TEST(WeightRecipeTest, PartsWithoutATypeOfTheirOwnFollowTheRest) {
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ4;
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kMatrix, 3, 32)), WeightType::kQ4);
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kHead, 3, 32)), WeightType::kQ4);
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kGdn, 3, 32)), WeightType::kQ4);
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kFloat, 3, 32)), WeightType::kF32);
  recipe.head = WeightType::kQ8;
  recipe.gdn = WeightType::kQ8W;
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kMatrix, 3, 32)), WeightType::kQ4);
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kHead, 3, 32)), WeightType::kQ8);
  EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kGdn, 3, 32)), WeightType::kQ8W);
}

TEST(WeightRecipeTest, ColumnsThatQ4CannotHaveAreQ8) {
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ4;
  recipe.head = WeightType::kQ8;
  for (const int32_t cols : {1, 31, 33, 48}) {
    EXPECT_EQ(TypeFor(recipe, Spec(TensorRole::kMatrix, 32, cols)),
              WeightType::kQ8);
    EXPECT_TRUE(FallsBack(recipe, Spec(TensorRole::kMatrix, 32, cols)));
    EXPECT_FALSE(FallsBack(recipe, Spec(TensorRole::kHead, 32, cols)));
    EXPECT_FALSE(FallsBack(recipe, Spec(TensorRole::kFloat, 32, cols)));
  }
  EXPECT_FALSE(FallsBack(recipe, Spec(TensorRole::kMatrix, 5, 64)));
}

TEST(WeightRecipeTest, RecipesInWords) {
  absl::StatusOr<WeightRecipe> recipe =
      ParseRecipe("q4 gdn=q8w head=q8 experts=f32");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->weights, WeightType::kQ4);
  EXPECT_EQ(recipe->head, WeightType::kQ8);
  EXPECT_EQ(recipe->gdn, WeightType::kQ8W);
  EXPECT_EQ(recipe->experts, WeightType::kF32);
  recipe = ParseRecipe("q8");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->weights, WeightType::kQ8);
  EXPECT_FALSE(recipe->head.has_value() || recipe->gdn.has_value() ||
               recipe->experts.has_value());
  for (const char* bad : {"", " ", "q5", "head=q8", "q4 q8", "q4 mlp=q8",
                          "q4 head=", "q4 head=q8 head=q8"}) {
    EXPECT_EQ(ParseRecipe(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(WeightRecipeTest, UnsoundRecipesAreRefused) {
  WeightRecipe recipe;
  EXPECT_EQ(CheckRecipe(recipe, ModelKind::kTarget), absl::OkStatus());
  EXPECT_EQ(CheckRecipe(recipe, ModelKind::kDraft), absl::OkStatus());
  recipe.gdn = WeightType::kUnknown;
  absl::Status status = CheckRecipe(recipe, ModelKind::kTarget);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("type 0"));
  recipe.gdn = WeightType::kQ8;
  EXPECT_EQ(CheckRecipe(recipe, ModelKind::kTarget), absl::OkStatus());
  EXPECT_THAT(CheckRecipe(recipe, ModelKind::kDraft).message(),
              HasSubstr("neither a head nor delta layers"));
  recipe.gdn.reset();
  recipe.experts = WeightType::kQ4;
  EXPECT_EQ(CheckRecipe(recipe, ModelKind::kTarget), absl::OkStatus());
  EXPECT_FALSE(CheckRecipe(recipe, ModelKind::kDraft).ok());
  recipe.experts.reset();
  recipe.head = WeightType::kF32;
  EXPECT_FALSE(CheckRecipe(recipe, ModelKind::kDraft).ok());
  recipe.head.reset();
  recipe.weights = static_cast<WeightType>(99);
  EXPECT_FALSE(CheckRecipe(recipe, ModelKind::kTarget).ok());
}

TEST(WeightRecipeTest, NamesOfTypes) {
  for (const WeightType type : kWeightTypes) {
    const auto parsed = ParseWeightType(WeightTypeName(type));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, type);
  }
  for (const char* const name : {"", "Q8", "q5", "int8", "unknown"}) {
    const auto parsed = ParseWeightType(name);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr("f32, q8, q4, q8w"));
  }
}

TEST(WeightRecipeTest, CountsBytesOfTheFile) {
  TensorSpec q4 = Spec(TensorRole::kMatrix, 4, 64);
  q4.type = WeightType::kQ4;  // 128 + 16
  TensorSpec q8 = Spec(TensorRole::kMatrix, 3, 5);
  q8.type = WeightType::kQ8;  // 15 + 49 + 12
  const auto counts =
      CountWeights({q4, Spec(TensorRole::kFloat, 1, 3), q8, q4});
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].role, TensorRole::kFloat);
  EXPECT_EQ(counts[0].bytes, 12);
  EXPECT_EQ(counts[1].type, WeightType::kQ8);
  EXPECT_EQ(counts[1].bytes, 76);
  EXPECT_EQ(counts[2].type, WeightType::kQ4);
  EXPECT_EQ(counts[2].tensors, 2);
  EXPECT_EQ(counts[2].bytes, 288);
  EXPECT_THAT(StoredText(counts[2]), HasSubstr("q4"));
}

}  // namespace
}  // namespace deltaedge
