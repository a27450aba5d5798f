// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/convert.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/random.h"
#include "tests/tools/convert/safetensors_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Random;
using testing::ReadBytes;
using testing::SafetensorsWriter;
using testing::TempFolder;

std::string Golden(absl::string_view model) {
  return absl::StrCat("tests/testdata/golden/", model);
}

absl::StatusOr<ConvertSummary> Convert(const std::string& input,
                                       const std::string& output,
                                       const std::string& target = "") {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  options.target = target;
  options.name = "test";
  return ConvertCheckpoint(options);
}

std::unique_ptr<ModelFile> Open(const std::string& path) {
  auto file = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

// A checkpoint in memory, to be changed and written.
struct Checkpoint {
  Json config;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int64_t>> shapes;

  static Checkpoint Read(const std::string& folder) {
    Checkpoint checkpoint;
    checkpoint.config = Json::parse(ReadBytes(folder + "/config.json"));
    const auto file = Safetensors::OpenFolder(folder);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const auto& [name, entry] : file->entries()) {
      checkpoint.values[name] = *file->ReadFloats(name);
      checkpoint.shapes[name] = entry.shape;
    }
    return checkpoint;
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape,
           std::vector<float> tensor) {
    shapes[name] = shape;
    values[name] = std::move(tensor);
  }
  void Remove(const std::string& name) {
    ASSERT_EQ(shapes.erase(name), 1u) << name;
    values.erase(name);
  }
  void Rename(const std::string& from, const std::string& to) {
    for (auto it = shapes.begin(); it != shapes.end();) {
      const std::string name = it->first;
      const std::vector<int64_t> shape = it->second;
      ++it;
      if (!absl::StartsWith(name, from)) continue;
      std::vector<float> tensor = values[name];
      Remove(name);
      Add(to + name.substr(from.size()), shape, std::move(tensor));
    }
  }

  void Write(const TempFolder& folder) const {
    SafetensorsWriter writer;
    for (const auto& [name, shape] : shapes) {
      writer.AddFloats(name, shape, values.at(name));
    }
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", writer.Bytes());
  }
};

// The error of converting `checkpoint`, or "" if there is none.
std::string ErrorOf(const Checkpoint& checkpoint,
                    const std::string& target = "") {
  const TempFolder folder;
  checkpoint.Write(folder);
  const auto summary = Convert(folder.path(), folder / "out.gdn", target);
  EXPECT_EQ(std::filesystem::exists(folder / "out.gdn"), summary.ok());
  EXPECT_EQ(folder.FileCount(), summary.ok() ? 3u : 2u);
  return std::string(summary.status().message());
}

TEST(ConvertTest, BothLayoutsGiveTheSameFile) {
  const TempFolder folder;
  const std::pair<const char*, const char*> pairs[] = {
      {"tiny-qwen35", "tiny-qwen35-published"},
      {"tiny-qwen35-untied", "tiny-qwen35-untied-published"},
      {"tiny-qwen35moe", "tiny-qwen35moe-published"}};
  for (const auto& [plain, published] : pairs) {
    const auto a = Convert(Golden(plain), folder / "a.gdn");
    const auto b = Convert(Golden(published), folder / "b.gdn");
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_TRUE(ReadBytes(folder / "a.gdn") == ReadBytes(folder / "b.gdn"));
    EXPECT_EQ(a->fingerprint, b->fingerprint);
    EXPECT_EQ(a->skipped.size(), 0u);
    ASSERT_EQ(b->skipped.size(), 2u);
    EXPECT_EQ(b->skipped[0].what, "vision");
    EXPECT_EQ(b->skipped[1].what, "multi-token prediction");
    EXPECT_EQ(
        a->tensors + b->skipped[0].tensors + b->skipped[1].tensors,
        static_cast<int64_t>(
            Safetensors::OpenFolder(Golden(published))->entries().size()));
    EXPECT_LT(b->source_bytes, a->source_bytes);
  }
}

TEST(ConvertTest, SummaryCounts) {
  const TempFolder folder;
  const auto summary = Convert(Golden("tiny-qwen35"), folder / "a.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->kind, ModelKind::kTarget);
  EXPECT_EQ(summary->tensors, 6 * 14 + 2 * 11 + 2);
  EXPECT_EQ(summary->parameters * 4, summary->source_bytes);
  EXPECT_EQ(summary->file_bytes,
            static_cast<int64_t>(std::filesystem::file_size(folder / "a.gdn")));
  const auto file = Open(folder / "a.gdn");
  EXPECT_EQ(file->weight_bytes(), summary->parameters * 4);
  EXPECT_EQ(file->fingerprint(), summary->fingerprint);
  EXPECT_EQ(file->target_config().name, "test");
  EXPECT_THAT(file->stop_tokens(), ElementsAre(1));
  EXPECT_FALSE(file->tokenizer().has_value());
  ASSERT_EQ(summary->notes.size(), 1u);
  EXPECT_THAT(summary->notes[0], HasSubstr("no tokenizer.json"));
}

// Every value of the model file, from the checkpoint by the rules of the
// formats, each norm's "+1" once and where it belongs (case S14).
TEST(ConvertTest, StoresWhatTheCheckpointMeans) {
  const TempFolder folder;
  const Checkpoint source = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  ASSERT_TRUE(Convert(Golden("tiny-qwen35-untied"), folder / "a.gdn").ok());
  const auto file = Open(folder / "a.gdn");
  const TargetConfig& config = file->target_config();
  const TargetWeights& weights = file->target_weights();

  const auto expect = [&](const float* ours, const std::string& name,
                          const std::function<float(float)>& change) {
    ASSERT_NE(ours, nullptr) << name;
    const std::vector<float>& theirs = source.values.at(name);
    for (size_t i = 0; i < theirs.size(); ++i) {
      ASSERT_EQ(ours[i], change(theirs[i])) << name << " " << i;
    }
  };
  const auto same = [](float w) { return w; };
  const auto plus_one = [](float w) { return 1.0f + w; };
  const auto neg_exp = [](float w) {
    return static_cast<float>(-std::exp(static_cast<double>(w)));
  };
  expect(weights.embedding.f32(), "model.embed_tokens.weight", same);
  expect(weights.head.f32(), "lm_head.weight", same);
  expect(weights.final_norm, "model.norm.weight", plus_one);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const TargetLayerWeights& layer = weights.layers[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    expect(layer.input_norm, prefix + "input_layernorm.weight", plus_one);
    expect(layer.post_norm, prefix + "post_attention_layernorm.weight",
           plus_one);
    expect(layer.mlp.gate.f32(), prefix + "mlp.gate_proj.weight", same);
    expect(layer.mlp.up.f32(), prefix + "mlp.up_proj.weight", same);
    expect(layer.mlp.down.f32(), prefix + "mlp.down_proj.weight", same);
    if (config.layers[i] == LayerKind::kFullAttention) {
      const std::string mixer = prefix + "self_attn.";
      expect(layer.attention.q.f32(), mixer + "q_proj.weight", same);
      expect(layer.attention.k.f32(), mixer + "k_proj.weight", same);
      expect(layer.attention.v.f32(), mixer + "v_proj.weight", same);
      expect(layer.attention.out.f32(), mixer + "o_proj.weight", same);
      expect(layer.attention.q_norm, mixer + "q_norm.weight", plus_one);
      expect(layer.attention.k_norm, mixer + "k_norm.weight", plus_one);
      continue;
    }
    const std::string mixer = prefix + "linear_attn.";
    expect(layer.gdn.in_qkv.f32(), mixer + "in_proj_qkv.weight", same);
    expect(layer.gdn.in_z.f32(), mixer + "in_proj_z.weight", same);
    expect(layer.gdn.in_b.f32(), mixer + "in_proj_b.weight", same);
    expect(layer.gdn.in_a.f32(), mixer + "in_proj_a.weight", same);
    expect(layer.gdn.out.f32(), mixer + "out_proj.weight", same);
    expect(layer.gdn.norm, mixer + "norm.weight", same);
    expect(layer.gdn.dt_bias, mixer + "dt_bias", same);
    expect(layer.gdn.neg_exp_a, mixer + "A_log", neg_exp);
    const std::vector<float>& taps = source.values.at(mixer + "conv1d.weight");
    const int channels = config.gdn.conv_channels();
    for (int channel = 0; channel < channels; ++channel) {
      for (int tap = 0; tap < 4; ++tap) {
        ASSERT_EQ(layer.gdn.conv[tap * channels + channel],
                  taps[channel * 4 + tap]);
      }
    }
  }
}

// Of a Qwen3-Next layer, by hand: two key heads of two components, each with
// two value heads of one component.
TEST(ConvertTest, InterleavedProjectionsAreRegrouped) {
  Checkpoint next = Checkpoint::Read(Golden("tiny-qwen3next-dense"));
  next.config["linear_num_key_heads"] = 2;
  next.config["linear_num_value_heads"] = 4;
  next.config["linear_key_head_dim"] = 2;
  next.config["linear_value_head_dim"] = 1;
  // Row r holds r everywhere. Of a key head: q q k k v v z z; b b a a.
  const auto rows = [](int count) {
    std::vector<float> values(count * 64);
    for (int i = 0; i < count * 64; ++i) values[i] = static_cast<float>(i / 64);
    return values;
  };
  for (const int layer : {0, 1, 2}) {
    const std::string mixer =
        absl::StrCat("model.layers.", layer, ".linear_attn.");
    next.Add(mixer + "in_proj_qkvz.weight", {16, 64}, rows(16));
    next.Add(mixer + "in_proj_ba.weight", {8, 64}, rows(8));
    next.Add(mixer + "conv1d.weight", {12, 1, 4}, std::vector<float>(48));
    next.Add(mixer + "norm.weight", {1}, {1});
    next.Add(mixer + "out_proj.weight", {64, 4}, std::vector<float>(256));
  }
  const TempFolder folder;
  next.Write(folder);
  const auto summary = Convert(folder.path(), folder / "a.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto file = Open(folder / "a.gdn");
  const GdnWeights& gdn = file->target_weights().layers[0].gdn;
  const auto order = [](const MatrixView& matrix) {
    std::vector<int> rows;
    for (int i = 0; i < matrix.rows; ++i) {
      rows.push_back(static_cast<int>(matrix.f32()[i * matrix.cols + 5]));
    }
    return rows;
  };
  EXPECT_THAT(order(gdn.in_qkv),
              ElementsAre(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13));
  EXPECT_THAT(order(gdn.in_z), ElementsAre(6, 7, 14, 15));
  EXPECT_THAT(order(gdn.in_b), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(order(gdn.in_a), ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(summary->parameters * 4, summary->source_bytes);
  EXPECT_EQ(summary->parameters * 4, file->weight_bytes());
}

TEST(ConvertTest, StoresExpertsAsTheyAre) {
  const TempFolder folder;
  const Checkpoint source = Checkpoint::Read(Golden("tiny-qwen3next-moe"));
  ASSERT_TRUE(Convert(Golden("tiny-qwen3next-moe"), folder / "a.gdn").ok());
  const auto file = Open(folder / "a.gdn");
  const TargetWeights& weights = file->target_weights();
  EXPECT_EQ(weights.layers[1].moe.router.data, nullptr);
  EXPECT_NE(weights.layers[1].mlp.gate.data, nullptr);
  for (const int layer : {0, 2, 3}) {
    const MoeWeights& moe = weights.layers[layer].moe;
    const std::string mlp = absl::StrCat("model.layers.", layer, ".mlp.");
    const auto expect = [&](const float* ours, const std::string& name) {
      const std::vector<float>& theirs = source.values.at(mlp + name);
      EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), ours)) << name;
    };
    expect(moe.router.f32(), "gate.weight");
    expect(moe.shared_router.f32(), "shared_expert_gate.weight");
    expect(moe.shared.gate.f32(), "shared_expert.gate_proj.weight");
    expect(moe.shared.up.f32(), "shared_expert.up_proj.weight");
    expect(moe.shared.down.f32(), "shared_expert.down_proj.weight");
    for (int e = 0; e < 8; ++e) {
      const std::string expert = absl::StrCat("experts.", e, ".");
      expect(moe.gate_up.f32() + e * 2 * 32 * 64, expert + "gate_proj.weight");
      expect(moe.gate_up.f32() + (e * 2 + 1) * 32 * 64,
             expert + "up_proj.weight");
      expect(moe.down.f32() + e * 64 * 32, expert + "down_proj.weight");
    }
  }
}

TEST(ConvertTest, StoresDraftsAsTheyAre) {
  const TempFolder folder;
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), folder / "t.gdn").ok());
  for (const char* const name : {"tiny-qwen35-dflash", "tiny-qwen35-dflash-swa",
                                 "tiny-qwen35-dflash-trained"}) {
    SCOPED_TRACE(name);
    const Checkpoint source = Checkpoint::Read(Golden(name));
    const auto summary =
        Convert(Golden(name), folder / "d.gdn", folder / "t.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->kind, ModelKind::kDraft);
    EXPECT_EQ(summary->tensors, 11 * 2 + 3);
    const auto target = Open(folder / "t.gdn");
    const auto draft = Open(folder / "d.gdn");
    EXPECT_EQ(draft->target_fingerprint(), target->fingerprint());
    EXPECT_TRUE(CheckPair(*target, *draft).ok());
    const DraftWeights& weights = draft->draft_weights();
    const auto expect = [&](const float* ours, const std::string& theirs) {
      const std::vector<float>& values = source.values.at(theirs);
      EXPECT_EQ(std::vector<float>(ours, ours + values.size()), values)
          << theirs;
    };
    expect(weights.fc.f32(), "fc.weight");
    expect(weights.hidden_norm, "hidden_norm.weight");
    expect(weights.final_norm, "norm.weight");
    for (int i = 0; i < 2; ++i) {
      const DraftLayerWeights& layer = weights.layers[i];
      const std::string prefix = absl::StrCat("layers.", i, ".");
      expect(layer.input_norm, prefix + "input_layernorm.weight");
      expect(layer.post_norm, prefix + "post_attention_layernorm.weight");
      expect(layer.attention.q.f32(), prefix + "self_attn.q_proj.weight");
      expect(layer.attention.k.f32(), prefix + "self_attn.k_proj.weight");
      expect(layer.attention.v.f32(), prefix + "self_attn.v_proj.weight");
      expect(layer.attention.out.f32(), prefix + "self_attn.o_proj.weight");
      expect(layer.attention.q_norm, prefix + "self_attn.q_norm.weight");
      expect(layer.attention.k_norm, prefix + "self_attn.k_norm.weight");
      expect(layer.mlp.gate.f32(), prefix + "mlp.gate_proj.weight");
      expect(layer.mlp.up.f32(), prefix + "mlp.up_proj.weight");
      expect(layer.mlp.down.f32(), prefix + "mlp.down_proj.weight");
    }
  }
}

absl::StatusOr<ConvertSummary> ConvertAs(const WeightRecipe& recipe,
                                         const std::string& input,
                                         const std::string& output,
                                         const std::string& target = "") {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  options.target = target;
  options.name = "test";
  options.recipe = recipe;
  return ConvertCheckpoint(options);
}

// The matrix as floats.
std::vector<float> Numbers(const MatrixView& matrix) {
  std::vector<float> numbers(int64_t{matrix.rows} * matrix.cols);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    DequantiseRow(matrix, row, numbers.data() + row * matrix.cols);
  }
  return numbers;
}

// Root of the mean square of the difference, relative to that of `exact`.
double RelativeError(const std::vector<float>& ours,
                     const std::vector<float>& exact) {
  EXPECT_EQ(ours.size(), exact.size());
  double error = 0, square = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(ours[i]) - exact[i];
    error += difference * difference;
    square += static_cast<double>(exact[i]) * exact[i];
  }
  return std::sqrt(error / square);
}

// Every tensor of the file against that of a file of floats: float tensors the
// same, others of the type that the recipe gives them and near.
void ExpectNear(const ModelFile& quantised, const ModelFile& floats,
                const WeightRecipe& recipe) {
  ASSERT_EQ(quantised.kind(), floats.kind());
  EXPECT_EQ(quantised.fingerprint(), floats.fingerprint());
  TargetWeights target = quantised.target_weights();
  TargetWeights exact_target = floats.target_weights();
  DraftWeights draft = quantised.draft_weights();
  DraftWeights exact_draft = floats.draft_weights();
  const bool is_target = quantised.kind() == ModelKind::kTarget;
  const auto slots = is_target ? TensorSlots(floats.target_config(), &target)
                               : TensorSlots(floats.draft_config(), &draft);
  const auto exact_slots =
      is_target ? TensorSlots(floats.target_config(), &exact_target)
                : TensorSlots(floats.draft_config(), &exact_draft);
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSlot& slot = slots[i];
    if (slot.vector != nullptr) {
      int64_t size = 1;
      for (const int32_t extent : slot.shape) size *= extent;
      EXPECT_TRUE(
          std::equal(*slot.vector, *slot.vector + size, *exact_slots[i].vector))
          << slot.name;
      continue;
    }
    const WeightType type =
        TypeFor(recipe, {slot.name, WeightType::kF32, slot.shape, slot.role});
    EXPECT_EQ(slot.matrix->type, type) << slot.name;
    const double error =
        RelativeError(Numbers(*slot.matrix), Numbers(*exact_slots[i].matrix));
    switch (type) {
      case WeightType::kF32:
        EXPECT_EQ(error, 0) << slot.name;
        break;
      case WeightType::kQ4:
        EXPECT_GT(error, 0.04) << slot.name;
        EXPECT_LT(error, 0.1) << slot.name;
        break;
      default:
        EXPECT_GT(error, 0.001) << slot.name;
        EXPECT_LT(error, 0.012) << slot.name;
    }
  }
}

TEST(ConvertTest, QuantisedMatricesAreNearTheSource) {
  const TempFolder folder;
  const std::string input = Golden("tiny-qwen35-untied");
  ASSERT_TRUE(Convert(input, folder / "f32.gdn").ok());
  const auto floats = Open(folder / "f32.gdn");
  const WeightRecipe recipes[] = {
      {WeightType::kQ8, {}, {}},
      {WeightType::kQ4, {}, {}},
      {WeightType::kQ8W, {}, {}},
      {WeightType::kQ4, WeightType::kQ8, WeightType::kQ8W},
      {WeightType::kF32, WeightType::kQ4, {}},
      {WeightType::kQ4, {}, WeightType::kF32},
  };
  for (const WeightRecipe& recipe : recipes) {
    const auto summary = ConvertAs(recipe, input, folder / "a.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->fingerprint, floats->fingerprint());
    const auto file = Open(folder / "a.gdn");
    ExpectNear(*file, *floats, recipe);
    int64_t bytes = 0, tensors = 0;
    for (const StoredWeights& stored : summary->stored) {
      bytes += stored.bytes;
      tensors += stored.tensors;
    }
    EXPECT_EQ(bytes, file->weight_bytes());
    EXPECT_EQ(tensors, summary->tensors);
  }
}

// One draft fits a target of any type, and may be of any type itself.
TEST(ConvertTest, QuantisedPairsFit) {
  const TempFolder folder;
  const std::string draft = Golden("tiny-qwen35-dflash");
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), folder / "f32.gdn").ok());
  ASSERT_TRUE(Convert(draft, folder / "d32.gdn", folder / "f32.gdn").ok());
  const auto exact = Open(folder / "d32.gdn");
  for (const WeightType type :
       {WeightType::kQ8, WeightType::kQ4, WeightType::kQ8W}) {
    WeightRecipe recipe;
    recipe.weights = type;
    ASSERT_TRUE(
        ConvertAs(recipe, Golden("tiny-qwen35"), folder / "t.gdn").ok());
    const auto target = Open(folder / "t.gdn");
    EXPECT_TRUE(CheckPair(*target, *exact).ok());
    const auto summary =
        ConvertAs(recipe, draft, folder / "d.gdn", folder / "t.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    const auto quantised = Open(folder / "d.gdn");
    ExpectNear(*quantised, *exact, recipe);
    EXPECT_TRUE(CheckPair(*target, *quantised).ok());
    EXPECT_TRUE(CheckPair(*Open(folder / "f32.gdn"), *quantised).ok());
    recipe.head = type;
    EXPECT_THAT(ConvertAs(recipe, draft, folder / "no.gdn", folder / "t.gdn")
                    .status()
                    .message(),
                HasSubstr("neither a head"));
  }
}

// Case S6: what decides how far a state reaches back is never rounded.
TEST(ConvertTest, GatesStayWideWhateverTheTypeOfWeights) {
  const TempFolder folder;
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ4;
  for (const char* const model : {"tiny-qwen35-untied", "tiny-qwen3next-moe"}) {
    ASSERT_TRUE(Convert(Golden(model), folder / "f32.gdn").ok());
    ASSERT_TRUE(ConvertAs(recipe, Golden(model), folder / "q4.gdn").ok());
    const auto floats = Open(folder / "f32.gdn");
    const auto narrow = Open(folder / "q4.gdn");
    const TargetLayerWeights& layer = narrow->target_weights().layers[0];
    const GdnWeights& exact = floats->target_weights().layers[0].gdn;
    EXPECT_EQ(layer.gdn.in_qkv.type, WeightType::kQ4);
    for (const auto& [ours, theirs] : {std::pair(layer.gdn.in_a, exact.in_a),
                                       std::pair(layer.gdn.in_b, exact.in_b)}) {
      EXPECT_EQ(ours.type, WeightType::kF32);
      EXPECT_EQ(Numbers(ours), Numbers(theirs));
    }
    const GdnConfig& gdn = floats->target_config().gdn;
    const auto same = [](const float* ours, const float* theirs, int count) {
      return std::equal(ours, ours + count, theirs);
    };
    EXPECT_TRUE(same(layer.gdn.conv, exact.conv, 4 * gdn.conv_channels()));
    EXPECT_TRUE(same(layer.gdn.neg_exp_a, exact.neg_exp_a, gdn.value_heads));
    EXPECT_TRUE(same(layer.gdn.dt_bias, exact.dt_bias, gdn.value_heads));
  }
  const auto sparse = Open(folder / "q4.gdn");
  const MoeWeights& moe = sparse->target_weights().layers[0].moe;
  EXPECT_EQ(moe.gate_up.type, WeightType::kQ4);
  EXPECT_EQ(moe.router.type, WeightType::kF32);
  EXPECT_EQ(moe.shared_router.type, WeightType::kF32);
}

TEST(ConvertTest, ColumnsThatQ4CannotHaveAreQ8AndItSaysSo) {
  Checkpoint source = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  source.config["intermediate_size"] = 190;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string mlp = absl::StrCat("model.layers.", layer, ".mlp.");
    for (const char* const name : {"gate_proj.weight", "up_proj.weight"}) {
      source.values[mlp + name].resize(190 * 64);
      source.shapes[mlp + name] = {190, 64};
    }
    source.values[mlp + "down_proj.weight"].resize(64 * 190);
    source.shapes[mlp + "down_proj.weight"] = {64, 190};
  }
  const TempFolder folder;
  source.Write(folder);
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ4;
  const auto summary = ConvertAs(recipe, folder.path(), folder / "a.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(summary->notes,
              Contains(HasSubstr("4 matrices are q8 instead of q4")));
  const auto file = Open(folder / "a.gdn");
  for (const TargetLayerWeights& layer : file->target_weights().layers) {
    EXPECT_EQ(layer.mlp.gate.type, WeightType::kQ4);
    EXPECT_EQ(layer.mlp.down.type, WeightType::kQ8);
  }
}

// One by one as Qwen3-Next has them, or stacked as Qwen3.5 does: the same file.
TEST(ConvertTest, ExpertsInEitherLayoutGiveTheSameFile) {
  const TempFolder folder, singly;
  Checkpoint checkpoint = Checkpoint::Read(Golden("tiny-qwen35moe"));
  for (int layer = 0; layer < 4; ++layer) {
    const std::string experts =
        absl::StrCat("model.layers.", layer, ".mlp.experts.");
    const std::vector<float> gate_up =
        checkpoint.values.at(experts + "gate_up_proj");
    const std::vector<float> down = checkpoint.values.at(experts + "down_proj");
    for (int e = 0; e < 8; ++e) {
      const auto part = [&](const std::vector<float>& all, int begin) {
        return std::vector<float>(all.begin() + begin,
                                  all.begin() + begin + 32 * 64);
      };
      const std::string expert = absl::StrCat(experts, e, ".");
      checkpoint.Add(expert + "gate_proj.weight", {32, 64},
                     part(gate_up, e * 2 * 32 * 64));
      checkpoint.Add(expert + "up_proj.weight", {32, 64},
                     part(gate_up, (e * 2 + 1) * 32 * 64));
      checkpoint.Add(expert + "down_proj.weight", {64, 32},
                     part(down, e * 64 * 32));
    }
    checkpoint.Remove(experts + "gate_up_proj");
    checkpoint.Remove(experts + "down_proj");
  }
  checkpoint.Write(singly);
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ8;
  recipe.experts = WeightType::kQ4;
  const auto a = ConvertAs(recipe, Golden("tiny-qwen35moe"), folder / "a.gdn");
  const auto b = ConvertAs(recipe, singly.path(), folder / "b.gdn");
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_TRUE(ReadBytes(folder / "a.gdn") == ReadBytes(folder / "b.gdn"));
  EXPECT_EQ(a->parameters, b->parameters);
  EXPECT_EQ(a->source_bytes, b->source_bytes);
  const auto file = Open(folder / "a.gdn");
  const MoeWeights& moe = file->target_weights().layers[0].moe;
  EXPECT_EQ(moe.gate_up.type, WeightType::kQ4);
  EXPECT_EQ(moe.down.type, WeightType::kQ4);
  EXPECT_EQ(moe.shared.up.type, WeightType::kQ8);
  EXPECT_EQ(moe.router.type, WeightType::kF32);
}

// A Qwen3-Next of random sizes, its projections apart and its experts stacked.
Checkpoint RandomMixture(Random* random) {
  const auto size = [&](int most) { return int64_t{random->Int(1, most)}; };
  const int64_t hidden = size(20), key_heads = size(3), key_dim = size(6),
                value_dim = size(6), values = key_heads * size(4),
                kv_heads = size(2), query_heads = kv_heads * size(3),
                head_dim = 4 * size(4), experts = size(5),
                expert_size = size(7), shared_size = size(7), inner = size(9),
                vocab = size(30);
  const int64_t channels = 2 * key_heads * key_dim + values * value_dim;
  Checkpoint next;
  next.config = {{"architectures", {"Qwen3NextForCausalLM"}},
                 {"model_type", "qwen3_next"},
                 {"vocab_size", vocab},
                 {"hidden_size", hidden},
                 {"intermediate_size", inner},
                 {"num_hidden_layers", 3},
                 {"layer_types",
                  {"linear_attention", "full_attention", "linear_attention"}},
                 {"max_position_embeddings", 64},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 1e7},
                 {"partial_rotary_factor", 0.5},
                 {"num_attention_heads", query_heads},
                 {"num_key_value_heads", kv_heads},
                 {"head_dim", head_dim},
                 {"linear_num_key_heads", key_heads},
                 {"linear_num_value_heads", values},
                 {"linear_key_head_dim", key_dim},
                 {"linear_value_head_dim", value_dim},
                 {"linear_conv_kernel_dim", 4},
                 {"num_experts", experts},
                 {"num_experts_per_tok", 1},
                 {"moe_intermediate_size", expert_size},
                 {"shared_expert_intermediate_size", shared_size},
                 {"mlp_only_layers", {2}},
                 {"norm_topk_prob", false},
                 {"tie_word_embeddings", false}};
  const auto add = [&](const std::string& name,
                       const std::vector<int64_t>& shape) {
    size_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    next.Add(name, shape, random->Gaussians(elements));
  };
  add("model.embed_tokens.weight", {vocab, hidden});
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {vocab, hidden});
  for (int i = 0; i < 3; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    if (i == 1) {
      add(layer + "self_attn.q_proj.weight",
          {2 * query_heads * head_dim, hidden});
      add(layer + "self_attn.k_proj.weight", {kv_heads * head_dim, hidden});
      add(layer + "self_attn.v_proj.weight", {kv_heads * head_dim, hidden});
      add(layer + "self_attn.o_proj.weight", {hidden, query_heads * head_dim});
      add(layer + "self_attn.q_norm.weight", {head_dim});
      add(layer + "self_attn.k_norm.weight", {head_dim});
    } else {
      const std::string mixer = layer + "linear_attn.";
      add(mixer + "in_proj_qkv.weight", {channels, hidden});
      add(mixer + "in_proj_z.weight", {values * value_dim, hidden});
      add(mixer + "in_proj_b.weight", {values, hidden});
      add(mixer + "in_proj_a.weight", {values, hidden});
      add(mixer + "conv1d.weight", {channels, 1, 4});
      add(mixer + "A_log", {values});
      add(mixer + "dt_bias", {values});
      add(mixer + "norm.weight", {value_dim});
      add(mixer + "out_proj.weight", {hidden, values * value_dim});
    }
    const std::string mlp = layer + "mlp.";
    const std::string dense = i == 2 ? mlp : mlp + "shared_expert.";
    const int64_t width = i == 2 ? inner : shared_size;
    add(dense + "gate_proj.weight", {width, hidden});
    add(dense + "up_proj.weight", {width, hidden});
    add(dense + "down_proj.weight", {hidden, width});
    if (i == 2) continue;
    add(mlp + "gate.weight", {experts, hidden});
    add(mlp + "shared_expert_gate.weight", {1, hidden});
    add(mlp + "experts.gate_up_proj", {experts, 2 * expert_size, hidden});
    add(mlp + "experts.down_proj", {experts, hidden, expert_size});
  }
  return next;
}

// Rows of tensors, as one.
std::vector<float> Rows(const std::vector<float>& all, int64_t width,
                        int64_t first, int64_t rows) {
  return std::vector<float>(all.begin() + first * width,
                            all.begin() + (first + rows) * width);
}

// Of layer `i`: all that belongs to a key head side by side.
void Interleave(int i, Checkpoint* next) {
  const std::string mixer = absl::StrCat("model.layers.", i, ".linear_attn.");
  const int64_t hidden = next->config["hidden_size"];
  const int64_t heads = next->config["linear_num_key_heads"];
  const int64_t key_dim = next->config["linear_key_head_dim"];
  const int64_t group =
      next->config["linear_num_value_heads"].get<int64_t>() / heads;
  const int64_t values =
      group * next->config["linear_value_head_dim"].get<int64_t>();
  std::vector<float> qkvz, ba;
  const auto append = [&](const char* name, int64_t first, int64_t rows,
                          std::vector<float>* to) {
    const std::vector<float> part =
        Rows(next->values.at(mixer + name), hidden, first, rows);
    to->insert(to->end(), part.begin(), part.end());
  };
  for (int64_t head = 0; head < heads; ++head) {
    append("in_proj_qkv.weight", head * key_dim, key_dim, &qkvz);
    append("in_proj_qkv.weight", (heads + head) * key_dim, key_dim, &qkvz);
    append("in_proj_qkv.weight", 2 * heads * key_dim + head * values, values,
           &qkvz);
    append("in_proj_z.weight", head * values, values, &qkvz);
    append("in_proj_b.weight", head * group, group, &ba);
    append("in_proj_a.weight", head * group, group, &ba);
  }
  for (const char* const name : {"qkv", "z", "b", "a"}) {
    next->Remove(absl::StrCat(mixer, "in_proj_", name, ".weight"));
  }
  const auto rows = [&](const std::vector<float>& all) {
    return static_cast<int64_t>(all.size()) / hidden;
  };
  next->Add(mixer + "in_proj_qkvz.weight", {rows(qkvz), hidden}, qkvz);
  next->Add(mixer + "in_proj_ba.weight", {rows(ba), hidden}, ba);
}

// Of layer `i`: every expert for itself.
void Unstack(int i, Checkpoint* next) {
  const std::string mlp = absl::StrCat("model.layers.", i, ".mlp.experts.");
  const int64_t hidden = next->config["hidden_size"];
  const int64_t size = next->config["moe_intermediate_size"];
  const int64_t experts = next->config["num_experts"];
  const std::vector<float> gate_up = next->values.at(mlp + "gate_up_proj");
  const std::vector<float> down = next->values.at(mlp + "down_proj");
  for (int64_t e = 0; e < experts; ++e) {
    const std::string expert = absl::StrCat(mlp, e, ".");
    next->Add(expert + "gate_proj.weight", {size, hidden},
              Rows(gate_up, hidden, 2 * e * size, size));
    next->Add(expert + "up_proj.weight", {size, hidden},
              Rows(gate_up, hidden, (2 * e + 1) * size, size));
    next->Add(expert + "down_proj.weight", {hidden, size},
              Rows(down, size, e * hidden, hidden));
  }
  next->Remove(mlp + "gate_up_proj");
  next->Remove(mlp + "down_proj");
}

TEST(ConvertTest, EveryLayoutOfAnyShapeGivesTheSameFile) {
  const TempFolder apart, together, out;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Checkpoint next = RandomMixture(&random);
    next.Write(apart);
    Interleave(0, &next);
    Interleave(2, &next);
    Unstack(0, &next);
    Unstack(1, &next);
    next.Write(together);
    const auto a = Convert(apart.path(), out / "a.gdn");
    const auto b = Convert(together.path(), out / "b.gdn");
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    ASSERT_TRUE(ReadBytes(out / "a.gdn") == ReadBytes(out / "b.gdn"));
  }
}

TEST(ConvertTest, DraftOfEitherGenerationGivesTheSameFile) {
  const TempFolder folder;
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), folder / "t.gdn").ok());
  Checkpoint draft = Checkpoint::Read(Golden("tiny-qwen35-dflash"));
  const TempFolder first;
  draft.Write(first);
  draft.config["dflash_config"]["block_size"] = draft.config["block_size"];
  draft.config["rope_parameters"] = {{"rope_type", "default"},
                                     {"rope_theta", 1e7}};
  for (const char* const key :
       {"block_size", "rope_theta", "rope_scaling", "num_target_layers"}) {
    draft.config.erase(key);
  }
  const TempFolder second;
  draft.Write(second);
  ASSERT_TRUE(Convert(first.path(), folder / "1.gdn", folder / "t.gdn").ok());
  const auto summary =
      Convert(second.path(), folder / "2.gdn", folder / "t.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(ReadBytes(folder / "1.gdn") == ReadBytes(folder / "2.gdn"));
}

TEST(ConvertTest, FindsAnyPrefix) {
  const TempFolder folder;
  const Checkpoint plain = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  const TempFolder first;
  plain.Write(first);
  ASSERT_TRUE(Convert(first.path(), folder / "plain.gdn").ok());
  const std::pair<const char*, const char*> prefixes[] = {
      {"language_model.model.", "language_model.lm_head.weight"},
      {"language_model.model.", "lm_head.weight"},
      {"", "lm_head.weight"}};
  for (const auto& [prefix, head] : prefixes) {
    Checkpoint other = plain;
    other.Rename("model.", prefix);
    other.Rename("lm_head.weight", head);
    const TempFolder second;
    other.Write(second);
    const auto summary = Convert(second.path(), folder / "other.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(ReadBytes(folder / "plain.gdn") ==
                ReadBytes(folder / "other.gdn"))
        << prefix;
  }
}

TEST(ConvertTest, ReadsConvolutionsOfEveryExporter) {
  const Checkpoint plain = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  const TempFolder folder, first;
  plain.Write(first);
  ASSERT_TRUE(Convert(first.path(), folder / "plain.gdn").ok());
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{384, 4}, {384, 4, 1}, {1, 384, 4}}) {
    Checkpoint other = plain;
    other.shapes["model.layers.0.linear_attn.conv1d.weight"] = shape;
    const TempFolder second;
    other.Write(second);
    const auto summary = Convert(second.path(), folder / "other.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(ReadBytes(folder / "plain.gdn") ==
                ReadBytes(folder / "other.gdn"));
  }
  Checkpoint turned = plain;
  turned.shapes["model.layers.0.linear_attn.conv1d.weight"] = {4, 1, 384};
  EXPECT_THAT(ErrorOf(turned), HasSubstr("[4, 1, 384], but config.json asks "
                                         "for [384, 1, 4]"));
}

// Case S11.
TEST(ConvertTest, TiedFlagAndHeadMustAgree) {
  const Checkpoint tied = Checkpoint::Read(Golden("tiny-qwen35"));
  const std::vector<float> table = tied.values.at("model.embed_tokens.weight");

  Checkpoint equal_head = tied;
  equal_head.Add("lm_head.weight", {512, 64}, table);
  const TempFolder folder;
  equal_head.Write(folder);
  const auto summary = Convert(folder.path(), folder / "a.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(Open(folder / "a.gdn")->target_config().tied_head);
  const TempFolder plain;
  tied.Write(plain);
  ASSERT_TRUE(Convert(plain.path(), plain / "b.gdn").ok());
  EXPECT_TRUE(ReadBytes(folder / "a.gdn") == ReadBytes(plain / "b.gdn"));

  Checkpoint other_head = equal_head;
  other_head.values["lm_head.weight"][12345] += 1.0f;
  EXPECT_THAT(ErrorOf(other_head),
              HasSubstr("lm_head.weight differs from the embedding table at "
                        "element 12345"));
  other_head = equal_head;
  other_head.Add("lm_head.weight", {256, 64},
                 std::vector<float>(table.begin(), table.begin() + 256 * 64));
  EXPECT_THAT(ErrorOf(other_head), HasSubstr("[256, 64]"));

  Checkpoint untied = equal_head;
  untied.config["tie_word_embeddings"] = false;
  EXPECT_EQ(ErrorOf(untied), "");
  untied.Remove("lm_head.weight");
  EXPECT_THAT(ErrorOf(untied), HasSubstr("lm_head.weight is missing"));

  Checkpoint silent = equal_head;  // Then the tensors decide.
  silent.config.erase("tie_word_embeddings");
  silent.Write(folder);
  ASSERT_TRUE(Convert(folder.path(), folder / "a.gdn").ok());
  EXPECT_FALSE(Open(folder / "a.gdn")->target_config().tied_head);
  silent.Remove("lm_head.weight");
  silent.Write(folder);
  ASSERT_TRUE(Convert(folder.path(), folder / "a.gdn").ok());
  EXPECT_TRUE(Open(folder / "a.gdn")->target_config().tied_head);
}

TEST(ConvertTest, RefusesEveryMissingTensor) {
  const Checkpoint sound = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  for (const auto& item : sound.shapes) {
    Checkpoint missing = sound;
    missing.Remove(item.first);
    const std::string error = ErrorOf(missing);
    EXPECT_THAT(error, HasSubstr("is missing"));
    EXPECT_THAT(error, HasSubstr(item.first));
  }
}

TEST(ConvertTest, RefusesMixturesByTensor) {
  const std::string layer = "model.layers.2.";
  const Checkpoint next = Checkpoint::Read(Golden("tiny-qwen3next-moe"));
  Checkpoint bad = next;
  bad.Remove(layer + "mlp.experts.7.up_proj.weight");
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.experts.7.up_proj.weight is missing; its shape "
                        "would be [32, 64]"));
  bad = next;
  bad.Remove(layer + "mlp.gate.weight");
  EXPECT_THAT(ErrorOf(bad), HasSubstr("mlp.gate.weight is missing"));
  bad = next;
  bad.Remove(layer + "linear_attn.in_proj_ba.weight");
  EXPECT_THAT(ErrorOf(bad), HasSubstr("in_proj_b.weight is missing"));
  bad = next;
  bad.shapes[layer + "linear_attn.in_proj_qkvz.weight"] = {96, 128};
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("in_proj_qkvz.weight has shape [96, 128], but "
                        "config.json asks for [192, 64]"));
  bad = next;
  bad.shapes[layer + "mlp.experts.3.down_proj.weight"] = {32, 64};
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.experts.3.down_proj.weight has shape [32, 64]"));
  bad = next;  // One more than the config says.
  bad.config["num_experts"] = 7;
  bad.config["mlp_only_layers"] = {0, 1, 3};
  for (const int dense : {0, 3}) {
    const std::string mlp = absl::StrCat("model.layers.", dense, ".mlp.");
    bad.Add(mlp + "gate_proj.weight", {128, 64}, std::vector<float>(128 * 64));
    bad.Add(mlp + "up_proj.weight", {128, 64}, std::vector<float>(128 * 64));
    bad.Add(mlp + "down_proj.weight", {64, 128}, std::vector<float>(128 * 64));
  }
  EXPECT_THAT(ErrorOf(bad), HasSubstr("mlp.gate.weight has shape [8, 64], but "
                                      "config.json asks for [7, 64]"));
  bad = next;
  bad.values[layer + "mlp.experts.5.gate_proj.weight"][9] = INFINITY;
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.experts.5.gate_proj.weight gives inf at element "
                        "9"));
  bad = next;
  bad.values[layer + "linear_attn.in_proj_qkvz.weight"][100 * 64 + 3] = NAN;
  EXPECT_THAT(ErrorOf(bad), HasSubstr("in_proj_qkvz.weight gives nan at "
                                      "element 6403"));

  const Checkpoint stacked = Checkpoint::Read(Golden("tiny-qwen35moe"));
  bad = stacked;
  bad.Remove(layer + "mlp.experts.gate_up_proj");
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.experts.gate_up_proj is missing; its shape would "
                        "be [8, 64, 64]"));
  bad = stacked;
  bad.shapes[layer + "mlp.experts.down_proj"] = {8, 32, 64};
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.experts.down_proj has shape [8, 32, 64], but "
                        "config.json asks for [8, 64, 32]"));
  bad = stacked;
  bad.Add(layer + "mlp.gate_proj.weight", {1}, {0});
  EXPECT_THAT(ErrorOf(bad), HasSubstr("has no place"));
}

TEST(ConvertTest, RefusesTensorsByName) {
  const Checkpoint sound = Checkpoint::Read(Golden("tiny-qwen35"));
  Checkpoint bad = sound;
  bad.Add("model.layers.0.extra.weight", {1}, {0.0f});
  EXPECT_THAT(ErrorOf(bad), HasSubstr("model.layers.0.extra.weight"));

  bad = sound;  // A layer that config.json does not speak of.
  bad.config["num_hidden_layers"] = 7;
  bad.config["layer_types"].erase(7);
  EXPECT_THAT(ErrorOf(bad), HasSubstr("model.layers.7."));

  bad = sound;
  bad.config["layer_types"][0] = "full_attention";
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("model.layers.0.self_attn.q_proj.weight is missing"));

  bad = sound;
  bad.config["intermediate_size"] = 64;
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("mlp.gate_proj.weight has shape [128, "
                        "64], but config.json asks for [64, 64]"));

  bad = sound;
  bad.shapes["model.norm.weight"] = {1, 64};
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("[1, 64], but config.json asks for [64]"));

  bad = sound;
  bad.Add("other.embed_tokens.weight", {1}, {0.0f});
  EXPECT_THAT(ErrorOf(bad), HasSubstr("both end in embed_tokens.weight"));

  bad = sound;
  bad.values["model.layers.2.mlp.up_proj.weight"][77] = NAN;
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("model.layers.2.mlp.up_proj.weight gives nan at "
                        "element 77"));
  bad = sound;
  bad.values["model.layers.0.linear_attn.A_log"][1] = 1000.0f;
  EXPECT_THAT(ErrorOf(bad),
              HasSubstr("linear_attn.A_log gives -inf at element 1"));
}

TEST(ConvertTest, RefusesTensorsThatAreNoFloats) {
  const TempFolder folder;
  folder.CopyFrom(Golden("tiny-qwen35"));
  std::string bytes = ReadBytes(folder / "model.safetensors");
  const size_t place = bytes.find("\"F32\"");
  ASSERT_NE(place, std::string::npos);
  bytes.replace(place, 5, "\"I32\"");
  folder.Write("model.safetensors", bytes);
  const auto summary = Convert(folder.path(), folder / "out.gdn");
  EXPECT_THAT(summary.status().message(), HasSubstr("is of type I32"));
}

TEST(ConvertTest, BfloatAndFloatOfTheSameNumbersGiveTheSameFile) {
  // All weights of a draft's checkpoint are bfloat16 there, float32 here.
  const TempFolder folder, wide;
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), folder / "t.gdn").ok());
  Checkpoint::Read(Golden("tiny-qwen35-dflash")).Write(wide);
  const auto a =
      Convert(Golden("tiny-qwen35-dflash"), folder / "a.gdn", folder / "t.gdn");
  const auto b = Convert(wide.path(), folder / "b.gdn", folder / "t.gdn");
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(2 * a->source_bytes, b->source_bytes);
  EXPECT_TRUE(ReadBytes(folder / "a.gdn") == ReadBytes(folder / "b.gdn"));
}

// Published files have the decay and the gated norm in float32 and the rest in
// bfloat16; others have all in one type.
TEST(ConvertTest, GatesAndNormsMayBeOfAnyFloatType) {
  const Checkpoint source = Checkpoint::Read(Golden("tiny-qwen35-untied"));
  const auto is_gate = [](const std::string& name) {
    return absl::EndsWith(name, ".A_log") || absl::EndsWith(name, ".dt_bias") ||
           absl::EndsWith(name, "linear_attn.norm.weight");
  };
  const TempFolder folder;
  std::string first;
  for (const char* const type : {"F32", "BF16", "F16"}) {
    SafetensorsWriter writer;
    for (const auto& [name, shape] : source.shapes) {
      std::vector<float> values = source.values.at(name);
      if (!is_gate(name)) {
        writer.AddFloats(name, shape, values);
        continue;
      }
      // 0.5 to 2.25, which all three types hold.
      std::string bytes;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t eighths = 4 + i % 15;
        values[i] = static_cast<float>(eighths) / 8;
        uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof(bits));
        const uint32_t half = (bits >> 13 & 0x3ff) | ((bits >> 23) - 112) << 10;
        const uint32_t stored = type[0] == 'B' ? bits >> 16 : half;
        bytes.push_back(static_cast<char>(stored & 0xff));
        bytes.push_back(static_cast<char>(stored >> 8));
      }
      if (std::string(type) == "F32") {
        writer.AddFloats(name, shape, values);
      } else {
        writer.Add(name, type, shape, bytes);
      }
    }
    folder.Write("config.json", source.config.dump());
    folder.Write("model.safetensors", writer.Bytes());
    const auto summary = Convert(folder.path(), folder / "out.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    const std::string bytes = ReadBytes(folder / "out.gdn");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << type;
  }
  const auto file = Open(folder / "out.gdn");
  const GdnWeights& gdn = file->target_weights().layers[1].gdn;
  EXPECT_EQ(gdn.dt_bias[2], 0.75f);
  EXPECT_EQ(gdn.norm[14], 2.25f);
  EXPECT_EQ(gdn.neg_exp_a[0], static_cast<float>(-std::exp(0.5)));
}

// Embedding tables have rows that no token is for, and a draft's mask may be
// one of them.
TEST(ConvertTest, VocabulariesMayBePadded) {
  const std::string demo = "examples/chat/model/";
  Checkpoint target = Checkpoint::Read(demo + "target");
  const int64_t width = target.config["hidden_size"];
  target.config["vocab_size"] = 4100;
  target.values["model.embed_tokens.weight"].resize(4100 * width, 0.5f);
  target.shapes["model.embed_tokens.weight"] = {4100, width};
  const TempFolder folder, out;
  target.Write(folder);
  for (const char* const name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    folder.Write(name, ReadBytes(demo + "target/" + name));
  }
  const auto summary = Convert(folder.path(), out / "t.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto file = Open(out / "t.gdn");
  EXPECT_EQ(file->target_config().vocab_size, 4100);
  EXPECT_EQ(file->tokenizer()->vocab_size, 4100);
  EXPECT_THAT(file->stop_tokens(), ElementsAre(4092, 4090));

  Checkpoint draft = Checkpoint::Read(demo + "draft");
  draft.config["vocab_size"] = 4100;
  draft.config["dflash_config"]["mask_token_id"] = 4099;
  draft.Write(folder);
  const auto drafted = Convert(folder.path(), out / "d.gdn", out / "t.gdn");
  ASSERT_TRUE(drafted.ok()) << drafted.status();
  EXPECT_EQ(Open(out / "d.gdn")->draft_config().mask_token, 4099);
}

TEST(ConvertTest, DraftAndTargetMustFit) {
  const TempFolder folder;
  const std::string target = folder / "t.gdn";
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), target).ok());
  ASSERT_TRUE(Convert(Golden("tiny-qwen35-untied"), folder / "u.gdn").ok());
  const std::string draft = Golden("tiny-qwen35-dflash");

  EXPECT_THAT(Convert(draft, folder / "d.gdn").status().message(),
              HasSubstr("is a draft; its target"));
  EXPECT_THAT(Convert(Golden("tiny-qwen35"), folder / "d.gdn", target)
                  .status()
                  .message(),
              HasSubstr("is a target"));
  EXPECT_THAT(
      Convert(draft, folder / "d.gdn", folder / "u.gdn").status().message(),
      HasSubstr("target_layer_count is 8, its target's is 4"));
  EXPECT_EQ(
      Convert(draft, folder / "d.gdn", folder / "none.gdn").status().code(),
      absl::StatusCode::kNotFound);
  EXPECT_THAT(Convert(draft, folder / "d.gdn", draft + "/model.safetensors")
                  .status()
                  .message(),
              HasSubstr("model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "d.gdn"));
  ASSERT_TRUE(Convert(draft, folder / "d.gdn", target).ok());
  EXPECT_THAT(
      Convert(draft, folder / "e.gdn", folder / "d.gdn").status().message(),
      HasSubstr("is a draft; a draft's target is needed"));

  Checkpoint other = Checkpoint::Read(draft);
  other.config["vocab_size"] = 600;
  EXPECT_THAT(ErrorOf(other, target),
              HasSubstr("vocab_size is 600, its target's is 512"));
  other = Checkpoint::Read(draft);
  other.config["dflash_config"]["target_layer_ids"] = {1, 3};
  EXPECT_THAT(ErrorOf(other, target),
              HasSubstr("fc.weight has shape [64, 192], but config.json asks "
                        "for [64, 128]"));
  other = Checkpoint::Read(draft);
  other.config.erase("num_target_layers");
  other.config["dflash_config"]["target_layer_ids"] = {1, 3, 8};
  EXPECT_THAT(ErrorOf(other, target), HasSubstr("target_layers"));
  other = Checkpoint::Read(draft);
  other.Add("embed_tokens.weight", {1}, {0.0f});
  EXPECT_THAT(ErrorOf(other, target), HasSubstr("embed_tokens.weight"));
}

TEST(ConvertTest, NeverWritesOverWhatItReads) {
  const TempFolder folder;
  folder.CopyFrom(Golden("tiny-qwen35"));
  const std::string weights = folder / "model.safetensors";
  const std::string before = ReadBytes(weights);
  EXPECT_THAT(Convert(folder.path(), weights).status().message(),
              HasSubstr("is read as"));
  EXPECT_TRUE(ReadBytes(weights) == before);
  ASSERT_TRUE(Convert(folder.path(), folder / "t.gdn").ok());
  EXPECT_THAT(
      Convert(Golden("tiny-qwen35-dflash"), folder / "t.gdn", folder / "t.gdn")
          .status()
          .message(),
      HasSubstr("is read as"));
  EXPECT_EQ(Open(folder / "t.gdn")->kind(), ModelKind::kTarget);
}

TEST(ConvertTest, ReadsTokenizerAndChatOfTheDefaultTarget) {
  const TempFolder folder;
  const std::string input = "examples/chat/model/target";
  const auto summary = Convert(input, folder / "a.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->parameters, 7906080);
  const auto file = Open(folder / "a.gdn");
  ASSERT_TRUE(file->tokenizer().has_value());
  EXPECT_EQ(file->tokenizer()->vocab_size, 4096);
  ASSERT_TRUE(file->chat().has_value());
  EXPECT_THAT(file->stop_tokens(), ElementsAre(4092, 4090));

  const TempFolder copy;
  copy.CopyFrom(input);
  Json settings = Json::parse(ReadBytes(copy / "tokenizer_config.json"));
  settings["chat_template"] = "{{ messages[0].content }} and nothing else";
  copy.Write("tokenizer_config.json", settings.dump());
  EXPECT_THAT(Convert(copy.path(), folder / "b.gdn").status().message(),
              HasSubstr("no_chat"));
  ConvertOptions options;
  options.input = copy.path();
  options.output = folder / "b.gdn";
  options.chat = false;
  ASSERT_TRUE(ConvertCheckpoint(options).ok());
  EXPECT_TRUE(Open(folder / "b.gdn")->tokenizer().has_value());
  EXPECT_FALSE(Open(folder / "b.gdn")->chat().has_value());

  Json config = Json::parse(ReadBytes(copy / "config.json"));
  config["vocab_size"] = 4000;
  config["eos_token_id"] = 1;
  copy.Write("config.json", config.dump());
  copy.Write("generation_config.json", "{}");
  EXPECT_FALSE(ConvertCheckpoint(options).ok());
}

TEST(ConvertTest, ReportsProgressAndStopsWhenTold) {
  const TempFolder folder;
  ConvertOptions options;
  options.input = Golden("tiny-qwen35");
  options.output = folder.Write("a.gdn", "what was there before");
  int64_t last = 0, all = 0;
  const auto stop_in_the_middle = [&](absl::string_view, int64_t done,
                                      int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
    return done < total / 2;
  };
  EXPECT_EQ(ConvertCheckpoint(options, stop_in_the_middle).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_LT(last, all);
  EXPECT_EQ(ReadBytes(options.output), "what was there before");
  EXPECT_EQ(folder.FileCount(), 1u);

  last = 0;
  ASSERT_TRUE(ConvertCheckpoint(options, [&](absl::string_view, int64_t done,
                                             int64_t total) {
                last = done;
                all = total;
                return true;
              }).ok());
  EXPECT_EQ(last, all);
  EXPECT_EQ(folder.FileCount(), 1u);
  EXPECT_NE(Open(options.output), nullptr);
}

using ConvertDeathTest = ::testing::Test;

TEST(ConvertDeathTest, KilledInTheMiddleLeavesTheOldFile) {
  const TempFolder folder;
  ConvertOptions options;
  options.input = Golden("tiny-qwen35");
  options.output = folder.Write("a.gdn", "what was there before");
  EXPECT_EXIT(
      {
        const auto ignored = ConvertCheckpoint(
            options, [](absl::string_view, int64_t done, int64_t total) {
              if (done > total / 2) _exit(3);
              return true;
            });
        _exit(4);
      },
      ::testing::ExitedWithCode(3), "");
  EXPECT_EQ(ReadBytes(options.output), "what was there before");
}

TEST(ConvertDeathTest, FullDiskIsAnErrorAndLeavesNothing) {
  const TempFolder folder;
  const std::string output = folder / "a.gdn";
  EXPECT_EXIT(
      {
        // A limit of the process stands for the disk's end.
        std::signal(SIGXFSZ, SIG_IGN);
        rlimit limit;
        limit.rlim_cur = limit.rlim_max = 1 << 20;
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(5);
        const auto summary = Convert(Golden("tiny-qwen35"), output);
        _exit(!summary.ok() &&
                      absl::StrContains(summary.status().message(), "a.gdn")
                  ? 3
                  : 4);
      },
      ::testing::ExitedWithCode(3), "");
  EXPECT_EQ(folder.FileCount(), 0u);
}

TEST(ConvertTest, RefusesPlacesThatCannotBeWritten) {
  const TempFolder folder;
  const std::string input = Golden("tiny-qwen35");
  EXPECT_EQ(Convert(input, folder / "none/a.gdn").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(Convert(input, folder.path()).ok());
  EXPECT_FALSE(Convert(input, "/dev/full").ok());
  EXPECT_FALSE(Convert(input, folder.Write("file", "") + "/a.gdn").ok());
  EXPECT_FALSE(Convert(input, "").ok());
  const std::string locked = folder / "locked";
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(locked, std::filesystem::perms::owner_read);
  if (access(locked.c_str(), W_OK) != 0) {  // The superuser may all the same.
    EXPECT_EQ(Convert(input, locked + "/a.gdn").status().code(),
              absl::StatusCode::kPermissionDenied);
  }
}

TEST(ConvertTest, RefusesWhatIsNoCheckpoint) {
  const TempFolder folder;
  const std::string output = folder / "a.gdn";
  EXPECT_EQ(Convert(folder / "none", output).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Convert(folder.path(), output).status().code(),
            absl::StatusCode::kNotFound);
  folder.Write("config.json",
               ReadBytes(Golden("tiny-qwen35") + "/config.json"));
  EXPECT_THAT(Convert(folder.path(), output).status().message(),
              HasSubstr("neither model.safetensors nor"));
  folder.Write("model.safetensors", "");
  EXPECT_THAT(Convert(folder.path(), output).status().message(),
              HasSubstr("has 0 bytes"));
  ConvertOptions options;
  options.input = Golden("tiny-qwen35");
  options.output = output;
  options.recipe.weights = WeightType::kUnknown;
  EXPECT_THAT(ConvertCheckpoint(options).status().message(), HasSubstr("f32"));
}

// A checkpoint cut anywhere, or with any byte of its header changed, is an
// error or converts; nothing else happens.
TEST(ConvertTest, SurvivesDamagedCheckpoints) {
  const TempFolder folder;
  folder.CopyFrom(Golden("tiny-qwen35-dflash"));
  const TempFolder out;
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), out / "t.gdn").ok());
  const std::string bytes = ReadBytes(folder / "model.safetensors");
  Random random(4);
  for (int i = 0; i < 30; ++i) {
    const int length = random.Int(0, static_cast<int>(bytes.size()) - 1);
    folder.Write("model.safetensors", bytes.substr(0, length));
    EXPECT_FALSE(Convert(folder.path(), out / "d.gdn", out / "t.gdn").ok())
        << length;
  }
  int errors = 0;
  for (int i = 0; i < 150; ++i) {
    std::string flipped = bytes;
    const int place = random.Int(0, 2600);
    flipped[place] = static_cast<char>(flipped[place] ^ random.Int(1, 255));
    folder.Write("model.safetensors", flipped);
    if (!Convert(folder.path(), out / "d.gdn", out / "t.gdn").ok()) ++errors;
  }
  EXPECT_GT(errors, 120);
}

}  // namespace
}  // namespace deltaedge
