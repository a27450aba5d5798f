// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/make_random.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/weights.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ReadBytes;
using testing::TempFolder;

constexpr char kModels[] = "tests/testdata/models/";

std::unique_ptr<ModelFile> Open(const std::string& path) {
  auto file = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

TargetConfig SmallTarget() {
  TargetConfig config;
  config.name = "small";
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.max_context = 512;
  config.rms_norm_eps = 1e-6f;
  config.tied_head = true;
  config.gdn = {2, 4, 16, 24, 4};
  config.attention = {4, 2, 16, 8, 1e4};
  config.layers = {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention};
  return config;
}

DraftConfig SmallDraft() {
  DraftConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.block_size = 4;
  config.mask_token = 299;
  config.rms_norm_eps = 1e-6f;
  config.attention = {4, 2, 16, 16, 1e4};
  config.layers = {{0}, {8}};
  config.target_layers = {0, 1};
  return config;
}

TEST(MakeRandomTest, SeedDecidesEveryBit) {
  const TempFolder folder;
  RandomModelOptions options;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "a", options).ok());
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "b", options).ok());
  options.numbers.seed = 2;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "c", options).ok());
  EXPECT_TRUE(ReadBytes(folder / "a") == ReadBytes(folder / "b"));
  EXPECT_NE(Open(folder / "a")->fingerprint(),
            Open(folder / "c")->fingerprint());
}

// Written down on one machine: the same on all.
TEST(MakeRandomTest, NumbersAreTheSameOnEveryMachine) {
  const TempFolder folder;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "t").ok());
  const auto file = Open(folder / "t");
  EXPECT_EQ(file->fingerprint(), 0xd0f81d8cf7529fc4u);
}

TEST(MakeRandomTest, WeightsKeepTheSizeOfWhatTheyMultiply) {
  const TempFolder folder;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "t").ok());
  const auto file = Open(folder / "t");
  const auto moments = [](const float* values, int64_t size) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += values[i];
      squares += static_cast<double>(values[i]) * values[i];
    }
    const double mean = sum / size;
    return std::make_pair(mean, std::sqrt(squares / size - mean * mean));
  };
  const auto expect_matrix = [&](const MatrixView& m, double gain) {
    const auto [mean, deviation] = moments(m.f32(), int64_t{m.rows} * m.cols);
    const double unit = gain / std::sqrt(m.cols);
    EXPECT_NEAR(mean, 0, unit * 0.05);
    EXPECT_NEAR(deviation, unit, unit * 0.05);
  };
  const TargetWeights& weights = file->target_weights();
  expect_matrix(weights.embedding, 2);
  expect_matrix(weights.layers[0].gdn.in_qkv, 1);
  expect_matrix(weights.layers[0].mlp.down, 1);
  expect_matrix(weights.layers[1].attention.q, 1);
  const auto [mean, deviation] = moments(weights.final_norm, 64);
  EXPECT_NEAR(mean, 1, 0.05);
  EXPECT_NEAR(deviation, 0.1, 0.03);
  for (int h = 0; h < 4; ++h) {
    const GdnWeights& gdn = weights.layers[0].gdn;
    EXPECT_GE(gdn.neg_exp_a[h], -16);
    EXPECT_LT(gdn.neg_exp_a[h], -1);
    // The decay of a token whose projection is zero.
    const double decay =
        std::exp(gdn.neg_exp_a[h] * std::log1p(std::exp(gdn.dt_bias[h])));
    EXPECT_GT(decay, 0.15);
    EXPECT_LT(decay, 0.9995);
  }
}

TEST(MakeRandomTest, DraftFitsItsTargetOnly) {
  const TempFolder folder;
  RandomModelOptions options;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "t", options).ok());
  options.numbers.seed = 2;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "u", options).ok());
  ASSERT_TRUE(MakeRandomDraft(SmallDraft(), folder / "t", folder / "d").ok());
  const auto draft = Open(folder / "d");
  EXPECT_EQ(draft->draft_config().target_layer_count, 2);
  EXPECT_TRUE(CheckPair(*Open(folder / "t"), *draft).ok());
  EXPECT_FALSE(CheckPair(*Open(folder / "u"), *draft).ok());

  EXPECT_THAT(
      MakeRandomDraft(SmallDraft(), folder / "d", folder / "e").message(),
      HasSubstr("is a draft"));
  DraftConfig other = SmallDraft();
  other.hidden_size = 32;
  EXPECT_THAT(MakeRandomDraft(other, folder / "t", folder / "e").message(),
              HasSubstr("hidden_size"));
  EXPECT_EQ(MakeRandomDraft(SmallDraft(), folder / "none", folder / "e").code(),
            absl::StatusCode::kNotFound);
}

// Of any type they stand for the same numbers and are the same model.
TEST(MakeRandomTest, TypesOfOneModel) {
  const TempFolder folder;
  ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "f").ok());
  ASSERT_TRUE(MakeRandomDraft(SmallDraft(), folder / "f", folder / "df").ok());
  const auto exact = Open(folder / "f");
  const auto row = [](const MatrixView& matrix, int64_t index) {
    std::vector<float> values(matrix.cols);
    DequantiseRow(matrix, index, values.data());
    return values;
  };
  for (const WeightType type :
       {WeightType::kQ8, WeightType::kQ4, WeightType::kQ8W}) {
    RandomModelOptions options;
    options.recipe.weights = type;
    ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "q", options).ok());
    ASSERT_TRUE(MakeRandomTarget(SmallTarget(), folder / "r", options).ok());
    EXPECT_TRUE(ReadBytes(folder / "q") == ReadBytes(folder / "r"));
    const auto file = Open(folder / "q");
    EXPECT_EQ(file->fingerprint(), exact->fingerprint());
    const TargetLayerWeights& layer = file->target_weights().layers[0];
    EXPECT_EQ(file->target_weights().head.type, type);
    EXPECT_EQ(layer.gdn.in_z.type, type);
    EXPECT_EQ(layer.gdn.in_a.type, WeightType::kF32);
    EXPECT_EQ(layer.mlp.down.type, type);
    const double most = type == WeightType::kQ4 ? 0.12 : 0.012;
    for (const int64_t index : {0, 17, 63}) {
      const std::vector<float> ours = row(layer.mlp.down, index);
      const std::vector<float> theirs =
          row(exact->target_weights().layers[0].mlp.down, index);
      double error = 0, square = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        error += std::pow(ours[i] - theirs[i], 2);
        square += std::pow(theirs[i], 2);
      }
      EXPECT_GT(error, 0);
      EXPECT_LT(std::sqrt(error / square), most);
    }

    options.recipe.head = WeightType::kQ8;
    EXPECT_THAT(
        MakeRandomDraft(SmallDraft(), folder / "q", folder / "d", options)
            .message(),
        HasSubstr("neither a head"));
    options.recipe.head.reset();
    ASSERT_TRUE(
        MakeRandomDraft(SmallDraft(), folder / "q", folder / "d", options)
            .ok());
    const auto draft = Open(folder / "d");
    EXPECT_EQ(draft->fingerprint(), Open(folder / "df")->fingerprint());
    EXPECT_EQ(draft->draft_weights().fc.type, type);
    EXPECT_TRUE(CheckPair(*exact, *draft).ok());
  }
}

TEST(MakeRandomTest, ColumnsThatQ4CannotHaveAreQ8) {
  const TempFolder folder;
  TargetConfig config = SmallTarget();
  config.intermediate_size = 100;
  RandomModelOptions options;
  options.recipe = {WeightType::kQ4, WeightType::kF32, {}};
  ASSERT_TRUE(MakeRandomTarget(config, folder / "q", options).ok());
  const auto file = Open(folder / "q");
  EXPECT_EQ(file->target_weights().layers[0].mlp.gate.type, WeightType::kQ4);
  EXPECT_EQ(file->target_weights().layers[0].mlp.down.type, WeightType::kQ8);
  EXPECT_EQ(file->target_weights().embedding.type, WeightType::kF32);
}

TEST(MakeRandomTest, StoppedWhileItRunsItLeavesNothing) {
  const TempFolder folder;
  const std::atomic<bool> stop{true};
  RandomModelOptions options;
  options.stop = &stop;
  const absl::Status status =
      MakeRandomTarget(SmallTarget(), folder / "t", options);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(folder.FileCount(), 0u);
}

TEST(MakeRandomTest, RefusesUnsoundConfigs) {
  const TempFolder folder;
  TargetConfig config = SmallTarget();
  config.vocab_size = 0;
  EXPECT_THAT(MakeRandomTarget(config, folder / "t").message(),
              HasSubstr("vocab_size is 0"));
  EXPECT_EQ(folder.FileCount(), 0u);
}

TEST(MakeRandomTest, TokenizerOfBytesWhereThereIsRoom) {
  const TempFolder folder;
  TargetConfig config = SmallTarget();
  config.vocab_size = kByteTokens;
  ASSERT_TRUE(MakeRandomTarget(config, folder / "t").ok());
  auto file = Open(folder / "t");
  ASSERT_TRUE(file->tokenizer().has_value());
  EXPECT_TRUE(file->chat().has_value());
  const auto tokenizer = MakeBpeTokenizer(*file->tokenizer());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids =
      (*tokenizer)->Encode("a\xC3\xA9<|im_end|>", Tokenizer::Special::kAsToken);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre('a', 0xC3, 0xA9, kByteTurnEnd));

  config.vocab_size = kByteTokens - 1;
  ASSERT_TRUE(MakeRandomTarget(config, folder / "t").ok());
  EXPECT_FALSE(Open(folder / "t")->tokenizer().has_value());
  config.vocab_size = kByteTokens;
  RandomModelOptions options;
  options.byte_tokenizer = false;
  options.stop_tokens = {5};
  ASSERT_TRUE(MakeRandomTarget(config, folder / "t", options).ok());
  file = Open(folder / "t");
  EXPECT_FALSE(file->tokenizer().has_value());
  EXPECT_THAT(file->stop_tokens(), ElementsAre(5));
}

TEST(MakeRandomTest, ModelsOfTheBuildAreSound) {
  const std::pair<const char*, std::vector<const char*>> models[] = {
      {"t", {"t_draft", "t_draft_causal", "t_draft_symmetric"}},
      {"odd", {"odd_draft"}},
      {"wide", {"wide_draft"}},
      {"tiny-qwen35",
       {"tiny-qwen35-dflash", "tiny-qwen35-dflash-swa",
        "tiny-qwen35-dflash-trained"}},
      {"tiny-qwen35-untied", {}}};
  for (const auto& [target_name, drafts] : models) {
    const auto target = Open(std::string(kModels) + target_name + ".gdn");
    ASSERT_NE(target, nullptr) << target_name;
    for (const char* const draft_name : drafts) {
      const auto draft = Open(std::string(kModels) + draft_name + ".gdn");
      ASSERT_NE(draft, nullptr) << draft_name;
      EXPECT_TRUE(CheckPair(*target, *draft).ok()) << draft_name;
    }
  }
}

TEST(MakeRandomTest, MasksAreAsTheirConfigsSay) {
  const auto mask = [](const std::string& name) {
    return Open(kModels + name + ".gdn")->draft_config().sliding_mask;
  };
  EXPECT_EQ(mask("t_draft_causal"), SlidingMask::kCausal);
  EXPECT_EQ(mask("t_draft_symmetric"), SlidingMask::kSymmetric);
}

}  // namespace
}  // namespace deltaedge
