// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/shapes.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/config.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {
    "qwen3.5-0.8b", "qwen3.5-2b",      "qwen3.5-4b",        "qwen3.5-9b",
    "qwen3.5-27b",  "qwen3.5-35b-a3b", "qwen3-next-80b-a3b"};

int64_t Parameters(const std::vector<TensorSpec>& specs) {
  int64_t sum = 0;
  for (const TensorSpec& spec : specs) {
    int64_t elements = 1;
    for (const int32_t extent : spec.shape) elements *= extent;
    sum += elements;
  }
  return sum;
}

// Parameters of the text models as published.
TEST(ShapesTest, TargetsHaveAsManyParametersAsPublished) {
  const struct {
    const char* name;
    size_t layers;
    int64_t parameters;
  } shapes[] = {
      {"qwen3.5-0.8b", 24, 752393024},
      {"qwen3.5-2b", 24, 1881825088},
      {"qwen3.5-4b", 32, 4205751296},
      {"qwen3.5-9b", 32, 8953803264},
      {"qwen3.5-27b", 64, 26895998464},
      {"qwen3.5-35b-a3b", 40, 34660610688},
      {"qwen3-next-80b-a3b", 48, 79674391296},
  };
  for (const auto& shape : shapes) {
    const auto config = TargetShape(shape.name);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(Validate(*config), absl::OkStatus());
    EXPECT_EQ(config->layers.size(), shape.layers);
    EXPECT_EQ(config->layers[2], LayerKind::kGatedDeltaNet);
    EXPECT_EQ(config->layers[3], LayerKind::kFullAttention);
    EXPECT_EQ(Parameters(TensorSpecs(*config)), shape.parameters) << shape.name;
  }
}

TEST(ShapesTest, DraftsHaveAsManyParametersAsPublished) {
  const auto parameters = [](const char* name, int32_t target_layers) {
    return Parameters(TensorSpecs(*DraftShape(name, target_layers)));
  };
  EXPECT_EQ(parameters("qwen3.5-4b", 32), 517766400);
  EXPECT_EQ(parameters("qwen3.5-9b", 32), 1048626432);
  EXPECT_EQ(parameters("qwen3.5-27b", 64), 1730213120);
  EXPECT_EQ(parameters("qwen3.5-35b-a3b", 40), 473995264);
  EXPECT_THAT(DraftShape("qwen3.5-4b", 32)->target_layers,
              ElementsAre(1, 8, 15, 22, 29));
  EXPECT_THAT(DraftShape("qwen3.5-27b", 64)->target_layers,
              ElementsAre(1, 16, 31, 46, 61));
  EXPECT_THAT(DraftShape("qwen3.5-0.8b", 24)->target_layers,
              ElementsAre(1, 6, 11, 16, 21));
}

// Of targets cut to any length.
TEST(ShapesTest, PairsFit) {
  for (const char* const name : kNames) {
    TargetConfig target = *TargetShape(name);
    for (auto layers = static_cast<int32_t>(target.layers.size()); layers > 0;
         --layers) {
      KeepLayers(layers, &target);
      ASSERT_EQ(Validate(target), absl::OkStatus()) << layers;
      const auto draft = DraftShape(name, layers);
      ASSERT_TRUE(draft.ok());
      ASSERT_EQ(Validate(*draft), absl::OkStatus()) << layers;
      ASSERT_EQ(ValidatePair(target, *draft), absl::OkStatus()) << layers;
    }
  }
}

// Weights of 4 bits of any other number of columns would be refused by x86-64
// processors without AVX2.
TEST(ShapesTest, AllProcessorsTakeThemWithFourBits) {
  for (const char* const name : kNames) {
    std::vector<TensorSpec> specs = TensorSpecs(*TargetShape(name));
    for (const TensorSpec& spec : TensorSpecs(*DraftShape(name, 24))) {
      specs.push_back(spec);
    }
    for (const TensorSpec& spec : specs) {
      if (spec.role == TensorRole::kFloat) continue;
      EXPECT_EQ(spec.shape.back() % (2 * kQ4Block), 0)
          << name << " " << spec.name;
    }
  }
}

TEST(ShapesTest, LayersThatAreKeptTakeTheirExpertsAlong) {
  TargetConfig config = *TargetShape("qwen3.5-35b-a3b");
  config.intermediate_size = 64;
  config.layers.resize(4);
  config.moe.layers = {false, true, false, true};
  TargetConfig two = config;
  KeepLayers(2, &two);
  EXPECT_EQ(Validate(two), absl::OkStatus());
  EXPECT_TRUE(two.has_experts(1));
  KeepLayers(1, &two);
  EXPECT_EQ(Validate(two), absl::OkStatus());
  EXPECT_EQ(two.moe.experts, 0);
  config.moe.layers = {true, true, true, false};
  KeepLayers(3, &config);
  EXPECT_EQ(Validate(config), absl::OkStatus());
  EXPECT_EQ(config.intermediate_size, 0);
}

TEST(ShapesTest, OtherNamesAreRefused) {
  for (const char* const name : {"", "qwen3.5-0.8", "QWEN3.5-4B"}) {
    EXPECT_THAT(TargetShape(name).status().message(),
                HasSubstr("known are qwen3.5-0.8b"));
    EXPECT_EQ(DraftShape(name, 32).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace deltaedge
