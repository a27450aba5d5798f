// SPDX-License-Identifier: Apache-2.0

// Conversion of GGUF files, which are written here from checkpoints in the
// layout of Hugging Face: both must give the same model.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/model/weights.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/gguf_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/convert.h"
#include "tools/convert/gguf.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using testing::GgufType;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::kBf16;
using testing::kF16;
using testing::kF32;
using testing::kQ40;
using testing::kQ80;
using ::testing::Not;
using testing::ReadBytes;
using testing::TempFolder;

std::string Golden(absl::string_view model) {
  return absl::StrCat("tests/testdata/golden/", model);
}

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t row() const { return static_cast<int64_t>(values.size()) / shape[0]; }
  // Rows `order`, each of `rows` of the tensor's.
  Tensor Rows(const std::vector<int64_t>& order, int64_t rows = 1) const {
    Tensor result;
    result.shape = shape;
    result.shape[0] = static_cast<int64_t>(order.size()) * rows;
    for (const int64_t i : order) {
      const auto begin = values.begin() + i * rows * row();
      result.values.insert(result.values.end(), begin, begin + rows * row());
    }
    return result;
  }
  Tensor Columns(const std::vector<int64_t>& order, int64_t width) const {
    Tensor result = {shape, {}};
    for (int64_t r = 0; r < shape[0]; ++r) {
      for (const int64_t i : order) {
        const auto begin = values.begin() + r * row() + i * width;
        result.values.insert(result.values.end(), begin, begin + width);
      }
    }
    return result;
  }
  Tensor Apply(const std::function<float(float)>& change) const {
    Tensor result = *this;
    for (float& value : result.values) value = change(value);
    return result;
  }
};

Tensor Joined(Tensor a, const Tensor& b) {
  a.shape[0] += b.shape[0];
  a.values.insert(a.values.end(), b.values.begin(), b.values.end());
  return a;
}

std::vector<int64_t> Range(int64_t from, int64_t to) {
  std::vector<int64_t> range;
  for (; from < to; ++from) range.push_back(from);
  return range;
}

// A checkpoint's tensors and keys as a GGUF file has them, to be changed and
// written.
struct GgufModel {
  GgufWriter keys;
  std::map<std::string, std::pair<Tensor, GgufType>> tensors;

  std::string Write(const TempFolder& folder) const {
    GgufWriter writer = keys;
    for (const auto& [name, tensor] : tensors) {
      std::vector<int64_t> shape = tensor.first.shape;
      shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
      writer.Tensor(name, shape, tensor.second, tensor.first.values);
    }
    return folder.Write("model.gguf", writer.Bytes());
  }
};

// How the architectures lay a Hugging Face checkpoint out.
class Exporter {
 public:
  // Matrices become `type`, all else F32.
  Exporter(const std::string& folder, std::string architecture, GgufType type)
      : architecture_(std::move(architecture)), type_(type) {
    config_ = Json::parse(ReadBytes(folder + "/config.json"));
    if (config_.contains("text_config")) {
      config_.update(Json(config_["text_config"]));
    }
    const auto file = Safetensors::OpenFolder(folder);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const auto& [name, entry] : file->entries()) {
      source_[name] = {entry.shape, *file->ReadFloats(name)};
    }
    model_.keys.Text("general.architecture", architecture_);
  }

  // `predicting`: layers that are said to follow the model's own.
  GgufModel Target(int predicting = 0) {
    const int layers = Int("num_hidden_layers");
    U32("block_count", layers + predicting);
    if (predicting > 0) U32("nextn_predict_layers", predicting);
    const Json eos = config_.value("eos_token_id", Json());
    if (eos.is_number()) {
      model_.keys.U32("tokenizer.ggml.eos_token_id", eos.get<uint32_t>());
    }
    U32("context_length", Int("max_position_embeddings"));
    U32("ssm.conv_kernel", 4);
    U32("ssm.state_size", Int("linear_key_head_dim"));
    U32("ssm.group_count", key_heads());
    U32("ssm.time_step_rank", value_heads());
    U32("ssm.inner_size", Int("linear_value_head_dim") * value_heads());
    const Json rope = config_.value("rope_parameters", config_);
    U32("rope.dimension_count",
        static_cast<int>(Int("head_dim") *
                         rope["partial_rotary_factor"].get<double>()));
    const bool moe = config_.value("num_experts", 0) > 0;
    if (moe) {
      U32("expert_count", Int("num_experts"));
      U32("expert_used_count", Int("num_experts_per_tok"));
      U32("expert_feed_forward_length", Int("moe_intermediate_size"));
      U32("expert_shared_feed_forward_length",
          Int("shared_expert_intermediate_size"));
    }
    AttentionKeys(rope["rope_theta"]);
    Put("token_embd.weight", Take("embed_tokens.weight"));
    Put("output_norm.weight", OnePlus(Take("model.norm.weight")));
    if (!config_["tie_word_embeddings"].get<bool>()) {
      Put("output.weight", Take("lm_head.weight"));
    }
    for (int i = 0; i < layers; ++i) {
      const std::string theirs = absl::StrCat("layers.", i, ".");
      const std::string ours = absl::StrCat("blk.", i, ".");
      Put(ours + "attn_norm.weight",
          OnePlus(Take(theirs + "input_layernorm.weight")));
      Put(ours + "post_attention_norm.weight",
          OnePlus(Take(theirs + "post_attention_layernorm.weight")));
      if ((i + 1) % 4 == 0) {
        Attention(theirs, ours, /*one_plus=*/true);
      } else {
        Gdn(theirs + "linear_attn.", ours);
      }
      if (Has(theirs + "mlp.gate.weight")) {
        Experts(theirs + "mlp.", ours);
      } else {
        Mlp(theirs, ours);
      }
    }
    return std::move(model_);
  }

  GgufModel Draft() {
    const int layers = Int("num_hidden_layers");
    U32("block_count", layers);
    U32("block_size", Int("block_size"));
    std::vector<int32_t> taps = config_["dflash_config"]["target_layer_ids"];
    for (int32_t& tap : taps) ++tap;
    model_.keys.I32s("dflash.target_layers", taps);
    const Json types = config_.value("layer_types", Json());
    if (config_.value("use_sliding_window", false)) {
      std::vector<bool> sliding;
      for (const Json& type : types) {
        sliding.push_back(type == "sliding_attention");
      }
      U32("attention.sliding_window", Int("sliding_window"));
      model_.keys.Bools("dflash.attention.sliding_window_pattern", sliding);
    }
    if (config_.contains("is_causal")) {
      model_.keys.Bool("dflash.attention.causal", config_["is_causal"]);
    }
    AttentionKeys(config_["rope_theta"]);
    model_.keys.U32("tokenizer.ggml.mask_token_id",
                    config_["dflash_config"]["mask_token_id"]);
    model_.keys.Texts("tokenizer.ggml.tokens",
                      std::vector<std::string>(Int("vocab_size"), "x"));
    Put("fc.weight", Take("fc.weight"));
    Put("enc.output_norm.weight", Take("hidden_norm.weight"));
    Put("output_norm.weight", source_["norm.weight"]);
    for (int i = 0; i < layers; ++i) {
      const std::string theirs = absl::StrCat("layers.", i, ".");
      const std::string ours = absl::StrCat("blk.", i, ".");
      Put(ours + "attn_norm.weight", Take(theirs + "input_layernorm.weight"));
      Put(ours + "ffn_norm.weight",
          Take(theirs + "post_attention_layernorm.weight"));
      Attention(theirs, ours, /*one_plus=*/false);
      Mlp(theirs, ours);
    }
    return std::move(model_);
  }

 private:
  int Int(const char* key) const { return config_.at(key).get<int>(); }
  int key_heads() const { return Int("linear_num_key_heads"); }
  int value_heads() const { return Int("linear_num_value_heads"); }
  void U32(const std::string& key, uint32_t value) {
    model_.keys.U32(absl::StrCat(architecture_, ".", key), value);
  }
  void F32(const std::string& key, double value) {
    model_.keys.F32(absl::StrCat(architecture_, ".", key),
                    static_cast<float>(value));
  }

  bool Has(const std::string& end) const {
    for (const auto& [name, tensor] : source_) {
      if (absl::EndsWith(name, end)) return true;
    }
    return false;
  }
  const Tensor& Take(const std::string& end) const {
    for (const auto& [name, tensor] : source_) {
      if (absl::EndsWith(name, end) && !absl::StrContains(name, "mtp.") &&
          !absl::StrContains(name, "visual.")) {
        return tensor;
      }
    }
    ADD_FAILURE() << end;
    static const Tensor* const none = new Tensor{{1}, {0}};
    return *none;
  }
  void Put(const std::string& name, const Tensor& tensor) {
    const bool matrix = tensor.shape.size() > 1 && tensor.shape[0] > 1 &&
                        !absl::StrContains(name, "conv1d");
    const bool fits =
        (type_ != kQ80 && type_ != kQ40) || tensor.shape.back() % 32 == 0;
    model_.tensors[name] = {tensor, matrix && fits ? type_ : kF32};
  }
  static Tensor OnePlus(const Tensor& tensor) {
    return tensor.Apply([](float w) { return 1 + w; });
  }

  void AttentionKeys(double theta) {
    U32("embedding_length", Int("hidden_size"));
    if (config_.contains("intermediate_size")) {
      U32("feed_forward_length", Int("intermediate_size"));
    }
    U32("attention.head_count", Int("num_attention_heads"));
    U32("attention.head_count_kv", Int("num_key_value_heads"));
    U32("attention.key_length", Int("head_dim"));
    U32("attention.value_length", Int("head_dim"));
    F32("attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
    F32("rope.freq_base", theta);
  }

  void Attention(const std::string& theirs, const std::string& ours,
                 bool one_plus) {
    for (const char* part : {"q", "k", "v"}) {
      Put(absl::StrCat(ours, "attn_", part, ".weight"),
          Take(absl::StrCat(theirs, "self_attn.", part, "_proj.weight")));
    }
    Put(ours + "attn_output.weight", Take(theirs + "self_attn.o_proj.weight"));
    for (const char* part : {"q", "k"}) {
      const Tensor& norm =
          Take(absl::StrCat(theirs, "self_attn.", part, "_norm.weight"));
      Put(absl::StrCat(ours, "attn_", part, "_norm.weight"),
          one_plus ? OnePlus(norm) : norm);
    }
  }

  void Mlp(const std::string& theirs, const std::string& ours) {
    for (const char* part : {"gate", "up", "down"}) {
      Put(absl::StrCat(ours, "ffn_", part, ".weight"),
          Take(absl::StrCat(theirs, "mlp.", part, "_proj.weight")));
    }
  }

  void Experts(const std::string& theirs, const std::string& ours) {
    const int64_t experts = Int("num_experts");
    const int64_t size = Int("moe_intermediate_size");
    const int64_t hidden = Int("hidden_size");
    Put(ours + "ffn_gate_inp.weight", Take(theirs + "gate.weight"));
    Put(ours + "ffn_gate_inp_shexp.weight",
        Take(theirs + "shared_expert_gate.weight"));
    for (const char* part : {"gate", "up", "down"}) {
      Put(absl::StrCat(ours, "ffn_", part, "_shexp.weight"),
          Take(absl::StrCat(theirs, "shared_expert.", part, "_proj.weight")));
      Tensor all;
      const bool down = part[0] == 'd';
      for (int64_t e = 0; e < experts; ++e) {
        const std::string one =
            absl::StrCat(theirs, "experts.", e, ".", part, "_proj.weight");
        Tensor expert;
        if (Has(one)) {
          expert = Take(one);
        } else if (down) {
          expert = Take(theirs + "experts.down_proj").Rows({e});
        } else {
          Tensor both = Take(theirs + "experts.gate_up_proj");
          both.shape = {experts * 2, size, hidden};
          expert = both.Rows({2 * e + (part[0] == 'u' ? 1 : 0)});
        }
        all.values.insert(all.values.end(), expert.values.begin(),
                          expert.values.end());
      }
      all.shape = down ? std::vector<int64_t>{experts, hidden, size}
                       : std::vector<int64_t>{experts, size, hidden};
      Put(absl::StrCat(ours, "ffn_", part, "_exps.weight"), all);
    }
  }

  void Gdn(const std::string& theirs, const std::string& ours) {
    const int64_t groups = key_heads(), heads = value_heads() / groups;
    const int64_t keys = Int("linear_key_head_dim");
    const int64_t values = Int("linear_value_head_dim");
    // Position i of the tiled order holds value head tiled[i].
    std::vector<int64_t> tiled;
    for (int64_t j = 0; j < heads; ++j) {
      for (int64_t g = 0; g < groups; ++g) tiled.push_back(g * heads + j);
    }
    if (architecture_ == "qwen3next") tiled = Range(0, groups * heads);
    const auto with_keys = [&](const Tensor& tensor) {
      const int64_t all = 2 * groups * keys;
      return Joined(
          tensor.Rows(Range(0, all)),
          tensor.Rows(Range(all, tensor.shape[0])).Rows(tiled, values));
    };
    Tensor qkv, z;
    if (Has(theirs + "in_proj_qkvz.weight")) {
      const Tensor& all = Take(theirs + "in_proj_qkvz.weight");
      const int64_t group = 2 * keys + 2 * heads * values;
      std::vector<int64_t> order, z_order;
      const auto add = [&](int64_t first, int64_t count,
                           std::vector<int64_t>* to) {
        for (int64_t g = 0; g < groups; ++g) {
          for (int64_t i = 0; i < count; ++i) {
            to->push_back(g * group + first + i);
          }
        }
      };
      add(0, keys, &order);
      add(keys, keys, &order);
      add(2 * keys, heads * values, &order);
      add(2 * keys + heads * values, heads * values, &z_order);
      qkv = all.Rows(order);
      z = all.Rows(z_order);
      Put(ours + "ssm_ba.weight", Take(theirs + "in_proj_ba.weight"));
    } else {
      qkv = with_keys(Take(theirs + "in_proj_qkv.weight"));
      z = Take(theirs + "in_proj_z.weight").Rows(tiled, values);
      Put(ours + "ssm_beta.weight",
          Take(theirs + "in_proj_b.weight").Rows(tiled));
      Put(ours + "ssm_alpha.weight",
          Take(theirs + "in_proj_a.weight").Rows(tiled));
    }
    Put(ours + "attn_qkv.weight", qkv);
    Put(ours + "attn_gate.weight", z);
    Put(ours + "ssm_conv1d.weight", with_keys(Take(theirs + "conv1d.weight")));
    Put(ours + "ssm_a", Take(theirs + "A_log").Rows(tiled).Apply([](float a) {
      return -std::exp(a);
    }));
    Put(ours + "ssm_dt.bias", Take(theirs + "dt_bias").Rows(tiled));
    Put(ours + "ssm_norm.weight", Take(theirs + "norm.weight"));
    Put(ours + "ssm_out.weight",
        Take(theirs + "out_proj.weight").Columns(tiled, values));
  }

  const std::string architecture_;
  const GgufType type_;
  Json config_;
  std::map<std::string, Tensor> source_;
  GgufModel model_;
};

absl::StatusOr<ConvertSummary> Convert(const std::string& input,
                                       const std::string& output,
                                       const std::string& target = "",
                                       WeightRecipe recipe = {}) {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  options.target = target;
  options.name = "test";
  options.recipe = recipe;
  return ConvertCheckpoint(options);
}

// The same bits in all tensors but the decay, where the file's -exp() of floats
// may have been rounded otherwise.
void ExpectSameWeights(const std::string& a_path, const std::string& b_path) {
  const auto a = ModelFile::Open(a_path), b = ModelFile::Open(b_path);
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_EQ((*a)->tensors().size(), (*b)->tensors().size());
  for (size_t i = 0; i < (*a)->tensors().size(); ++i) {
    const TensorEntry& ours = (*a)->tensors()[i];
    const TensorEntry& theirs = (*b)->tensors()[i];
    ASSERT_EQ(ours.name, theirs.name);
    ASSERT_EQ(ours.shape, theirs.shape);
    ASSERT_EQ(ours.type, theirs.type);
    if (absl::EndsWith(ours.name, "neg_exp_a")) continue;
    EXPECT_EQ(ours.checksum, theirs.checksum) << ours.name;
  }
  const TargetConfig& config = (*a)->target_config();
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i] != LayerKind::kGatedDeltaNet) continue;
    for (int32_t head = 0; head < config.gdn.value_heads; ++head) {
      const float ours = (*a)->target_weights().layers[i].gdn.neg_exp_a[head];
      const float theirs = (*b)->target_weights().layers[i].gdn.neg_exp_a[head];
      EXPECT_NEAR(ours, theirs, std::abs(theirs) * 2e-7) << i << " " << head;
    }
  }
}

// Tokens and scores of a greedy continuation.
struct Decoded {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
};

Decoded Decode(const std::string& target) {
  EngineOptions options;
  options.num_threads = 1;
  const auto engine = Engine::Open({target, ""}, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  const auto session = (*engine)->NewSession();
  EXPECT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE((*session)->Prefill({3, 141, 59, 265, 358, 97, 9, 3, 23}).ok());
  GenerateOptions generate;
  generate.max_new_tokens = 24;
  generate.logits = true;
  generate.ignore_model_stop_tokens = true;
  Decoded decoded;
  const auto result =
      (*session)->Generate(generate, [&](const TokenEvent& event) {
        decoded.tokens.push_back(event.id);
        decoded.logits.insert(decoded.logits.end(), event.logits.begin(),
                              event.logits.end());
        return true;
      });
  EXPECT_TRUE(result.ok()) << result.status();
  return decoded;
}

struct TargetCase {
  const char* folder;
  const char* architecture;
};

constexpr TargetCase kTargets[] = {
    {"tiny-qwen35", "qwen35"},           {"tiny-qwen35-untied", "qwen35"},
    {"tiny-qwen35-published", "qwen35"}, {"tiny-qwen35moe", "qwen35moe"},
    {"tiny-qwen3next-moe", "qwen3next"}, {"tiny-qwen3next-dense", "qwen3next"},
};

// Case S14 among the rest: 1 + w once, whichever of both is stored.
TEST(GgufConvertTest, GivesTheModelThatTheFolderGives) {
  for (const TargetCase& test : kTargets) {
    const std::string folder = Golden(test.folder);
    const TempFolder temp;
    const auto theirs = Convert(folder, temp / "hub.gdn");
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    const Decoded expected = Decode(temp / "hub.gdn");
    ASSERT_EQ(expected.tokens.size(), 24u);
    // All numbers of these checkpoints' matrices have at most 8 bits.
    for (const GgufType type : {kF32, kBf16}) {
      SCOPED_TRACE(absl::StrCat(test.folder, " ", type));
      const std::string gguf =
          Exporter(folder, test.architecture, type).Target().Write(temp);
      const auto ours = Convert(gguf, temp / "gguf.gdn");
      ASSERT_TRUE(ours.ok()) << ours.status();
      EXPECT_EQ(ours->fingerprint, theirs->fingerprint);
      EXPECT_EQ(ours->tensors, theirs->tensors);
      EXPECT_EQ(ours->parameters, theirs->parameters);
      EXPECT_EQ(ours->skipped.size(), 0u);
      ExpectSameWeights(temp / "gguf.gdn", temp / "hub.gdn");

      const Decoded decoded = Decode(temp / "gguf.gdn");
      EXPECT_EQ(decoded.tokens, expected.tokens);
      ASSERT_EQ(decoded.logits.size(), expected.logits.size());
      float greatest = 0, error = 0;
      for (size_t i = 0; i < decoded.logits.size(); ++i) {
        greatest = std::max(greatest, std::abs(expected.logits[i]));
        error =
            std::max(error, std::abs(decoded.logits[i] - expected.logits[i]));
      }
      EXPECT_LE(error, 1e-5f * greatest);
    }
  }
}

// The same numbers, rounded by the file's type, through both formats.
TEST(GgufConvertTest, RoundedSourcesGiveWhatTheirNumbersGive) {
  const TempFolder temp;
  for (const GgufType type : {kF16, kQ80, kQ40}) {
    SCOPED_TRACE(type);
    GgufModel model =
        Exporter(Golden("tiny-qwen35moe"), "qwen35moe", type).Target();
    const auto summary = Convert(model.Write(temp), temp / "rounded.gdn");
    ASSERT_TRUE(summary.ok()) << summary.status();
    const auto note = Contains(HasSubstr(type == kQ80 ? "tensors are Q8_0 in"
                                                      : "tensors are Q4_0 in"));
    if (type == kF16) {
      EXPECT_THAT(summary->notes, Not(Contains(HasSubstr("rounded"))));
    } else {
      EXPECT_THAT(summary->notes, note);
    }
    // What the file's bytes stand for, as plain floats.
    const auto file = Gguf::Open(temp / "model.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    bool changed = false;
    for (auto& [name, tensor] : model.tensors) {
      std::vector<float> before = tensor.first.values;
      ASSERT_TRUE(file->ReadFloats(*file->Find(name), 0,
                                   absl::MakeSpan(tensor.first.values))
                      .ok());
      changed = changed || before != tensor.first.values;
      tensor.second = kF32;
    }
    EXPECT_TRUE(changed || type == kF16);
    ASSERT_TRUE(Convert(model.Write(temp), temp / "floats.gdn").ok());
    EXPECT_TRUE(ReadBytes(temp / "rounded.gdn") ==
                ReadBytes(temp / "floats.gdn"));
  }
}

TEST(GgufConvertTest, RecipesTreatBothFormatsAlike) {
  const TempFolder temp;
  const std::string folder = Golden("tiny-qwen35");
  const std::string gguf =
      Exporter(folder, "qwen35", kBf16).Target().Write(temp);
  WeightRecipe recipe;
  recipe.weights = WeightType::kQ4;
  recipe.head = WeightType::kQ8;
  ASSERT_TRUE(Convert(folder, temp / "hub.gdn", "", recipe).ok());
  ASSERT_TRUE(Convert(gguf, temp / "gguf.gdn", "", recipe).ok());
  ExpectSameWeights(temp / "gguf.gdn", temp / "hub.gdn");
}

TEST(GgufConvertTest, DraftsGiveTheModelThatTheFolderGives) {
  const TempFolder temp;
  ASSERT_TRUE(Convert(Golden("tiny-qwen35"), temp / "target.gdn").ok());
  for (const char* name : {"tiny-qwen35-dflash", "tiny-qwen35-dflash-trained",
                           "tiny-qwen35-dflash-swa"}) {
    SCOPED_TRACE(name);
    const auto theirs =
        Convert(Golden(name), temp / "hub.gdn", temp / "target.gdn");
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    const std::string gguf =
        Exporter(Golden(name), "dflash", kBf16).Draft().Write(temp);
    const auto ours = Convert(gguf, temp / "gguf.gdn", temp / "target.gdn");
    ASSERT_TRUE(ours.ok()) << ours.status();
    EXPECT_EQ(ours->fingerprint, theirs->fingerprint);
    EXPECT_TRUE(ReadBytes(temp / "gguf.gdn") == ReadBytes(temp / "hub.gdn"));
  }
}

TEST(GgufConvertTest, LayersThatPredictAreSkipped) {
  const TempFolder temp;
  const std::string folder = Golden("tiny-qwen35");
  const GgufModel plain = Exporter(folder, "qwen35", kF32).Target();
  ASSERT_TRUE(Convert(plain.Write(temp), temp / "plain.gdn").ok());
  GgufModel model = Exporter(folder, "qwen35", kF32).Target(/*predicting=*/1);
  model.tensors["blk.8.nextn.eh_proj.weight"] = {
      {{2, 3}, std::vector<float>(6)}, kF32};
  model.tensors["blk.8.attn_norm.weight"] = {{{5}, std::vector<float>(5)},
                                             kF32};
  const auto summary = Convert(model.Write(temp), temp / "out.gdn");
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(summary->skipped.size(), 1u);
  EXPECT_EQ(summary->skipped[0].what, "multi-token prediction");
  EXPECT_EQ(summary->skipped[0].tensors, 2);
  EXPECT_TRUE(ReadBytes(temp / "plain.gdn") == ReadBytes(temp / "out.gdn"));
}

// Nothing is skipped but these, whatever its name looks like.
TEST(GgufConvertTest, OnlyLayersThatPredictAreSkipped) {
  const TempFolder temp;
  for (const char* name :
       {"blk.9.attn_norm.weight", "blk.1000000.evil", "blk.+8.x", "blk. 8 .x",
        "blk.08.x", "blk.8", "blk.-1.x", "blk..x", "blk.4294967304.x"}) {
    GgufModel model = Exporter(Golden("tiny-qwen35"), "qwen35", kF32).Target(1);
    model.tensors[name] = {{{5}, std::vector<float>(5)}, kF32};
    const auto summary = Convert(model.Write(temp), temp / "out.gdn");
    EXPECT_THAT(summary.status().message(),
                HasSubstr(absl::StrCat("tensor ", name, " [5] has no place")));
  }
  // Fewer layers than there are, none of which is said to predict.
  GgufModel model = Exporter(Golden("tiny-qwen35"), "qwen35", kF32).Target(-4);
  EXPECT_THAT(Convert(model.Write(temp), temp / "out.gdn").status().message(),
              HasSubstr("tensor blk.4.attn_gate.weight [64, 64] has no place"));
}

class RefusalTest : public ::testing::Test {
 protected:
  GgufModel Model(const char* architecture = "qwen35",
                  const char* folder = "tiny-qwen35") {
    return Exporter(Golden(folder), architecture, kF32).Target();
  }
  // The error of converting `model`, which leaves nothing behind.
  std::string Error(const GgufModel& model) {
    const TempFolder temp;
    const auto summary = Convert(model.Write(temp), temp / "out.gdn");
    EXPECT_EQ(temp.FileCount(), summary.ok() ? 2u : 1u);
    return std::string(summary.status().message());
  }
  static std::map<std::string, std::pair<Tensor, GgufType>>::iterator Find(
      GgufModel* model, const std::string& name) {
    const auto found = model->tensors.find(name);
    EXPECT_NE(found, model->tensors.end()) << name;
    return found;
  }
};

TEST_F(RefusalTest, TensorsThatDoNotFit) {
  GgufModel missing = Model();
  missing.tensors.erase(Find(&missing, "blk.2.ssm_out.weight"));
  EXPECT_THAT(Error(missing),
              HasSubstr("model.gguf: tensor blk.2.ssm_out.weight is missing; "
                        "its shape would be [64, 64]"));
  GgufModel no_embedding = Model();
  no_embedding.tensors.erase(Find(&no_embedding, "token_embd.weight"));
  EXPECT_THAT(Error(no_embedding),
              HasSubstr("tensor token_embd.weight is missing"));
  GgufModel extra = Model();
  extra.tensors["blk.2.ssm_extra"] = {{{3}, {1, 2, 3}}, kF32};
  EXPECT_THAT(Error(extra),
              HasSubstr("tensor blk.2.ssm_extra [3] has no place in the model "
                        "that the metadata describes"));
  GgufModel shape = Model();
  Find(&shape, "blk.0.attn_gate.weight")->second.first.shape = {32, 128};
  EXPECT_THAT(Error(shape),
              HasSubstr("tensor blk.0.attn_gate.weight has shape [32, 128], "
                        "but the metadata asks for [64, 64]"));
  GgufModel conv = Model();
  Find(&conv, "blk.0.ssm_conv1d.weight")->second.first.shape = {4, 128};
  EXPECT_THAT(Error(conv), HasSubstr("blk.0.ssm_conv1d.weight has shape"));
  GgufModel infinite = Model();
  Find(&infinite, "blk.0.ssm_out.weight")->second.first.values[70] = INFINITY;
  EXPECT_THAT(Error(infinite),
              HasSubstr("tensor blk.0.ssm_out.weight gives inf at element 70"));
}

// What exporters that leave -exp() out write, zero, and what is no number.
TEST_F(RefusalTest, DecaysThatAreNotBelowZero) {
  for (const auto& [value, text] :
       std::vector<std::pair<float, std::string>>{{0.5f, "holds 0.5"},
                                                  {0.0f, "holds 0"},
                                                  {-0.0f, "holds -0"},
                                                  {NAN, "gives nan"},
                                                  {-INFINITY, "gives -inf"}}) {
    GgufModel model = Model();
    Find(&model, "blk.1.ssm_a")->second.first.values[2] = value;
    EXPECT_THAT(Error(model),
                HasSubstr(absl::StrCat("model.gguf: tensor blk.1.ssm_a ", text,
                                       " at element 2; ")));
  }
}

TEST_F(RefusalTest, NamesAreFitForATerminal) {
  const std::string name = "a\x1B[2J\n\x9B" + std::string(100000, 'x');
  const auto check = [&](const GgufModel& model, const std::string& before) {
    const std::string error = Error(model);
    EXPECT_THAT(error, HasSubstr(before + "a\\033[2J\\n\\233xxx"));
    EXPECT_LT(error.size(), 1000u);
    EXPECT_EQ(error.find_first_of("\n\x1B\x9B"), std::string::npos);
  };
  GgufModel tensor = Model();
  tensor.tensors[name] = {{{3}, {1, 2, 3}}, kF32};
  check(tensor, "tensor ");
  GgufModel key = Model();
  key.keys.U32("qwen35." + name, 1);
  check(key, "qwen35.");
  key.keys.U32("qwen35." + name, 1);
  check(key, "key \"qwen35.");
}

TEST_F(RefusalTest, KeysThatAreNotKnown) {
  GgufModel model = Model();
  model.keys.F32("qwen35.logit_scale", 0.5f);
  EXPECT_THAT(Error(model),
              HasSubstr("model.gguf: qwen35.logit_scale = 0.5 is not known and "
                        "may change what the model computes"));
  const TempFolder temp;
  ConvertOptions options;
  options.input = model.Write(temp);
  options.output = temp / "out.gdn";
  options.ignore_unknown_keys = true;
  const auto summary = ConvertCheckpoint(options);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->name, "model");
  EXPECT_THAT(
      summary->notes,
      Contains("qwen35.logit_scale = 0.5 is not known and was ignored"));
}

TEST_F(RefusalTest, KeysBesideTheArchitecturesThatAreNotKnown) {
  const auto with = [&](const std::function<void(GgufWriter*)>& change) {
    GgufModel model = Model();
    change(&model.keys);
    return Error(model);
  };
  for (const std::string key :
       {"tokenizer.ggml.normalizer.lowercase",
        "tokenizer.ggml.remove_extra_whitespaces",
        "tokenizer.ggml.add_sep_token", "clip.has_vision_encoder"}) {
    EXPECT_THAT(with([&](GgufWriter* k) { k->Bool(key, true); }),
                HasSubstr(key + " = true is not known"));
    EXPECT_EQ(with([&](GgufWriter* k) { k->Bool(key, false); }), "");
  }
  EXPECT_THAT(
      with([](GgufWriter* k) {
        k->Array("tokenizer.ggml.precompiled_charsmap", 0, 2, "ab");
      }),
      HasSubstr("tokenizer.ggml.precompiled_charsmap = [97,98] is not"));
  EXPECT_EQ(with([](GgufWriter* k) {
              k->Array("tokenizer.ggml.precompiled_charsmap", 0, 0, "");
            }),
            "");
  EXPECT_THAT(with([](GgufWriter* k) { k->Text("adapter.type", "lora"); }),
              HasSubstr("adapter.type = \"lora\" is not known"));
  // What real files have besides.
  EXPECT_EQ(with([](GgufWriter* k) {
              k->U32("tokenizer.ggml.padding_token_id", 3)
                  .U32("tokenizer.ggml.fim_pre_token_id", 4)
                  .Bool("tokenizer.ggml.add_bos_token", false)
                  .Text("tokenizer.chat_template.tool_use", "x")
                  .U32("general.quantization_version", 2)
                  .U32("quantize.imatrix.entries_count", 7);
            }),
            "");
}

TEST_F(RefusalTest, KeysThatSaySomethingElse) {
  const auto with = [&](const std::function<void(GgufWriter*)>& change) {
    GgufModel model = Model();
    change(&model.keys);
    return Error(model);
  };
  EXPECT_THAT(
      with([](GgufWriter* k) { k->Text("qwen35.rope.scaling.type", "yarn"); }),
      HasSubstr("qwen35.rope.scaling.type is \"yarn\"; only \"none\""));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->Bool("qwen35.attention.causal", false); }),
      HasSubstr("qwen35.attention.causal is false; only true is supported"));
  EXPECT_EQ(
      with([](GgufWriter* k) { k->Bool("qwen35.attention.causal", true); }),
      "");
  EXPECT_THAT(with([](GgufWriter* k) { k->Bool("qwen35.scaled", false); }),
              HasSubstr("qwen35.scaled = false is not known"));
  for (const char* key : {"qwen35.vocab_size", "qwen35.expert_gating_func",
                          "qwen35.expert_weights_norm"}) {
    EXPECT_THAT(with([&](GgufWriter* k) { k->F32(key, NAN); }),
                HasSubstr(absl::StrCat(key, " is null; only ")));
  }
  EXPECT_THAT(with([](GgufWriter* k) { k->U32("qwen35.vocab_size", 500); }),
              HasSubstr("qwen35.vocab_size is 500; only 512"));
  EXPECT_THAT(with([](GgufWriter* k) { k->Text("general.type", "adapter"); }),
              HasSubstr("general.type is \"adapter\"; only \"model\""));
  EXPECT_THAT(with([](GgufWriter* k) {
                k->Bools("qwen35.attention.recurrent_layers", {true});
              }),
              HasSubstr("qwen35.attention.recurrent_layers is [true]; a list "
                        "of 8 truth values"));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->U32("qwen35.full_attention_interval", 3); }),
      HasSubstr("tensor blk.2.attn_q.weight is missing"));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->U32("qwen35.full_attention_interval", 0); }),
      HasSubstr("full_attention_interval is 0; at least 1"));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->U32("qwen35.nextn_predict_layers", 8); }),
      HasSubstr("nextn_predict_layers is 8; the model has 8 layers"));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->U32("tokenizer.ggml.eot_token_id", 512); }),
      HasSubstr("tokenizer.ggml.eot_token_id is 512; ids are 0 to 511"));
  EXPECT_THAT(
      with([](GgufWriter* k) { k->Text("tokenizer.ggml.model", "llama"); }),
      HasSubstr("tokenizer.ggml.model is \"llama\""));
}

TEST_F(RefusalTest, FilesThatAreNoModelOfThisKind) {
  GgufModel other;
  other.keys.Text("general.architecture", "llama");
  EXPECT_THAT(Error(other),
              HasSubstr("general.architecture is \"llama\"; supported are "
                        "qwen35, qwen35moe, qwen3next and dflash"));
  EXPECT_THAT(Error(GgufModel()), HasSubstr("general.architecture is missing"));
  GgufModel bare;
  bare.keys.Text("general.architecture", "qwen35");
  bare.tensors["token_embd.weight"] = {{{2, 2}, {1, 2, 3, 4}}, kF32};
  EXPECT_THAT(Error(bare), HasSubstr("qwen35.embedding_length is missing"));
  const TempFolder temp;
  EXPECT_THAT(Convert(temp.Write("x", "not a checkpoint"), temp / "out.gdn")
                  .status()
                  .message(),
              HasSubstr("does not begin with \"GGUF\""));
}

// Which ids end texts, and where a stop that the file does not name comes from.
TEST(GgufConvertTest, EndTokensComeFromTheKeysAndTheVocabulary) {
  const TempFolder temp;
  GgufModel model = Exporter(Golden("tiny-qwen35"), "qwen35", kF32).Target();
  std::vector<std::string> tokens(512, "x");
  std::vector<int32_t> types(512, 5);
  tokens[200] = "<|endoftext|>";
  types[200] = 3;
  model.keys.U32("tokenizer.ggml.eot_token_id", 77)
      .U32("tokenizer.ggml.eom_token_id", 77)
      .Texts("tokenizer.ggml.tokens", tokens)
      .I32s("tokenizer.ggml.token_type", types);
  ASSERT_TRUE(Convert(model.Write(temp), temp / "out.gdn").ok());
  const auto file = ModelFile::Open(temp / "out.gdn");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->stop_tokens(), ::testing::ElementsAre(1, 77, 200));
}

}  // namespace
}  // namespace deltaedge
