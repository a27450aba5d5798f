// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/hf_config.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/model/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/random.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/make_random/shapes.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ReadBytes;
using testing::TempFolder;

constexpr char kGoldens[] = "tests/testdata/golden/";

Json GoldenConfig(const std::string& model) {
  return Json::parse(ReadBytes(absl::StrCat(kGoldens, model, "/config.json")));
}

absl::StatusOr<HfConfig> Parse(const Json& json,
                               const HfConfigOptions& options = {}) {
  return ParseHfConfig(json.dump(), "config.json", options);
}

// The target that `json` describes; a failure and zeros if it is none.
HfTarget Target(const Json& json) {
  const auto config = Parse(json);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok() || !std::holds_alternative<HfTarget>(config->model)) {
    ADD_FAILURE() << "no target";
    return {};
  }
  EXPECT_THAT(config->ignored_keys, IsEmpty());
  return std::get<HfTarget>(config->model);
}

DraftConfig Draft(const Json& json, const HfConfigOptions& options = {}) {
  const auto config = Parse(json, options);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok() || !std::holds_alternative<HfDraft>(config->model)) {
    ADD_FAILURE() << "no draft";
    return {};
  }
  return std::get<HfDraft>(config->model).config;
}

void ExpectTinyTarget(const HfTarget& target) {
  const TargetConfig& config = target.config;
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 128);
  EXPECT_EQ(config.max_context, 4096);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(target.tied, true);
  EXPECT_EQ(config.gdn.key_heads, 2);
  EXPECT_EQ(config.gdn.value_heads, 4);
  EXPECT_EQ(config.gdn.key_dim, 16);
  EXPECT_EQ(config.gdn.value_dim, 16);
  EXPECT_EQ(config.gdn.conv_width, 4);
  EXPECT_EQ(config.attention.query_heads, 4);
  EXPECT_EQ(config.attention.kv_heads, 2);
  EXPECT_EQ(config.attention.head_dim, 32);
  EXPECT_EQ(config.attention.rotary_dim, 8);
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  ASSERT_EQ(config.layers.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(config.layers[i], i % 4 == 3 ? LayerKind::kFullAttention
                                           : LayerKind::kGatedDeltaNet);
  }
  EXPECT_THAT(target.eos_tokens, ElementsAre(1));
}

TEST(HfConfigTest, ReadsATargetInBothLayouts) {
  ExpectTinyTarget(Target(GoldenConfig("tiny-qwen35")));
  ExpectTinyTarget(Target(GoldenConfig("tiny-qwen35-published")));
  EXPECT_EQ(Target(GoldenConfig("tiny-qwen35-untied")).tied, false);
  EXPECT_EQ(Target(GoldenConfig("tiny-qwen35-untied-published")).tied, false);
}

TEST(HfConfigTest, ReadsRopeAtEitherPlace) {
  Json json = GoldenConfig("tiny-qwen35");
  json.erase("rope_parameters");
  json["rope_theta"] = 5000;
  json["partial_rotary_factor"] = 0.5;
  json["rope_scaling"] = nullptr;
  TargetConfig config = Target(json).config;
  EXPECT_EQ(config.attention.rope_theta, 5000.0);
  EXPECT_EQ(config.attention.rotary_dim, 16);

  json["rope_scaling"] = {{"type", "default"}, {"mrope_section", {1, 1, 2}}};
  EXPECT_EQ(Target(json).config.attention.rope_theta, 5000.0);

  json = GoldenConfig("tiny-qwen35-published");
  json["text_config"].erase("partial_rotary_factor");
  config = Target(json).config;
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  EXPECT_EQ(config.attention.rotary_dim, 8);
}

TEST(HfConfigTest, ReadsLayerTypesOrTheirInterval) {
  Json json = GoldenConfig("tiny-qwen35");
  json.erase("layer_types");
  json["full_attention_interval"] = 3;
  const TargetConfig config = Target(json).config;
  ASSERT_EQ(config.layers.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(config.layers[i] == LayerKind::kFullAttention, i == 2 || i == 5)
        << i;
  }
  // The list wins.
  json = GoldenConfig("tiny-qwen35");
  json["full_attention_interval"] = 2;
  ExpectTinyTarget(Target(json));
}

TEST(HfConfigTest, FindsTheTiedFlagWhereverItStands) {
  Json json = GoldenConfig("tiny-qwen35-published");
  json.erase("tie_word_embeddings");
  EXPECT_EQ(Target(json).tied, true);
  json["tie_word_embeddings"] = true;
  json["text_config"].erase("tie_word_embeddings");
  EXPECT_EQ(Target(json).tied, true);
  json.erase("tie_word_embeddings");
  EXPECT_EQ(Target(json).tied, std::nullopt);
  EXPECT_FALSE(Target(json).config.tied_head);
}

TEST(HfConfigTest, ReadsOneEndTokenOrMany) {
  Json json = GoldenConfig("tiny-qwen35-published");
  json["text_config"]["eos_token_id"] = {7, 1};
  EXPECT_THAT(Target(json).eos_tokens, ElementsAre(7, 1));
  json["text_config"].erase("eos_token_id");
  EXPECT_THAT(Target(json).eos_tokens, IsEmpty());
  json["eos_token_id"] = 9;
  EXPECT_THAT(Target(json).eos_tokens, ElementsAre(9));
}

TEST(HfConfigTest, GenerationConfigHasTheLastWordAboutEndTokens) {
  const TempFolder folder;
  folder.Write("config.json", GoldenConfig("tiny-qwen35").dump());
  const auto eos = [&]() {
    const auto config = ReadHfConfig(folder.path());
    EXPECT_TRUE(config.ok()) << config.status();
    return std::get<HfTarget>(config->model).eos_tokens;
  };
  EXPECT_THAT(eos(), ElementsAre(1));
  folder.Write("generation_config.json", R"({"do_sample": true})");
  EXPECT_THAT(eos(), ElementsAre(1));
  folder.Write("generation_config.json", R"({"eos_token_id": [5, 6]})");
  EXPECT_THAT(eos(), ElementsAre(5, 6));

  folder.Write("generation_config.json", R"({"eos_token_id": 512})");
  EXPECT_THAT(ReadHfConfig(folder.path()).status().message(),
              HasSubstr("generation_config.json: eos_token_id is 512"));
  folder.Write("generation_config.json", "[");
  EXPECT_THAT(ReadHfConfig(folder.path()).status().message(),
              HasSubstr("generation_config.json: is not sound JSON"));
  folder.Write("generation_config.json", "[]");
  EXPECT_FALSE(ReadHfConfig(folder.path()).ok());
}

TEST(HfConfigTest, ReadsADraftOfTheFirstGeneration) {
  const DraftConfig config = Draft(GoldenConfig("tiny-qwen35-dflash"));
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 128);
  EXPECT_EQ(config.block_size, 8);
  EXPECT_EQ(config.mask_token, 510);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.attention.query_heads, 4);
  EXPECT_EQ(config.attention.kv_heads, 2);
  EXPECT_EQ(config.attention.head_dim, 16);
  EXPECT_EQ(config.attention.rotary_dim, 16);
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  ASSERT_EQ(config.layers.size(), 2u);
  EXPECT_EQ(config.layers[0].sliding_window, 0);
  EXPECT_EQ(config.layers[1].sliding_window, 0);
  EXPECT_THAT(config.target_layers, ElementsAre(1, 3, 6));
  EXPECT_EQ(config.target_layer_count, 8);
}

// Block size inside, rope inside, sliding layers, eight taps.
Json SecondGeneration() {
  return Json::parse(R"({
    "architectures": ["DFlashDraftModel"],
    "attention_bias": false,
    "dflash_config": {
      "block_size": 16,
      "mask_token_id": 248077,
      "target_layer_ids": [1, 5, 9, 13, 17, 21, 25, 29]
    },
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
    "intermediate_size": 9216,
    "layer_types": ["sliding_attention", "sliding_attention",
                    "sliding_attention", "sliding_attention",
                    "sliding_attention", "full_attention"],
    "max_position_embeddings": 262144, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 6,
    "num_key_value_heads": 8, "num_target_layers": 32,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 4096, "tie_word_embeddings": false,
    "use_sliding_window": true, "vocab_size": 248320
  })");
}

TEST(HfConfigTest, ReadsADraftOfTheSecondGeneration) {
  const DraftConfig config = Draft(SecondGeneration());
  EXPECT_EQ(config.block_size, 16);
  EXPECT_EQ(config.mask_token, 248077);
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  EXPECT_EQ(config.attention.rotary_dim, 128);
  ASSERT_EQ(config.layers.size(), 6u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(config.layers[i].sliding_window, 4096);
  }
  EXPECT_EQ(config.layers[5].sliding_window, 0);
  EXPECT_EQ(config.sliding_mask, SlidingMask::kCausal);
  EXPECT_THAT(config.target_layers, ElementsAre(1, 5, 9, 13, 17, 21, 25, 29));
}

TEST(HfConfigTest, SlidingLayersAreCausalUnlessSaidOtherwise) {
  Json json = SecondGeneration();
  HfConfigOptions options;
  EXPECT_EQ(Draft(json).sliding_mask, SlidingMask::kCausal);
  json["is_causal"] = false;
  EXPECT_EQ(Draft(json).sliding_mask, SlidingMask::kSymmetric);
  options.sliding_mask = SlidingMask::kCausal;
  EXPECT_EQ(Draft(json, options).sliding_mask, SlidingMask::kCausal);
  json.erase("is_causal");
  json["dflash_config"]["causal"] = false;
  EXPECT_EQ(Draft(json).sliding_mask, SlidingMask::kSymmetric);
  json["dflash_config"].erase("causal");
  options.sliding_mask = SlidingMask::kSymmetric;
  EXPECT_EQ(Draft(json, options).sliding_mask, SlidingMask::kSymmetric);

  // Both places, which may say it twice but not differently.
  json["dflash_config"]["is_causal"] = false;
  json["dflash_config"]["causal"] = false;
  EXPECT_EQ(Draft(json).sliding_mask, SlidingMask::kSymmetric);
}

TEST(HfConfigTest, CausalDraftsAreSoInEveryLayer) {
  Json json = SecondGeneration();
  json["is_causal"] = true;
  DraftConfig config = Draft(json);
  EXPECT_EQ(config.sliding_mask, SlidingMask::kCausal);
  EXPECT_EQ(config.layers[4].sliding_window, 4096);
  // A causal window that nothing is too far for.
  EXPECT_EQ(config.layers[5].sliding_window, kMaxPositions);
  json.erase("layer_types");
  json["sliding_window"] = nullptr;
  json["use_sliding_window"] = false;
  config = Draft(json);
  for (const DraftLayerConfig& layer : config.layers) {
    EXPECT_EQ(layer.sliding_window, kMaxPositions);
  }
  json["is_causal"] = false;
  EXPECT_EQ(Draft(json).layers[0].sliding_window, 0);
}

TEST(HfConfigTest, LayersWithoutTypesSlideBehindMaxWindowLayers) {
  Json json = SecondGeneration();
  json.erase("layer_types");
  json["max_window_layers"] = 4;
  const DraftConfig config = Draft(json);
  ASSERT_EQ(config.layers.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(config.layers[i].sliding_window, i < 4 ? 0 : 4096) << i;
  }
  json["use_sliding_window"] = false;
  EXPECT_EQ(Draft(json).layers[5].sliding_window, 0);
  json.erase("max_window_layers");
  json["use_sliding_window"] = true;
  EXPECT_EQ(Draft(json).layers[5].sliding_window, 0);
}

TEST(HfConfigTest, SpreadsTapsThatAreNotListed) {
  Json json = SecondGeneration();
  json["dflash_config"].erase("target_layer_ids");
  const auto taps = [&](int draft_layers, int target_layers) {
    json["num_hidden_layers"] = draft_layers;
    json["layer_types"] = Json::array();
    for (int i = 0; i < draft_layers; ++i) {
      json["layer_types"].push_back("full_attention");
    }
    json["num_target_layers"] = target_layers;
    return Draft(json).target_layers;
  };
  // Published lists, all of which follow the rule.
  EXPECT_THAT(taps(5, 32), ElementsAre(1, 8, 15, 22, 29));
  EXPECT_THAT(taps(8, 32), ElementsAre(1, 5, 9, 13, 17, 21, 25, 29));
  EXPECT_THAT(taps(5, 40), ElementsAre(1, 10, 19, 28, 37));
  EXPECT_THAT(taps(8, 40), ElementsAre(1, 6, 11, 16, 22, 27, 32, 37));
  EXPECT_THAT(taps(5, 64), ElementsAre(1, 16, 31, 46, 61));
  EXPECT_THAT(taps(5, 36), ElementsAre(1, 9, 17, 25, 33));
  EXPECT_THAT(taps(1, 24), ElementsAre(12));
  // 1 + 1.5 = 2.5 and 1 + 4.5 = 5.5: to even.
  EXPECT_THAT(taps(5, 10), ElementsAre(1, 2, 4, 6, 7));
}

// Whole configs as they are published, of each family and every size.
void ExpectShape(const std::string& name, const Json& json, int32_t dense) {
  SCOPED_TRACE(name);
  const auto shape = TargetShape(name);
  ASSERT_TRUE(shape.ok()) << shape.status();
  const TargetConfig config = Target(json).config;
  EXPECT_EQ(config.vocab_size, shape->vocab_size);
  EXPECT_EQ(config.hidden_size, shape->hidden_size);
  EXPECT_EQ(config.intermediate_size, dense);
  EXPECT_EQ(config.max_context, shape->max_context);
  EXPECT_EQ(config.rms_norm_eps, shape->rms_norm_eps);
  EXPECT_EQ(config.tied_head, shape->tied_head);
  EXPECT_EQ(config.layers, shape->layers);
  EXPECT_EQ(config.gdn.key_heads, shape->gdn.key_heads);
  EXPECT_EQ(config.gdn.value_heads, shape->gdn.value_heads);
  EXPECT_EQ(config.gdn.key_dim, shape->gdn.key_dim);
  EXPECT_EQ(config.gdn.value_dim, shape->gdn.value_dim);
  EXPECT_EQ(config.attention.query_heads, shape->attention.query_heads);
  EXPECT_EQ(config.attention.kv_heads, shape->attention.kv_heads);
  EXPECT_EQ(config.attention.head_dim, shape->attention.head_dim);
  EXPECT_EQ(config.attention.rotary_dim, shape->attention.rotary_dim);
  EXPECT_EQ(config.attention.rope_theta, shape->attention.rope_theta);
  EXPECT_EQ(config.moe.experts, shape->moe.experts);
  EXPECT_EQ(config.moe.experts_per_token, shape->moe.experts_per_token);
  EXPECT_EQ(config.moe.expert_size, shape->moe.expert_size);
  EXPECT_EQ(config.moe.shared_size, shape->moe.shared_size);
  EXPECT_EQ(config.moe.normalise, shape->moe.normalise);
  EXPECT_EQ(config.moe.layers, shape->moe.layers);
}

// Of a text model, nested; what differs between sizes is set by the tests.
Json PublishedText() {
  return Json::parse(R"({
    "attention_bias": false, "attention_dropout": 0.0,
    "attn_output_gate": true, "bos_token_id": null, "dtype": "bfloat16",
    "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "initializer_range": 0.02,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
    "mlp_only_layers": [], "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "pad_token_id": null,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000,
      "rope_type": "default"
    },
    "use_cache": true, "vocab_size": 248320
  })");
}

Json Published(const std::string& architecture, const std::string& type,
               const Json& text, bool tied) {
  Json json = Json::parse(R"({
    "image_token_id": 248056, "language_model_only": false,
    "transformers_version": "5.2.0", "video_token_id": 248057,
    "vision_config": {"depth": 12, "hidden_size": 768},
    "vision_end_token_id": 248054, "vision_start_token_id": 248053
  })");
  json["architectures"] = {architecture};
  json["model_type"] = type;
  json["tie_word_embeddings"] = tied;
  json["text_config"] = text;
  json["text_config"]["model_type"] = type + "_text";
  return json;
}

TEST(HfConfigTest, ReadsPublishedConfigs) {
  struct Size {
    const char* name;
    int hidden, inner, layers, query_heads, kv_heads, value_heads;
    bool tied;
  };
  for (const Size& size :
       {Size{"qwen3.5-0.8b", 1024, 3584, 24, 8, 2, 16, true},
        {"qwen3.5-2b", 2048, 6144, 24, 8, 2, 16, true},
        {"qwen3.5-4b", 2560, 9216, 32, 16, 4, 32, true},
        {"qwen3.5-9b", 4096, 12288, 32, 16, 4, 32, false},
        {"qwen3.5-27b", 5120, 17408, 64, 24, 4, 48, false}}) {
    Json text = PublishedText();
    text["hidden_size"] = size.hidden;
    text["intermediate_size"] = size.inner;
    text["num_hidden_layers"] = size.layers;
    text["num_attention_heads"] = size.query_heads;
    text["num_key_value_heads"] = size.kv_heads;
    text["linear_num_value_heads"] = size.value_heads;
    text["output_gate_type"] = "sigmoid";
    text["tie_word_embeddings"] = size.tied;
    ExpectShape(size.name,
                Published("Qwen3_5ForConditionalGeneration", "qwen3_5", text,
                          size.tied),
                size.inner);
  }

  Json text = PublishedText();
  text.merge_patch(Json::parse(R"({
    "hidden_size": 2048, "linear_num_value_heads": 32,
    "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "output_router_logits": true,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512
  })"));
  ExpectShape("qwen3.5-35b-a3b",
              Published("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe",
                        text, false),
              0);

  ExpectShape("qwen3-next-80b-a3b", Json::parse(R"({
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mlp_only_layers": [], "model_type": "qwen3_next",
    "moe_intermediate_size": 512, "norm_topk_prob": true,
    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 48, "num_key_value_heads": 2,
    "output_router_logits": false, "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936
  })"),
              0);
}

TEST(HfConfigTest, AcceptsWhatSaysTheUsual) {
  Json json = GoldenConfig("tiny-qwen35-dflash");
  json["draft_vocab_size"] = 512;
  json["dflash_config"]["use_qk_norm"] = true;
  json["dflash_config"]["shift_label"] = false;
  json["dflash_config"]["mask_token"] = "<|mask|>";
  EXPECT_EQ(Draft(json).vocab_size, 512);
}

TEST(HfConfigTest, DraftNeedNotSayHowManyLayersItsTargetHas) {
  Json json = SecondGeneration();
  json.erase("num_target_layers");
  EXPECT_EQ(Draft(json).target_layer_count, 0);
}

// One change of a sound config, and what the error must say.
struct Refusal {
  const char* pointer;   // JSON pointer
  const char* value;     // JSON; empty: the key is removed
  const char* words[3];  // Null: none.
};

void ExpectRefused(const Json& sound, const Refusal& refusal) {
  SCOPED_TRACE(absl::StrCat(refusal.pointer, " = ", refusal.value));
  Json json = sound;
  const Json::json_pointer pointer(refusal.pointer);
  if (*refusal.value == '\0') {
    json[pointer.parent_pointer()].erase(pointer.back());
  } else {
    json[pointer] = Json::parse(refusal.value);
  }
  const auto config = Parse(json);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr("config.json: "));
  for (const char* const word : refusal.words) {
    if (word == nullptr) break;
    EXPECT_THAT(config.status().message(), HasSubstr(word));
  }
}

TEST(HfConfigTest, RefusesTargetsByKeyAndValue) {
  const Refusal refusals[] = {
      {"/architectures",
       R"(["LlamaForCausalLM"])",
       {"architectures", "LlamaForCausalLM", "Qwen3_5ForCausalLM"}},
      // Other models of the family say "model_type" differently.
      {"/architectures",
       R"(["Qwen3NextForCausalLM"])",
       {"model_type is \"qwen3_5_text\"", "only \"qwen3_next\" is"}},
      {"/architectures",
       R"(["Qwen3_5MoeForCausalLM"])",
       {"model_type is \"qwen3_5_text\"",
        "only \"qwen3_5_moe\" and \"qwen3_5_moe_text\" are"}},
      {"/architectures",
       R"(["Qwen3_5ForCausalLM", "DFlashDraftModel"])",
       {"architectures", "exactly one"}},
      {"/architectures", "7", {"architectures is 7"}},
      {"/model_type",
       R"("qwen3_5_moe_text")",
       {"model_type", "qwen3_5_moe_text"}},
      {"/vocab_size", "", {"vocab_size is missing"}},
      {"/vocab_size", "null", {"vocab_size is missing"}},
      {"/vocab_size", "0", {"vocab_size is 0"}},
      {"/vocab_size", "-5", {"vocab_size is -5"}},
      {"/vocab_size", "4294967808", {"vocab_size is 4294967808", "integer"}},
      {"/vocab_size", "99999999999999999999", {"vocab_size", "integer"}},
      {"/vocab_size", "512.0", {"vocab_size is 512.0", "integer"}},
      {"/vocab_size", R"("512")", {"vocab_size is \"512\"", "integer"}},
      {"/hidden_size", "true", {"hidden_size is true"}},
      {"/hidden_size", "", {"hidden_size is missing"}},
      {"/intermediate_size", "", {"intermediate_size is missing"}},
      {"/intermediate_size", "2000000000", {"intermediate_size"}},
      {"/max_position_embeddings", "", {"max_position_embeddings is missing"}},
      {"/rms_norm_eps", "", {"rms_norm_eps is missing"}},
      {"/rms_norm_eps", "0", {"rms_norm_eps is 0"}},
      {"/rms_norm_eps", R"("1e-6")", {"rms_norm_eps", "number"}},
      {"/hidden_act", R"("gelu")", {"hidden_act is \"gelu\"", "silu"}},
      {"/attention_bias", "true", {"attention_bias is true"}},
      {"/attn_output_gate", "false", {"attn_output_gate is false"}},
      {"/output_gate_type",
       R"("swish")",
       {"output_gate_type is \"swish\"", "sigmoid"}},
      {"/quantization_config",
       R"({"quant_method": "gptq"})",
       {"quantization_config", "gptq", "quantised"}},
      {"/quantization",
       R"({"group_size": 64, "bits": 4})",
       {"quantization", "group_size", "quantised"}},
      {"/compression_config",
       R"({"format": "pack-quantized"})",
       {"compression_config", "pack-quantized", "quantised"}},
      {"/num_experts", "8", {"num_experts is 8"}},
      {"/mlp_only_layers", "[1]", {"mlp_only_layers is [1]"}},
      {"/linear_conv_kernel_dim", "3", {"linear_conv_kernel_dim is 3", "4"}},
      {"/linear_conv_kernel_dim", "", {"linear_conv_kernel_dim is missing"}},
      {"/mamba_ssm_dtype",
       R"("bfloat16")",
       {"mamba_ssm_dtype is \"bfloat16\"", "float32"}},
      {"/linear_num_value_heads",
       "3",
       {"linear_num_value_heads is 3", "linear_num_key_heads", "2"}},
      {"/linear_num_key_heads", "0", {"linear_num_key_heads", "0"}},
      {"/linear_num_key_heads", "-2", {"linear_num_key_heads", "-2"}},
      {"/linear_key_head_dim", "", {"linear_key_head_dim is missing"}},
      {"/linear_value_head_dim", "0", {"value_dim is 0"}},
      {"/num_attention_heads",
       "5",
       {"num_attention_heads is 5", "num_key_value_heads", "2"}},
      {"/num_key_value_heads", "0", {"num_key_value_heads", "0"}},
      {"/head_dim", "", {"head_dim is missing"}},
      {"/head_dim", "30", {"partial_rotary_factor", "0.25", "30"}},
      {"/partial_rotary_factor",
       "0.5",
       {"partial_rotary_factor is 0.5", "rope_parameters"}},
      {"/rope_parameters", "", {"rope_theta is missing"}},
      {"/rope_parameters", "[]", {"rope_parameters is []", "object"}},
      {"/rope_parameters/rope_theta", "", {"rope_theta is missing"}},
      {"/rope_parameters/rope_theta", "0", {"rope_theta is 0"}},
      {"/rope_parameters/rope_type",
       R"("yarn")",
       {"rope_parameters.rope_type is \"yarn\"", "default"}},
      {"/rope_parameters/factor", "4.0", {"rope_parameters.factor = 4.0"}},
      {"/rope_parameters/full_attention",
       R"({"rope_theta": 1})",
       {"rope_parameters.full_attention"}},
      {"/rope_theta", "1", {"rope_theta is 1", "rope_parameters"}},
      {"/rope_scaling",
       R"({"type": "linear", "factor": 2})",
       {"rope_scaling.type is \"linear\""}},
      {"/rope_scaling",
       R"({"type": "default", "factor": 2})",
       {"rope_scaling.factor = 2"}},
      {"/num_hidden_layers", "", {"num_hidden_layers is missing"}},
      {"/num_hidden_layers", "7", {"layer_types has 8", "7"}},
      {"/num_hidden_layers", "2000000000", {"num_hidden_layers is 2000000000"}},
      {"/num_hidden_layers", "-1", {"num_hidden_layers is -1"}},
      {"/layer_types", "", {"layer_types is missing"}},
      {"/layer_types/3", R"("mamba")", {"layer_types[3] is \"mamba\""}},
      {"/layer_types/3",
       R"("sliding_attention")",
       {"layer_types[3] is \"sliding_attention\""}},
      {"/layer_types/3", "3", {"layer_types", "texts"}},
      {"/tie_word_embeddings", "1", {"tie_word_embeddings is 1"}},
      {"/eos_token_id", "512", {"eos_token_id is 512", "511"}},
      {"/eos_token_id", "-1", {"eos_token_id is -1"}},
      {"/eos_token_id", "[1, 1.5]", {"eos_token_id", "1.5"}},
      {"/eos_token_id", "[1, 512]", {"eos_token_id[1] is 512", "511"}},
      {"/eos_token_id", R"("</s>")", {"eos_token_id is \"</s>\""}},
      {"/final_logit_softcapping", "30.0", {"final_logit_softcapping = 30.0"}},
      {"/mlp_bias", "true", {"mlp_bias = true", "not known"}},
      {"/text_config", "7", {"text_config is 7"}},
  };
  const Json sound = GoldenConfig("tiny-qwen35");
  for (const Refusal& refusal : refusals) ExpectRefused(sound, refusal);

  const Refusal nested[] = {
      {"/architectures",
       R"(["Qwen3_5MoeForConditionalGeneration"])",
       {"text_config.model_type is \"qwen3_5_text\""}},
      {"/text_config/hidden_act",
       R"("relu")",
       {"text_config.hidden_act is \"relu\""}},
      {"/text_config/rope_parameters/rope_type",
       R"("yarn")",
       {"text_config.rope_parameters.rope_type is \"yarn\""}},
      {"/text_config/model_type",
       R"("qwen3_5_moe_text")",
       {"text_config.model_type"}},
      {"/text_config/hidden_size", "", {"text_config.hidden_size is missing"}},
      {"/tie_word_embeddings",
       "false",
       {"tie_word_embeddings", "text_config.tie_word_embeddings"}},
      {"/quantization_config", R"({"bits": 4})", {"quantization_config"}},
      {"/text_config/quantization_config",
       R"({"bits": 4})",
       {"text_config.quantization_config"}},
      {"/text_config/logits_scaling", "2", {"text_config.logits_scaling = 2"}},
      {"/embedding_multiplier", "2", {"embedding_multiplier = 2"}},
  };
  const Json published = GoldenConfig("tiny-qwen35-published");
  for (const Refusal& refusal : nested) ExpectRefused(published, refusal);
}

void ExpectTinyMoe(const MoeConfig& moe) {
  EXPECT_EQ(moe.experts, 8);
  EXPECT_EQ(moe.experts_per_token, 2);
  EXPECT_EQ(moe.expert_size, 32);
  EXPECT_EQ(moe.shared_size, 48);
  EXPECT_TRUE(moe.normalise);
}

TEST(HfConfigTest, ReadsExpertsInBothLayouts) {
  for (const char* const name :
       {"tiny-qwen35moe", "tiny-qwen35moe-published"}) {
    Json json = GoldenConfig(name);
    const HfTarget target = Target(json);
    ExpectTinyMoe(target.config.moe);
    EXPECT_EQ(target.config.intermediate_size, 0);
    EXPECT_THAT(target.config.moe.layers, ElementsAre(true, true, true, true));
    EXPECT_EQ(target.tied, false);
    // A size of MLPs that no layer has.
    Json& text = json.contains("text_config") ? json["text_config"] : json;
    text["intermediate_size"] = 5632;
    text["norm_topk_prob"] = true;
    EXPECT_EQ(Target(json).config.intermediate_size, 0);
  }
  // The type of the text model says enough.
  Json json = GoldenConfig("tiny-qwen35moe");
  json.erase("architectures");
  ExpectTinyMoe(Target(json).config.moe);
}

TEST(HfConfigTest, ReadsQwen3Next) {
  Json json = GoldenConfig("tiny-qwen3next-moe");
  TargetConfig config = Target(json).config;
  ExpectTinyMoe(config.moe);
  EXPECT_EQ(config.intermediate_size, 128);
  EXPECT_EQ(config.attention.rotary_dim, 8);
  EXPECT_THAT(config.moe.layers, ElementsAre(true, false, true, true));
  json["decoder_sparse_step"] = 2;
  EXPECT_THAT(Target(json).config.moe.layers,
              ElementsAre(false, false, false, true));
  json["mlp_only_layers"] = Json::array();
  json["norm_topk_prob"] = false;
  config = Target(json).config;
  EXPECT_THAT(config.moe.layers, ElementsAre(false, true, false, true));
  EXPECT_FALSE(config.moe.normalise);
  // Without these keys, what the model's code takes for them.
  for (const char* const key :
       {"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"}) {
    json.erase(key);
  }
  config = Target(json).config;
  EXPECT_THAT(config.moe.layers, ElementsAre(true, true, true, true));
  EXPECT_TRUE(config.moe.normalise);
  EXPECT_EQ(config.intermediate_size, 0);
}

TEST(HfConfigTest, Qwen3NextWithoutExpertsIsDense) {
  Json json = GoldenConfig("tiny-qwen3next-dense");
  EXPECT_EQ(Target(json).config.moe.experts, 0);
  EXPECT_TRUE(Target(json).config.moe.layers.empty());
  EXPECT_EQ(Target(json).config.intermediate_size, 128);
  json["mlp_only_layers"] = Json::array();
  json["num_experts"] = 0;
  EXPECT_EQ(Target(json).config.moe.experts, 0);
  json = GoldenConfig("tiny-qwen3next-moe");
  json["decoder_sparse_step"] = 5;
  EXPECT_EQ(Target(json).config.moe.experts, 0);
}

TEST(HfConfigTest, RefusesMixturesByKeyAndValue) {
  const Refusal refusals[] = {
      {"/num_experts", "", {"num_experts is missing"}},
      {"/num_experts", "0", {"moe.experts is 0"}},
      {"/num_experts", "-8", {"moe.experts is -8"}},
      {"/num_experts", "5000", {"moe.experts is 5000", "1024"}},
      {"/num_experts", "8.5", {"num_experts is 8.5"}},
      {"/num_experts_per_tok", "", {"num_experts_per_tok is missing"}},
      {"/num_experts_per_tok", "9", {"experts_per_token is 9", "1 to 8"}},
      {"/moe_intermediate_size", "", {"moe_intermediate_size is missing"}},
      {"/moe_intermediate_size", "0", {"moe.expert_size is 0"}},
      {"/shared_expert_intermediate_size",
       "",
       {"shared_expert_intermediate_size is missing"}},
      {"/shared_expert_intermediate_size", "0", {"moe.shared_size is 0"}},
      {"/norm_topk_prob", "false", {"norm_topk_prob is false"}},
      {"/mlp_only_layers", "[1]", {"mlp_only_layers is [1]"}},
      {"/decoder_sparse_step", "2", {"decoder_sparse_step is 2"}},
      {"/model_type", R"("qwen3_next")", {"model_type is \"qwen3_next\""}},
      {"/n_group", "4", {"n_group = 4", "not known"}},
  };
  const Json stacked = GoldenConfig("tiny-qwen35moe");
  for (const Refusal& refusal : refusals) ExpectRefused(stacked, refusal);

  const Refusal next[] = {
      {"/decoder_sparse_step", "0", {"decoder_sparse_step is 0"}},
      {"/decoder_sparse_step", "-1", {"decoder_sparse_step is -1"}},
      {"/mlp_only_layers", "[4]", {"mlp_only_layers holds layer 4", "0 to 3"}},
      {"/mlp_only_layers", "[-1]", {"mlp_only_layers holds layer -1"}},
      {"/mlp_only_layers", R"("all")", {"mlp_only_layers is \"all\""}},
      {"/num_experts", "-1", {"num_experts is -1"}},
      {"/norm_topk_prob", "1", {"norm_topk_prob is 1"}},
      {"/intermediate_size", "", {"intermediate_size is missing"}},
      {"/model_type", R"("qwen3_5_text")", {"model_type"}},
  };
  const Json interleaved = GoldenConfig("tiny-qwen3next-moe");
  for (const Refusal& refusal : next) ExpectRefused(interleaved, refusal);
}

// Case C18 among them.
TEST(HfConfigTest, RefusesDraftsByKeyAndValue) {
  const Refusal refusals[] = {
      {"/architectures",
       R"(["DFlash2DraftModel"])",
       {"DFlash2DraftModel", "not supported yet"}},
      {"/architectures", R"(["DSparkDraftModel"])", {"DSparkDraftModel"}},
      {"/architectures", R"(["Eagle3"])", {"Eagle3", "DFlashDraftModel"}},
      {"/model_type", R"("llama")", {"model_type is \"llama\""}},
      {"/dflash_config", "", {"dflash_config is missing"}},
      {"/dflash_config", "[]", {"dflash_config is []"}},
      {"/dflash_config/shift_label",
       "true",
       {"dflash_config.shift_label is true"}},
      {"/dflash_config/mask_token_id",
       "",
       {"dflash_config.mask_token_id is missing"}},
      {"/dflash_config/mask_token_id",
       "-1",
       {"dflash_config.mask_token_id is -1", "511"}},
      {"/dflash_config/mask_token_id",
       "512",
       {"dflash_config.mask_token_id is 512", "511"}},
      {"/dflash_config/block_size",
       "16",
       {"block_size is 8", "dflash_config.block_size"}},
      {"/block_size", "", {"block_size is missing"}},
      {"/block_size", "0", {"block_size is 0"}},
      {"/block_size", "1", {"block_size is 1"}},
      {"/block_size", "17", {"block_size is 17"}},
      {"/dflash_config/target_layer_ids", "[]", {"target_layers"}},
      {"/dflash_config/target_layer_ids",
       "[1, 8]",
       {"dflash_config.target_layer_ids", "8", "7"}},
      {"/dflash_config/target_layer_ids",
       "[-1]",
       {"dflash_config.target_layer_ids", "-1"}},
      {"/dflash_config/target_layer_ids", "[1, 1]", {"target_layers"}},
      {"/dflash_config/target_layer_ids", R"(["1"])", {"target_layer_ids"}},
      {"/dflash_config/selector_rank",
       "256",
       {"dflash_config.selector_rank = 256"}},
      {"/num_target_layers", "0", {"num_target_layers is 0"}},
      {"/num_target_layers", "100000", {"num_target_layers is 100000"}},
      {"/layer_types/0",
       R"("sliding_attention")",
       {"use_sliding_window is false", "layer 0"}},
      {"/layer_types/0",
       R"("linear_attention")",
       {"layer_types[0] is \"linear_attention\""}},
      {"/num_hidden_layers", "3", {"layer_types has 2", "3"}},
      {"/is_causal", "1", {"is_causal is 1"}},
      {"/dflash_config/use_swa", "true", {"dflash_config.use_swa = true"}},
      {"/dflash_config/swa_window_size",
       "2048",
       {"dflash_config.swa_window_size = 2048"}},
      {"/dflash_config/sample_from_anchor",
       "true",
       {"dflash_config.sample_from_anchor is true"}},
      {"/dflash_config/use_qk_norm",
       "false",
       {"dflash_config.use_qk_norm is false"}},
      {"/draft_vocab_size", "256", {"draft_vocab_size is 256", "512"}},
      {"/quantization", R"({"bits": 4})", {"quantization", "quantised"}},
      {"/hidden_act", R"("gelu")", {"hidden_act is \"gelu\""}},
      {"/attention_bias", "true", {"attention_bias is true"}},
      {"/rope_scaling",
       R"({"rope_type": "yarn", "factor": 4})",
       {"rope_scaling.rope_type is \"yarn\""}},
      {"/rope_theta", "", {"rope_theta is missing"}},
      {"/rope_parameters",
       R"({"rope_theta": 1})",
       {"rope_theta", "rope_parameters.rope_theta"}},
      {"/quantization_config", R"({"bits": 4})", {"quantization_config"}},
      {"/input_embedding_scale", "2.0", {"input_embedding_scale = 2.0"}},
      {"/num_attention_heads", "3", {"num_attention_heads is 3"}},
      {"/vocab_size", "", {"vocab_size is missing"}},
  };
  const Json sound = GoldenConfig("tiny-qwen35-dflash");
  for (const Refusal& refusal : refusals) ExpectRefused(sound, refusal);

  const Refusal sliding[] = {
      {"/sliding_window", "null", {"sliding_window", "layer 0"}},
      {"/sliding_window", "0", {"sliding_window is 0"}},
      {"/sliding_window", "-4", {"sliding_window is -4"}},
      {"/sliding_window", "4.5", {"sliding_window is 4.5"}},
  };
  const Json window = GoldenConfig("tiny-qwen35-dflash-swa");
  EXPECT_EQ(Draft(window).layers[0].sliding_window, 12);
  for (const Refusal& refusal : sliding) ExpectRefused(window, refusal);
}

// Case C20: not what their target's config says.
TEST(HfConfigTest, DraftsRotateWhatTheirOwnConfigSays) {
  Json json = GoldenConfig("tiny-qwen35-dflash");
  EXPECT_EQ(Draft(json).attention.rotary_dim, 16);
  json["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(Draft(json).attention.rotary_dim, 8);
}

// A list that is wrong throughout takes no longer than its first wrong entry.
TEST(HfConfigTest, LongListsAreRefusedAtOnce) {
  std::vector<int32_t> ids(300000);
  std::iota(ids.begin(), ids.end(), 0);
  Json json = GoldenConfig("tiny-qwen35");
  json["eos_token_id"] = ids;
  ExpectRefused(json, {"/vocab_size", "512", {"eos_token_id[512] is 512"}});
  json = GoldenConfig("tiny-qwen35-dflash");
  json["dflash_config"]["target_layer_ids"] = ids;
  ExpectRefused(json, {"/num_target_layers", "8", {"layer 8"}});
}

TEST(HfConfigTest, UnknownKeysCanBeIgnoredAndAreListed) {
  Json json = GoldenConfig("tiny-qwen35");
  json["mlp_bias"] = true;
  json["rope_parameters"]["factor"] = 2;
  json["harmless"] = nullptr;
  json["empty"] = Json::array();
  json["off"] = false;
  HfConfigOptions options;
  options.ignore_unknown_keys = true;
  const auto config = Parse(json, options);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->ignored_keys,
              ElementsAre("rope_parameters.factor = 2", "mlp_bias = true"));
  json["hidden_act"] = "gelu";  // Known, so it stays refused.
  EXPECT_FALSE(Parse(json, options).ok());
}

TEST(HfConfigTest, RefusesWhatIsNoConfig) {
  EXPECT_THAT(ParseHfConfig("", "c", {}).status().message(),
              HasSubstr("c: is not sound JSON"));
  EXPECT_THAT(ParseHfConfig("[]", "c", {}).status().message(),
              HasSubstr("not an object"));
  EXPECT_THAT(ParseHfConfig("{}", "c", {}).status().message(),
              HasSubstr("architectures is missing"));
  EXPECT_THAT(ParseHfConfig("{\"a\":1,\"a\":2}", "c", {}).status().message(),
              HasSubstr("\"a\" occurs twice"));
  EXPECT_THAT(
      ParseHfConfig(std::string(10000, '['), "c", {}).status().message(),
      HasSubstr("deeper than 64"));
  EXPECT_THAT(ParseHfConfig("{\"a\":\"\xFF\"}", "c", {}).status().message(),
              HasSubstr("not sound JSON"));
  EXPECT_THAT(ParseHfConfig("{\"a\":1e999}", "c", {}).status().message(),
              HasSubstr("number overflow"));
  const TempFolder folder;
  EXPECT_EQ(ReadHfConfig(folder.path()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(HfConfigTest, RecognisesConfigsWithoutArchitectures) {
  Json json = GoldenConfig("tiny-qwen35");
  json.erase("architectures");
  ExpectTinyTarget(Target(json));
  json = GoldenConfig("tiny-qwen35-dflash");
  json.erase("architectures");
  EXPECT_EQ(Draft(json).block_size, 8);
}

// Whatever a byte turns into, the answer is a config or an error.
TEST(HfConfigTest, SurvivesEveryFlippedByte) {
  testing::Random random(3);
  for (const char* const model : {"tiny-qwen35", "tiny-qwen35-dflash"}) {
    const std::string text = GoldenConfig(model).dump();
    int errors = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ random.Int(1, 255));
      if (!ParseHfConfig(flipped, "c", {}).ok()) ++errors;
      if (!ParseHfConfig(text.substr(0, i), "c", {}).ok()) ++errors;
    }
    EXPECT_GT(errors, static_cast<int>(text.size()));
  }
}

}  // namespace
}  // namespace deltaedge
