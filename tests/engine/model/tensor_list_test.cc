// SPDX-License-Identifier: Apache-2.0

#include "engine/model/tensor_list.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;

constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();

TEST(TensorListTest, BytesAreCheckedProducts) {
  EXPECT_EQ(TensorBytes(WeightType::kF32, {3, 5}), 60);
  EXPECT_EQ(TensorBytes(WeightType::kF32, {7}), 28);
  EXPECT_EQ(TensorBytes(WeightType::kF32, {3, 0}), std::nullopt);
  EXPECT_EQ(TensorBytes(WeightType::kF32, {-3, -5}), std::nullopt);
  EXPECT_EQ(TensorBytes(WeightType::kF32, {kHuge, kHuge}), std::nullopt);
  EXPECT_EQ(TensorBytes(WeightType::kUnknown, {3, 5}), std::nullopt);
  EXPECT_EQ(TensorBytes(static_cast<WeightType>(99), {3, 5}), std::nullopt);
}

// Numbers, zeros up to 64 bytes, scales.
TEST(TensorListTest, ScalesLieBehindTheNumbers) {
  const auto expect = [](WeightType type, std::vector<int32_t> shape,
                         int64_t numbers, int64_t offset, int64_t scales) {
    const auto layout = LayoutOf(type, shape);
    ASSERT_TRUE(layout.has_value());
    EXPECT_EQ(layout->number_bytes, numbers);
    EXPECT_EQ(layout->scale_offset, offset);
    EXPECT_EQ(layout->scale_bytes, scales);
    EXPECT_EQ(layout->size_bytes(), offset + scales);
    EXPECT_EQ(TensorBytes(type, shape), offset + scales);
  };
  expect(WeightType::kF32, {3, 5}, 60, 60, 0);
  expect(WeightType::kQ8, {3, 5}, 15, 64, 12);
  expect(WeightType::kQ8W, {2, 64}, 128, 128, 8);
  expect(WeightType::kQ4, {3, 64}, 96, 128, 12);
  expect(WeightType::kQ4, {1, 32}, 16, 64, 2);
  expect(WeightType::kQ8, {kHuge, kHuge}, int64_t{kHuge} * kHuge,
         (int64_t{kHuge} * kHuge + 63) / 64 * 64, int64_t{4} * kHuge);
  expect(WeightType::kQ4, {kHuge, 1 << 30}, int64_t{kHuge} << 29,
         int64_t{kHuge} << 29, int64_t{kHuge} << 26);

  for (const WeightType type :
       {WeightType::kQ8, WeightType::kQ4, WeightType::kQ8W}) {
    EXPECT_EQ(LayoutOf(type, {64}), std::nullopt);
    EXPECT_EQ(LayoutOf(type, {2, 2, 32}), std::nullopt);
    EXPECT_EQ(LayoutOf(type, {0, 32}), std::nullopt);
    EXPECT_EQ(LayoutOf(type, {2, -32}), std::nullopt);
    EXPECT_EQ(LayoutOf(type, {-2, -32}), std::nullopt);
  }
  for (const int32_t cols : {1, 16, 31, 33, 48}) {
    EXPECT_EQ(LayoutOf(WeightType::kQ4, {2, cols}), std::nullopt) << cols;
  }
}

TEST(TensorListTest, RolesOfTensors) {
  const auto role = [](const std::vector<TensorSpec>& specs,
                       const std::string& name) {
    for (const TensorSpec& spec : specs) {
      if (spec.name == name) return spec.role;
    }
    ADD_FAILURE() << name;
    return TensorRole::kFloat;
  };
  const auto target = TensorSpecs(TinyTarget().target);
  EXPECT_EQ(role(target, "embedding"), TensorRole::kHead);
  EXPECT_EQ(role(target, "head"), TensorRole::kHead);
  for (const char* const name : {"in_qkv", "in_z", "out"}) {
    EXPECT_EQ(role(target, std::string("layers.0.gdn.") + name),
              TensorRole::kGdn);
  }
  for (const char* const name : {"in_a", "in_b", "conv", "neg_exp_a"}) {
    EXPECT_EQ(role(target, std::string("layers.0.gdn.") + name),
              TensorRole::kFloat);
  }
  EXPECT_EQ(role(target, "layers.1.attention.q"), TensorRole::kMatrix);
  EXPECT_EQ(role(target, "layers.1.mlp.down"), TensorRole::kMatrix);
  EXPECT_EQ(role(target, "final_norm"), TensorRole::kFloat);
  const auto moe = TensorSpecs(TinyMoeTarget().target);
  EXPECT_EQ(role(moe, "layers.0.moe.router"), TensorRole::kFloat);
  EXPECT_EQ(role(moe, "layers.0.moe.shared_router"), TensorRole::kFloat);
  EXPECT_EQ(role(moe, "layers.0.moe.gate_up"), TensorRole::kExperts);
  EXPECT_EQ(role(moe, "layers.0.moe.down"), TensorRole::kExperts);
  EXPECT_EQ(role(moe, "layers.0.moe.shared.up"), TensorRole::kMatrix);
  EXPECT_EQ(role(moe, "layers.1.mlp.up"), TensorRole::kMatrix);
  const auto draft = TensorSpecs(TinyDraft().draft);
  EXPECT_EQ(role(draft, "fc"), TensorRole::kMatrix);
  EXPECT_EQ(role(draft, "layers.0.attention.out"), TensorRole::kMatrix);
  EXPECT_EQ(role(draft, "hidden_norm"), TensorRole::kFloat);
}

template <class Slots>
void ExpectEachSlotOnce(const Slots& slots) {
  std::set<std::string> names;
  std::set<const void*> places;
  for (const TensorSlot& slot : slots) {
    EXPECT_TRUE(names.insert(slot.name).second) << slot.name;
    EXPECT_NE(slot.matrix == nullptr, slot.vector == nullptr) << slot.name;
    EXPECT_TRUE(places
                    .insert(slot.matrix != nullptr
                                ? static_cast<const void*>(slot.matrix)
                                : static_cast<const void*>(slot.vector))
                    .second)
        << slot.name;
    EXPECT_TRUE(TensorBytes(WeightType::kF32, slot.shape).has_value());
    EXPECT_TRUE(slot.matrix == nullptr || slot.shape.size() == 2) << slot.name;
    EXPECT_TRUE(slot.matrix != nullptr || slot.role == TensorRole::kFloat)
        << slot.name;
  }
}

TEST(TensorListTest, SlotsAreApart) {
  TargetWeights target;
  ExpectEachSlotOnce(TensorSlots(TinyTarget().target, &target));
  ExpectEachSlotOnce(TensorSlots(TinyMoeTarget().target, &target));
  DraftWeights draft;
  ExpectEachSlotOnce(TensorSlots(TinyDraft().draft, &draft));
}

// Tensor counts and parameters of published checkpoints.
TEST(TensorListTest, PublishedSizes) {
  TargetConfig config;
  config.vocab_size = 248320;
  config.hidden_size = 1024;
  config.intermediate_size = 3584;
  config.tied_head = true;
  config.gdn = {16, 16, 128, 128, 4};
  config.attention = {8, 2, 256, 64, 1e7};
  for (int i = 0; i < 24; ++i) {
    config.layers.push_back(i % 4 == 3 ? LayerKind::kFullAttention
                                       : LayerKind::kGatedDeltaNet);
  }
  int64_t bytes = 0;
  for (const TensorSpec& spec : TensorSpecs(config)) {
    bytes += *TensorBytes(spec.type, spec.shape);
  }
  EXPECT_EQ(TensorSpecs(config).size(), 320u);
  EXPECT_EQ(bytes, int64_t{4} * 752393024);  // Qwen3.5-0.8B

  config.hidden_size = 2048;
  config.intermediate_size = 0;
  config.tied_head = false;
  config.gdn.value_heads = 32;
  config.attention.query_heads = 16;
  config.layers.insert(config.layers.end(), config.layers.begin(),
                       config.layers.begin() + 16);
  config.moe = {256, 8, 512, 512, true, std::vector<bool>(40, true)};
  bytes = 0;
  for (const TensorSpec& spec : TensorSpecs(config)) {
    bytes += *TensorBytes(spec.type, spec.shape);
  }
  EXPECT_EQ(bytes, int64_t{4} * 34660610688);  // Qwen3.5-35B-A3B

  DraftConfig draft;
  draft.vocab_size = 248320;
  draft.hidden_size = 2560;
  draft.intermediate_size = 9216;
  draft.attention = {32, 8, 128, 128, 1e7};
  draft.layers.resize(6);
  draft.target_layers = {1, 5, 9, 13, 17, 21, 25, 29};
  bytes = 0;
  for (const TensorSpec& spec : TensorSpecs(draft)) {
    bytes += *TensorBytes(spec.type, spec.shape);
  }
  EXPECT_EQ(TensorSpecs(draft).size(), 69u);
  EXPECT_EQ(bytes, int64_t{4} * 634425856);  // Qwen3.5-4B-DFlash, second
}

TEST(TensorListTest, Texts) {
  EXPECT_EQ(ShapeText({3, 4}), "[3, 4]");
  EXPECT_EQ(ShapeText({3}), "[3]");
  EXPECT_EQ(WeightTypeName(WeightType::kF32), "f32");
  EXPECT_EQ(WeightTypeName(WeightType::kQ8), "q8");
  EXPECT_EQ(WeightTypeName(WeightType::kQ4), "q4");
  EXPECT_EQ(WeightTypeName(WeightType::kQ8W), "q8w");
  EXPECT_EQ(WeightTypeName(static_cast<WeightType>(99)), "unknown");
}

}  // namespace
}  // namespace deltaedge
