// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/hub_folder.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/convert.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/tensor_map.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

TargetConfig Dense() {
  TargetConfig config;
  config.name = "small";
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.max_context = 512;
  config.rms_norm_eps = 1e-6f;
  config.tied_head = true;
  config.gdn = {2, 6, 16, 24, 4};
  config.attention = {4, 2, 16, 8, 1e4};
  config.layers = {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention};
  return config;
}

TargetConfig Moe() {
  TargetConfig config = Dense();
  config.intermediate_size = 0;
  config.tied_head = false;
  config.moe = {4, 2, 40, 56, true, {true, true}};
  return config;
}

// Of Qwen3-Next's kind: a dense layer among others, weights as they come.
TargetConfig Next() {
  TargetConfig config = Moe();
  config.intermediate_size = 96;
  config.moe.normalise = false;
  config.moe.layers = {false, true};
  return config;
}

DraftConfig Draft() {
  DraftConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.block_size = 4;
  config.mask_token = 299;
  config.rms_norm_eps = 1e-5f;
  config.attention = {4, 2, 16, 8, 1e4};
  config.sliding_mask = SlidingMask::kSymmetric;
  config.layers = {{0}, {8}};
  config.target_layers = {0, 1};
  config.target_layer_count = 2;
  return config;
}

std::unique_ptr<ModelFile> Open(const std::string& path) {
  auto file = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

std::unique_ptr<ModelFile> Converted(const std::string& folder,
                                     const std::string& output,
                                     const std::string& target = "") {
  ConvertOptions options;
  options.input = folder;
  options.output = output;
  options.target = target;
  const auto summary = ConvertCheckpoint(options);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return Open(output);
}

void ExpectSameModel(const ModelFile& a, const ModelFile& b) {
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    EXPECT_EQ(a.tensors()[i].name, b.tensors()[i].name);
    EXPECT_EQ(a.tensors()[i].shape, b.tensors()[i].shape);
    EXPECT_EQ(a.tensors()[i].checksum, b.tensors()[i].checksum)
        << a.tensors()[i].name;
  }
}

struct Case {
  const char* name;
  TargetConfig config;
  HubLayout layout;
};

// The fingerprint takes in config and tokenizer too.
TEST(HubFolderTest, ConvertsToTheModelFileOfTheSameNumbers) {
  const Case kCases[] = {{"dense", Dense(), HubLayout::kQwen35},
                         {"moe", Moe(), HubLayout::kQwen35},
                         {"next", Next(), HubLayout::kQwen3Next},
                         {"next, all experts", Moe(), HubLayout::kQwen3Next},
                         {"next, dense", Dense(), HubLayout::kQwen3Next}};
  for (const Case& test : kCases) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(std::string(test.name) + (bf16 ? " bf16" : " f32"));
      const TempFolder temp;
      RandomModelOptions options;
      options.numbers = {7, bf16};
      HubFolderOptions hub;
      hub.layout = test.layout;
      hub.max_shard_bytes = 100000;
      ASSERT_TRUE(MakeRandomTarget(test.config, temp / "m.gdn", options).ok());
      const absl::Status made =
          MakeRandomTargetFolder(test.config, temp / "hub", options, hub);
      ASSERT_TRUE(made.ok()) << made;
      const auto converted = Converted(temp / "hub", temp / "c.gdn");
      const auto direct = Open(temp / "m.gdn");
      ExpectSameModel(*converted, *direct);
      ASSERT_TRUE(converted->chat().has_value());
      EXPECT_EQ(converted->chat()->reply_open_on,
                direct->chat()->reply_open_on);
      EXPECT_THAT(converted->stop_tokens(),
                  ElementsAre(kByteTurnEnd, kByteEndOfText));

      const auto tensors = Safetensors::OpenFolder(temp / "hub");
      ASSERT_TRUE(tensors.ok()) << tensors.status();
      EXPECT_GT(tensors->files().size(), 1u);
      for (const auto& [name, entry] : tensors->entries()) {
        const bool wide = !bf16 || name.find("A_log") != std::string::npos ||
                          name.find("linear_attn.norm") != std::string::npos;
        EXPECT_EQ(entry.dtype, wide ? "F32" : "BF16") << name;
        EXPECT_EQ(entry.offset % (wide ? 4 : 2), 0) << name;
      }
    }
  }
}

TEST(HubFolderTest, Bfloat16IsAnotherModel) {
  const TempFolder temp;
  RandomModelOptions options;
  ASSERT_TRUE(MakeRandomTarget(Dense(), temp / "f.gdn", options).ok());
  options.numbers.bf16 = true;
  ASSERT_TRUE(MakeRandomTarget(Dense(), temp / "b.gdn", options).ok());
  EXPECT_NE(Open(temp / "f.gdn")->fingerprint(),
            Open(temp / "b.gdn")->fingerprint());
}

TEST(HubFolderTest, DraftsConvertToTheModelFileOfTheSameNumbers) {
  for (const bool bf16 : {false, true}) {
    const TempFolder temp;
    RandomModelOptions options;
    options.numbers.bf16 = bf16;
    ASSERT_TRUE(MakeRandomTarget(Dense(), temp / "t.gdn", options).ok());
    ASSERT_TRUE(
        MakeRandomDraft(Draft(), temp / "t.gdn", temp / "d.gdn", options).ok());
    const absl::Status made =
        MakeRandomDraftFolder(Draft(), temp / "hub", options);
    ASSERT_TRUE(made.ok()) << made;
    EXPECT_TRUE(std::filesystem::exists(temp / "hub/model.safetensors"));
    ExpectSameModel(*Converted(temp / "hub", temp / "c.gdn", temp / "t.gdn"),
                    *Open(temp / "d.gdn"));
  }
}

TEST(HubFolderTest, ModelsWithoutTokenizerHaveOnlyTheirEndTokens) {
  const TempFolder temp;
  RandomModelOptions options;
  options.byte_tokenizer = false;
  options.stop_tokens = {5, 6};
  ASSERT_TRUE(MakeRandomTargetFolder(Dense(), temp / "hub", options).ok());
  const auto file = Converted(temp / "hub", temp / "c.gdn");
  EXPECT_FALSE(file->tokenizer().has_value());
  EXPECT_THAT(file->stop_tokens(), ElementsAre(5, 6));
}

TEST(HubFolderTest, RefusalsLeaveNothingBehind) {
  const TempFolder temp;
  const auto error = [&](const TargetConfig& config,
                         const RandomModelOptions& options = {}) {
    const absl::Status status =
        MakeRandomTargetFolder(config, temp / "hub", options);
    EXPECT_EQ(temp.FileCount(), 0u);
    return std::string(status.message());
  };
  TargetConfig unsound = Dense();
  unsound.vocab_size = 0;
  EXPECT_THAT(error(unsound), HasSubstr("vocab_size is 0"));
  EXPECT_THAT(error(Next()), HasSubstr("only the layout of Qwen3-Next"));
  RandomModelOptions quantised;
  quantised.recipe.weights = WeightType::kQ8;
  EXPECT_THAT(error(Dense(), quantised), HasSubstr("f32 or bf16"));
  const std::atomic<bool> stop{true};
  RandomModelOptions stopped;
  stopped.stop = &stop;
  EXPECT_THAT(error(Dense(), stopped),
              ::testing::StartsWith(temp / "hub: stopped at tensor"));

  DraftConfig windows = Draft();
  windows.layers = {{4}, {8}};
  EXPECT_THAT(MakeRandomDraftFolder(windows, temp / "hub").message(),
              HasSubstr("windows of 4 and of 8"));
  ASSERT_TRUE(MakeRandomTargetFolder(Dense(), temp / "hub").ok());
  EXPECT_THAT(MakeRandomTargetFolder(Dense(), temp / "hub").message(),
              HasSubstr("is there already"));
  EXPECT_EQ(MakeRandomTargetFolder(Dense(), temp / "none/hub").code(),
            absl::StatusCode::kNotFound);
  std::filesystem::create_symlink("nowhere", temp / "link");
  EXPECT_THAT(MakeRandomTargetFolder(Dense(), temp / "link").message(),
              HasSubstr("is there already"));
}

TEST(HubFolderTest, ANameMayEndInSlashes) {
  const TempFolder temp;
  ASSERT_TRUE(MakeRandomTargetFolder(Dense(), temp / "hub//").ok());
  EXPECT_TRUE(std::filesystem::exists(temp / "hub/config.json"));
  EXPECT_EQ(temp.FileCount(), 1u);
}

}  // namespace
}  // namespace deltaedge
