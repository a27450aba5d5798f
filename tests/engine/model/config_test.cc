// SPDX-License-Identifier: Apache-2.0

#include "engine/model/config.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;
using ::testing::HasSubstr;

constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();

template <class Config>
struct Case {
  std::string named;  // What the message must name.
  std::function<void(Config*)> spoil;
};

template <class Config>
void ExpectRefused(const Config& sound, const Case<Config>& c) {
  Config config = sound;
  c.spoil(&config);
  const absl::Status status = Validate(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.named;
  EXPECT_THAT(status.message(), HasSubstr(c.named));
}

TEST(ConfigTest, TinyModelsAreSound) {
  EXPECT_EQ(Validate(TinyTarget().target), absl::OkStatus());
  EXPECT_EQ(Validate(TinyDraft().draft), absl::OkStatus());
  EXPECT_EQ(ValidatePair(TinyTarget().target, TinyDraft().draft),
            absl::OkStatus());
}

TEST(ConfigTest, EveryFieldOfATargetIsBounded) {
  using C = TargetConfig;
  const C sound = TinyTarget().target;
  for (const int32_t bad : {0, -1, kLowest, kHuge}) {
    const Case<C> cases[] = {
        {"vocab_size", [=](C* c) { c->vocab_size = bad; }},
        {"hidden_size", [=](C* c) { c->hidden_size = bad; }},
        {"intermediate_size", [=](C* c) { c->intermediate_size = bad; }},
        {"max_context", [=](C* c) { c->max_context = bad; }},
        {"gdn.key_heads", [=](C* c) { c->gdn.key_heads = bad; }},
        {"gdn.value_heads", [=](C* c) { c->gdn.value_heads = bad; }},
        {"gdn.key_dim", [=](C* c) { c->gdn.key_dim = bad; }},
        {"gdn.value_dim", [=](C* c) { c->gdn.value_dim = bad; }},
        {"gdn.conv_width", [=](C* c) { c->gdn.conv_width = bad; }},
        {"attention.query_heads",
         [=](C* c) { c->attention.query_heads = bad; }},
        {"attention.kv_heads", [=](C* c) { c->attention.kv_heads = bad; }},
        {"attention.head_dim", [=](C* c) { c->attention.head_dim = bad; }},
        {"attention.rotary_dim", [=](C* c) { c->attention.rotary_dim = bad; }},
    };
    for (const Case<C>& c : cases) ExpectRefused(sound, c);
  }
  const Case<C> cases[] = {
      {"gdn.value_heads",
       [](C* c) { c->gdn.key_heads = 2, c->gdn.value_heads = 3; }},
      {"gdn.conv_width", [](C* c) { c->gdn.conv_width = 3; }},
      {"attention.query_heads",
       [](C* c) { c->attention.query_heads = 3, c->attention.kv_heads = 2; }},
      {"attention.head_dim is 6", [](C* c) { c->attention.head_dim = 6; }},
      {"gdn.key_dim", [](C* c) { c->gdn.key_dim = kMaxKeyDim + 1; }},
      {"rotary_dim", [](C* c) { c->attention.rotary_dim = 3; }},
      {"rotary_dim", [](C* c) { c->attention.rotary_dim = 6; }},
      {"rope_theta", [](C* c) { c->attention.rope_theta = 0; }},
      {"rope_theta", [](C* c) { c->attention.rope_theta = -1; }},
      {"rope_theta", [](C* c) { c->attention.rope_theta = std::nan(""); }},
      {"rms_norm_eps", [](C* c) { c->rms_norm_eps = 0; }},
      {"rms_norm_eps", [](C* c) { c->rms_norm_eps = std::nanf(""); }},
      {"rms_norm_eps", [](C* c) { c->rms_norm_eps = INFINITY; }},
      {"layers", [](C* c) { c->layers.clear(); }},
      {"layers", [](C* c) { c->layers.resize(kMaxLayers + 1); }},
      {"layers[1]", [](C* c) { c->layers[1] = static_cast<LayerKind>(9); }},
      {"name", [](C* c) { c->name.assign(kMaxModelNameBytes + 1, 'x'); }},
  };
  for (const Case<C>& c : cases) ExpectRefused(sound, c);
}

TEST(ConfigTest, EveryFieldOfAMixtureIsBounded) {
  using C = TargetConfig;
  C sound = TinyMoeTarget().target;
  ASSERT_EQ(Validate(sound), absl::OkStatus());
  for (const int32_t bad : {0, -1, kLowest, kHuge}) {
    const Case<C> cases[] = {
        {"moe.experts", [=](C* c) { c->moe.experts = bad; }},
        {"moe.experts_per_token",
         [=](C* c) { c->moe.experts_per_token = bad; }},
        {"moe.expert_size", [=](C* c) { c->moe.expert_size = bad; }},
        {"moe.shared_size", [=](C* c) { c->moe.shared_size = bad; }},
        // One layer has an MLP.
        {"intermediate_size", [=](C* c) { c->intermediate_size = bad; }},
    };
    for (const Case<C>& c : cases) ExpectRefused(sound, c);
  }
  const Case<C> cases[] = {
      {"moe.experts is 1025", [](C* c) { c->moe.experts = kMaxExperts + 1; }},
      {"moe.experts_per_token is 4, allowed are 1 to 3",
       [](C* c) { c->moe.experts_per_token = 4; }},
      {"moe.expert_size",
       [](C* c) { c->moe.expert_size = kMaxExpertSize + 1; }},
      {"moe.layers has 3 entries, allowed are 2",
       [](C* c) { c->moe.layers.push_back(true); }},
      {"moe.layers has 0 entries", [](C* c) { c->moe.layers.clear(); }},
      {"no layer with experts",
       [](C* c) {
         c->moe.layers = {false, false};
       }},
      {"intermediate_size is 6, allowed are 0 to 0",
       [](C* c) {
         c->moe.layers = {true, true};
       }},
  };
  for (const Case<C>& c : cases) ExpectRefused(sound, c);
  sound.moe.layers = {true, true};
  sound.intermediate_size = 0;
  EXPECT_EQ(Validate(sound), absl::OkStatus());
  EXPECT_TRUE(sound.has_experts(1));
  EXPECT_FALSE(TinyMoeTarget().target.has_experts(1));
  EXPECT_FALSE(TinyTarget().target.has_experts(0));
}

TEST(ConfigTest, EveryFieldOfADraftIsBounded) {
  using C = DraftConfig;
  const C sound = TinyDraft().draft;
  for (const int32_t bad : {-1, kLowest, kHuge}) {
    const Case<C> cases[] = {
        {"vocab_size", [=](C* c) { c->vocab_size = bad; }},
        {"hidden_size", [=](C* c) { c->hidden_size = bad; }},
        {"intermediate_size", [=](C* c) { c->intermediate_size = bad; }},
        {"block_size", [=](C* c) { c->block_size = bad; }},
        {"mask_token", [=](C* c) { c->mask_token = bad; }},
        {"attention.kv_heads", [=](C* c) { c->attention.kv_heads = bad; }},
        {"target_layer_count", [=](C* c) { c->target_layer_count = bad; }},
        {"target_layers[1]", [=](C* c) { c->target_layers[1] = bad; }},
        {"layers[1].sliding_window",
         [=](C* c) { c->layers[1].sliding_window = bad; }},
    };
    for (const Case<C>& c : cases) ExpectRefused(sound, c);
  }
  // Case C18.
  const Case<C> cases[] = {
      // A file without the field reads as a fresh config.
      {"mask_token is -1", [](C* c) { c->mask_token = C().mask_token; }},
      {"mask_token is 8", [](C* c) { c->mask_token = 8; }},
      {"block_size is 0", [](C* c) { c->block_size = 0; }},
      {"block_size is 1", [](C* c) { c->block_size = 1; }},
      {"block_size is 17, allowed are 2 to 16",
       [](C* c) { c->block_size = 17; }},
      {"target_layers", [](C* c) { c->target_layers.clear(); }},
      {"target_layers[1] is 2", [](C* c) { c->target_layers[1] = 2; }},
      {"target_layers[1] is 0, which is there twice",
       [](C* c) { c->target_layers[1] = 0; }},
      {"target_layers", [](C* c) { c->target_layers.assign(3, 0); }},
      {"target_layer_count", [](C* c) { c->target_layer_count = 0; }},
      {"layers", [](C* c) { c->layers.clear(); }},
      {"rms_norm_eps", [](C* c) { c->rms_norm_eps = -1e-6f; }},
      {"sliding_mask",
       [](C* c) { c->sliding_mask = static_cast<SlidingMask>(7); }},
      {"name", [](C* c) { c->name.assign(kMaxModelNameBytes + 1, 'x'); }},
  };
  for (const Case<C>& c : cases) ExpectRefused(sound, c);
}

TEST(ConfigTest, LongestBlockIsAllowed) {
  DraftConfig config = TinyDraft().draft;
  config.block_size = kMaxBlockRows;
  EXPECT_EQ(Validate(config), absl::OkStatus());
  config.block_size = 2;
  EXPECT_EQ(Validate(config), absl::OkStatus());
}

TEST(ConfigTest, PairMustAgree) {
  const TargetConfig target = TinyTarget().target;
  const DraftConfig draft = TinyDraft().draft;
  const auto expect = [&](const DraftConfig& other, const std::string& named) {
    const absl::Status status = ValidatePair(target, other);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(named));
  };
  DraftConfig other = draft;
  other.vocab_size = 9;
  expect(other, "vocab_size is 9, its target's is 8");
  other = draft;
  other.hidden_size = 8;
  expect(other, "hidden_size is 8, its target's is 4");
  other = draft;
  other.target_layer_count = 3;
  expect(other, "target_layer_count is 3, its target's is 2");
}

// The bounds together: nothing that Validate() lets through may wrap.
TEST(ConfigTest, LargestSizesFit) {
  TargetConfig config = TinyTarget().target;
  config.vocab_size = kMaxVocabSize;
  config.hidden_size = kMaxWidth;
  config.intermediate_size = kMaxWidth;
  config.max_context = kMaxPositions;
  config.gdn.key_heads = config.gdn.value_heads = kMaxHeads;
  config.gdn.key_dim = kMaxKeyDim;
  config.gdn.value_dim = kMaxHeadDim;
  config.attention.query_heads = config.attention.kv_heads = kMaxHeads;
  config.attention.head_dim = config.attention.rotary_dim = kMaxHeadDim;
  ASSERT_EQ(Validate(config), absl::OkStatus());
  EXPECT_EQ(int64_t{config.gdn.conv_channels()},
            int64_t{kMaxHeads} * (2 * kMaxKeyDim + kMaxHeadDim));
  EXPECT_EQ(int64_t{2 * config.attention.queries()},
            int64_t{2} * kMaxHeads * kMaxHeadDim);

  config.moe.experts = config.moe.experts_per_token = kMaxExperts;
  config.moe.expert_size = kMaxExpertSize;
  config.moe.shared_size = kMaxWidth;
  config.moe.layers = {true, false};
  ASSERT_EQ(Validate(config), absl::OkStatus());
  EXPECT_EQ(int64_t{config.moe.experts * 2 * config.moe.expert_size},
            int64_t{kMaxExperts} * 2 * kMaxExpertSize);
  EXPECT_EQ(int64_t{config.moe.experts * config.hidden_size},
            int64_t{kMaxExperts} * kMaxWidth);
}

}  // namespace
}  // namespace deltaedge
