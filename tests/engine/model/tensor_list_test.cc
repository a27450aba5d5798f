// SPDX-License-Identifier: Apache-2.0

#include "engine/model/tensor_list.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::TinyDraft;
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
  }
}

TEST(TensorListTest, SlotsAreApart) {
  TargetWeights target;
  ExpectEachSlotOnce(TensorSlots(TinyTarget().target, &target));
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
  EXPECT_EQ(WeightTypeName(static_cast<WeightType>(99)), "unknown");
}

}  // namespace
}  // namespace deltaedge
