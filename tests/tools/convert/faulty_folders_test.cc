// SPDX-License-Identifier: Apache-2.0

// Folders in the layouts in which checkpoints are published, with one thing
// wrong in each: the conversion says which, by file, name and value, and leaves
// nothing behind.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/safetensors_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/convert.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using testing::ReadBytes;
using testing::SafetensorsBytes;
using testing::SafetensorsWriter;
using testing::TempFolder;

constexpr char kGoldens[] = "tests/testdata/golden/";
constexpr char kDemo[] = "examples/chat/model/target/";
constexpr char kIndex[] = "model.safetensors.index.json";

// A copy of a checkpoint's folder, to be damaged.
class Folder {
 public:
  explicit Folder(const std::string& source) {
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && !absl::StrContains(name, "golden") &&
          !absl::StrContains(name, "rigged")) {
        folder_.Write(name, ReadBytes(entry.path().string()));
      }
    }
  }

  const std::string& path() const { return folder_.path(); }
  std::string Bytes(const std::string& file) const {
    return ReadBytes(folder_ / file);
  }
  void Write(const std::string& file, const std::string& bytes) const {
    folder_.Write(file, bytes);
  }
  void Remove(const std::string& file) const {
    ASSERT_TRUE(std::filesystem::remove(folder_ / file)) << file;
  }

  Json Parsed(const std::string& file) const {
    return Json::parse(Bytes(file));
  }
  // Sets `pointer` in a JSON file to `value`, JSON too; empty: removes what is
  // there, of an object.
  void Edit(const std::string& file, const std::string& pointer,
            const std::string& value) const {
    Json json = Parsed(file);
    const Json::json_pointer at(pointer);
    if (value.empty()) {
      ASSERT_EQ(json[at.parent_pointer()].erase(at.back()), 1u) << pointer;
    } else {
      json[at] = Json::parse(value);
    }
    Write(file, json.dump());
  }

  // The file that holds a tensor.
  std::string ShardOf(const std::string& tensor) const {
    if (!std::filesystem::exists(folder_ / kIndex)) return "model.safetensors";
    return Parsed(kIndex)["weight_map"].at(tensor);
  }
  // Changes what the header of its file says of a tensor.
  void EditEntry(const std::string& tensor,
                 const std::function<void(Json*)>& change) const {
    const std::string shard = ShardOf(tensor);
    auto [header, data] = Split(Bytes(shard));
    change(&header.at(tensor));
    Write(shard, SafetensorsBytes(header.dump(), data));
  }
  // Gives it another name, or none: then it is gone from the index too, and its
  // bytes are those of a tensor of the vision tower.
  void Rename(const std::string& tensor, const std::string& to) const {
    const std::string shard = ShardOf(tensor);
    const std::string name = to.empty() ? "model.visual.instead" : to;
    auto [header, data] = Split(Bytes(shard));
    header[name] = header.at(tensor);
    header.erase(tensor);
    Write(shard, SafetensorsBytes(header.dump(), data));
    if (shard == "model.safetensors") return;
    Json index = Parsed(kIndex);
    index["weight_map"].erase(tensor);
    index["weight_map"][name] = shard;
    Write(kIndex, index.dump());
  }
  // Replaces `bytes` of a tensor from its byte `offset`.
  void Overwrite(const std::string& tensor, size_t offset,
                 const std::string& bytes) const {
    const std::string shard = ShardOf(tensor);
    auto [header, data] = Split(Bytes(shard));
    const size_t begin = header.at(tensor)["data_offsets"][0];
    Write(shard,
          SafetensorsBytes(header.dump(),
                           data.replace(begin + offset, bytes.size(), bytes)));
  }

  size_t FileCount() const { return folder_.FileCount(); }

 private:
  static std::pair<Json, std::string> Split(const std::string& file) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    return {Json::parse(file.substr(8, header_bytes)),
            file.substr(8 + header_bytes)};
  }

  TempFolder folder_;
};

struct Fault {
  const char* what;
  std::function<void(const Folder&)> make;
  std::vector<std::string> words;  // All of them are in the error.
};

Fault Edited(const char* what, const std::string& pointer,
             const std::string& value, std::vector<std::string> words,
             const std::string& file = "config.json") {
  words.push_back(file);
  return {what,
          [=](const Folder& folder) { folder.Edit(file, pointer, value); },
          std::move(words)};
}

// Of config.json, but what is wrong is noticed elsewhere.
Fault Misled(const char* what, const std::string& pointer,
             const std::string& value, std::vector<std::string> words) {
  return {
      what,
      [=](const Folder& folder) { folder.Edit("config.json", pointer, value); },
      std::move(words)};
}

absl::StatusOr<ConvertSummary> Convert(const std::string& input,
                                       const std::string& output,
                                       const std::string& target = "") {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  options.target = target;
  return ConvertCheckpoint(options);
}

void ExpectRefused(const std::string& source, const std::vector<Fault>& faults,
                   const std::string& target = "") {
  const TempFolder out;
  const Folder sound(source);
  const auto whole = Convert(sound.path(), out / "sound.gdn", target);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.what);
    const Folder folder(source);
    fault.make(folder);
    const size_t files = folder.FileCount();
    const auto summary = Convert(folder.path(), out / "faulty.gdn", target);
    EXPECT_FALSE(summary.ok());
    // Nothing of a model file, neither in its place nor beside it.
    EXPECT_EQ(out.FileCount(), 1u);
    EXPECT_EQ(folder.FileCount(), files);
    for (const std::string& word : fault.words) {
      EXPECT_THAT(summary.status().message(), HasSubstr(word));
    }
  }
}

TEST(FaultyFoldersTest, Config) {
  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen35-published"),
      {
          {"no config",
           [](const Folder& folder) { folder.Remove("config.json"); },
           {"config.json"}},
          {"an empty config",
           [](const Folder& folder) { folder.Write("config.json", ""); },
           {"config.json", "not sound JSON"}},
          {"a config that is cut",
           [](const Folder& folder) {
             folder.Write("config.json",
                          folder.Bytes("config.json").substr(0, 900));
           },
           {"config.json", "not sound JSON"}},
          {"a list",
           [](const Folder& folder) { folder.Write("config.json", "[1]"); },
           {"config.json", "not an object"}},
          Edited("another model", "/architectures", R"(["LlamaForCausalLM"])",
                 {"architectures", "LlamaForCausalLM", "supported are",
                  "Qwen3_5ForConditionalGeneration"}),
          Edited("an older model", "/architectures",
                 R"(["Qwen3MoeForCausalLM"])", {"Qwen3MoeForCausalLM"}),
          Edited("a draft of a later kind", "/architectures",
                 R"(["DFlash2DraftModel"])",
                 {"DFlash2DraftModel", "not supported yet"}),
          Edited("a type that is not the architecture's",
                 "/text_config/model_type", R"("qwen3_5_moe_text")",
                 {"text_config.model_type", "qwen3_5_moe_text"}),
          Edited("no text model", "/text_config", "",
                 {"vocab_size is missing"}),
          Edited("a text model that is none", "/text_config", "[]",
                 {"text_config is []"}),
          Edited("quantised to 8 bits", "/quantization_config",
                 R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
                 {"quantization_config", "fp8", "quantised"}),
          Edited("quantised within", "/text_config/quantization_config",
                 R"({"quant_method": "awq", "bits": 4})",
                 {"text_config.quantization_config", "awq"}),
          Edited("quantised for another framework", "/quantization",
                 R"({"group_size": 64, "bits": 4})",
                 {"quantization is", "quantised"}),
          Edited("scaled angles", "/text_config/rope_parameters/rope_type",
                 R"("yarn")",
                 {"text_config.rope_parameters.rope_type is \"yarn\"",
                  "\"default\""}),
          Edited("angles scaled at the old place", "/text_config/rope_scaling",
                 R"({"type": "linear", "factor": 2.0})",
                 {"text_config.rope_scaling.type is \"linear\""}),
          Edited("a factor without a type",
                 "/text_config/rope_parameters/factor", "4.0",
                 {"text_config.rope_parameters.factor = 4.0"}),
          Edited("two thetas", "/text_config/rope_theta", "1e6",
                 {"text_config.rope_theta is", "rope_parameters.rope_theta"}),
          Edited("another gate", "/text_config/output_gate_type", R"("swish")",
                 {"output_gate_type is \"swish\"", "sigmoid"}),
          Edited("no gate", "/text_config/attn_output_gate", "false",
                 {"attn_output_gate is false"}),
          Edited("biases", "/text_config/attention_bias", "true",
                 {"attention_bias is true"}),
          Edited("another activation", "/text_config/hidden_act", R"("gelu")",
                 {"hidden_act is \"gelu\""}),
          Edited("another convolution", "/text_config/linear_conv_kernel_dim",
                 "3", {"linear_conv_kernel_dim is 3", "4"}),
          Edited("states of bfloat16", "/text_config/mamba_ssm_dtype",
                 R"("bfloat16")", {"mamba_ssm_dtype"}),
          Edited("a kind of layer that is not known",
                 "/text_config/layer_types/2", R"("mamba")",
                 {"layer_types[2] is \"mamba\""}),
          Edited("a layer too few", "/text_config/layer_types",
                 R"(["linear_attention", "full_attention"])",
                 {"layer_types has 2 entries", "num_hidden_layers is 8"}),
          Edited("neither types nor interval of layers", "/text_config",
                 [] {
                   Json text = Json::parse(ReadBytes(absl::StrCat(
                       kGoldens,
                       "tiny-qwen35-published/config.json")))["text_config"];
                   text.erase("layer_types");
                   text.erase("full_attention_interval");
                   return text.dump();
                 }(),
                 {"layer_types is missing", "full_attention_interval"}),
          Edited("heads that do not divide",
                 "/text_config/linear_num_value_heads", "5",
                 {"linear_num_value_heads is 5", "linear_num_key_heads"}),
          Edited("a vocabulary of text", "/text_config/vocab_size", R"("512")",
                 {"text_config.vocab_size is \"512\""}),
          Edited("an end token beyond the vocabulary",
                 "/text_config/eos_token_id", "[1, 512]",
                 {"text_config.eos_token_id[1] is 512", "0 to 511"}),
          Edited("two flags that disagree", "/tie_word_embeddings", "false",
                 {"tie_word_embeddings is false",
                  "text_config.tie_word_embeddings"}),
          Edited("a key that would steer a terminal", "/text_config/a\x1B[2J\n",
                 "1", {"text_config.a\\033[2J\\n = 1", "not known"}),
          Edited("a key that nobody knows", "/text_config/residual_multiplier",
                 "0.22",
                 {"text_config.residual_multiplier = 0.22", "not known",
                  "ignore_unknown_keys"}),
          {"an end token beyond the vocabulary, elsewhere",
           [](const Folder& folder) {
             folder.Write("generation_config.json",
                          R"({"eos_token_id": [1, 600]})");
           },
           {"generation_config.json", "eos_token_id[1] is 600"}},
          {"settings that are no JSON",
           [](const Folder& folder) {
             folder.Write("generation_config.json", "{");
           },
           {"generation_config.json", "not sound JSON"}},
      });
}

TEST(FaultyFoldersTest, Shards) {
  const std::string shard = "model.safetensors-00002-of-00003.safetensors";
  const std::string norm = "model.language_model.norm.weight";
  const std::string a_log = "model.language_model.layers.0.linear_attn.A_log";
  const std::string gate = "model.language_model.layers.3.mlp.gate_proj.weight";
  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen35-published"),
      {
          {"no index",
           [](const Folder& folder) { folder.Remove(kIndex); },
           {"neither model.safetensors nor model.safetensors.index.json"}},
          {"an index that is cut",
           [](const Folder& folder) {
             folder.Write(kIndex, folder.Bytes(kIndex).substr(0, 1000));
           },
           {kIndex, "not sound JSON"}},
          Edited("an index without a map", "/weight_map", "", {"weight_map"},
                 kIndex),
          Edited("a shard elsewhere", "/weight_map/" + norm,
                 R"("../other.safetensors")",
                 {norm, "../other.safetensors", "no file name"}, kIndex),
          Edited("a tensor that is not where the index says",
                 "/weight_map/" + norm,
                 "\"model.safetensors-00001-of-00003.safetensors\"",
                 {norm, "is not in"}, kIndex),
          Edited("a tensor that no shard has",
                 "/weight_map/model.language_model.more", "\"" + shard + "\"",
                 {"model.language_model.more", "is not in"}, kIndex),
          Edited("a tensor that the index does not list", "/weight_map/" + norm,
                 "", {norm, "not listed"}, kIndex),
          {"a shard less",
           [&](const Folder& folder) { folder.Remove(shard); },
           {shard, "is missing"}},
          {"a shard cut by a byte",
           [&](const Folder& folder) {
             const std::string bytes = folder.Bytes(shard);
             folder.Write(shard, bytes.substr(0, bytes.size() - 1));
           },
           {shard, "ends at data byte", "but the file has"}},
          {"a shard cut in its header",
           [&](const Folder& folder) {
             folder.Write(shard, folder.Bytes(shard).substr(0, 100));
           },
           {shard, "cut short"}},
          {"an empty shard",
           [&](const Folder& folder) { folder.Write(shard, ""); },
           {shard, "0 bytes"}},
          {"a download of a pointer",
           [&](const Folder& folder) {
             folder.Write(shard,
                          "version https://git-lfs.example/spec/v1\n"
                          "oid sha256:0123456789abcdef\nsize 5000000000\n");
           },
           {shard, "Git LFS"}},
          {"a download of an error",
           [&](const Folder& folder) {
             folder.Write(shard, "<html><body>404 Not Found</body></html>");
           },
           {shard, "no safetensors file"}},
          {"a missing tensor",
           [&](const Folder& folder) { folder.Rename(gate, ""); },
           {gate, "is missing", "[128, 64]"}},
          {"a tensor of another name",
           [&](const Folder& folder) {
             folder.Rename(gate, "model.language_model.layers.3.mlp.w1");
           },
           {gate, "is missing"}},
          {"a tensor too many",
           [](const Folder& folder) {
             folder.Rename("mtp.norm.weight",
                           "model.language_model.layers.0.mlp.bias");
           },
           {"model.language_model.layers.0.mlp.bias", "has no place"}},
          {"a name that would steer a terminal",
           [](const Folder& folder) {
             folder.Rename("mtp.norm.weight", "a\x1B[2J\n");
           },
           {"tensor a\\033[2J\\n [64] has no place"}},
          {"weights of 8 bits",
           [&](const Folder& folder) {
             folder.EditEntry(gate, [](Json* entry) {
               (*entry)["dtype"] = "F8_E4M3";
               (*entry)["shape"] = {256, 64};
             });
           },
           {gate, "F8_E4M3", "BF16, F16 and F32"}},
          {"integers",
           [&](const Folder& folder) {
             folder.EditEntry(gate,
                              [](Json* entry) { (*entry)["dtype"] = "I16"; });
           },
           {gate, "I16"}},
          {"another shape of the same size",
           [&](const Folder& folder) {
             folder.EditEntry(gate, [](Json* entry) {
               (*entry)["shape"] = {64, 128};
             });
           },
           {gate, "[64, 128]", "[128, 64]"}},
          {"a shape of another size",
           [&](const Folder& folder) {
             folder.EditEntry(gate, [](Json* entry) {
               (*entry)["shape"] = {128, 63};
             });
           },
           {gate, "[128, 63]", "data_offsets span 16384"}},
          {"a tensor in two shards",
           [&](const Folder& folder) {
             folder.Write("model.safetensors-00003-of-00003.safetensors",
                          folder.Bytes(shard));
           },
           {"is also in", shard}},
          {"infinite decay",
           [&](const Folder& folder) {
             const float big = 200.0f;
             folder.Overwrite(
                 a_log, 4, std::string(reinterpret_cast<const char*>(&big), 4));
           },
           {a_log, "-inf", "element 1"}},
          {"a weight that is no number",
           [&](const Folder& folder) {
             folder.Overwrite(gate, 2 * 77, "\xff\x7f");
           },
           {gate, "nan", "element 77"}},
          {"a head that is not the tied table",
           [](const Folder& folder) {
             SafetensorsWriter head;
             head.AddFloats("lm_head.weight", {512, 64},
                            std::vector<float>(512 * 64));
             folder.Write("head.safetensors", head.Bytes());
             folder.Edit(kIndex, "/weight_map/lm_head.weight",
                         R"("head.safetensors")");
           },
           {"lm_head.weight differs", "tie_word_embeddings is true"}},
      });

  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen35-untied-published"),
      {
          {"no head, though it is not tied",
           [](const Folder& folder) { folder.Rename("lm_head.weight", ""); },
           {"lm_head.weight is missing"}},
          {"tied, but with a head of its own",
           [](const Folder& folder) {
             folder.Edit("config.json", "/tie_word_embeddings", "true");
             folder.Edit("config.json", "/text_config/tie_word_embeddings",
                         "true");
           },
           {"lm_head.weight differs", "tie_word_embeddings is true"}},
      });
}

TEST(FaultyFoldersTest, Mixtures) {
  const std::string layer = "model.language_model.layers.1.mlp.";
  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen35moe-published"),
      {
          Misled("an expert more", "/text_config/num_experts", "9", {}),
          Edited("more for a token than there are",
                 "/text_config/num_experts_per_tok", "9",
                 {"experts_per_token is 9", "1 to 8"}),
          Edited("no size", "/text_config/moe_intermediate_size", "",
                 {"moe_intermediate_size is missing"}),
          Edited("weights as they come", "/text_config/norm_topk_prob", "false",
                 {"norm_topk_prob is false"}),
          Edited("a dense layer", "/text_config/mlp_only_layers", "[1]",
                 {"mlp_only_layers is [1]"}),
          Edited("groups of experts", "/text_config/n_group", "4",
                 {"text_config.n_group = 4", "not known"}),
          {"no router",
           [&](const Folder& folder) {
             folder.Rename(layer + "gate.weight", "");
           },
           {layer + "gate.weight is missing", "[8, 64]"}},
          {"no gate of the shared expert",
           [&](const Folder& folder) {
             folder.Rename(layer + "shared_expert_gate.weight", "");
           },
           {layer + "shared_expert_gate.weight is missing", "[1, 64]"}},
          {"experts turned",
           [&](const Folder& folder) {
             folder.EditEntry(layer + "experts.down_proj", [](Json* entry) {
               (*entry)["shape"] = {8, 32, 64};
             });
           },
           {layer + "experts.down_proj", "[8, 32, 64]", "[8, 64, 32]"}},
      });
  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen3next-moe"),
      {
          Edited("a layer that is not there", "/mlp_only_layers", "[4]",
                 {"mlp_only_layers holds layer 4", "0 to 3"}),
          Edited("a step of none", "/decoder_sparse_step", "0",
                 {"decoder_sparse_step is 0"}),
          Misled("another step", "/decoder_sparse_step", "2", {}),
          Misled("no dense layer", "/mlp_only_layers", "[]",
                 {"model.layers.1.mlp", "is missing"}),
          Misled("heads of another size", "/linear_key_head_dim", "8",
                 {"in_proj_qkvz.weight", "config.json asks for"}),
          {"an expert less",
           [](const Folder& folder) {
             folder.Rename("model.layers.2.mlp.experts.5.up_proj.weight", "");
           },
           {"model.layers.2.mlp.experts.5.up_proj.weight is missing"}},
          {"half of the interleaved pair",
           [](const Folder& folder) {
             folder.Rename("model.layers.0.linear_attn.in_proj_ba.weight", "");
           },
           {"model.layers.0.linear_attn", "is missing"}},
      });
}

TEST(FaultyFoldersTest, Tokenizers) {
  const std::string config = "tokenizer_config.json";
  ExpectRefused(
      kDemo,
      {
          {"a tokenizer that is cut",
           [](const Folder& folder) {
             folder.Write("tokenizer.json",
                          folder.Bytes("tokenizer.json").substr(0, 5000));
           },
           {"tokenizer.json"}},
          Edited("another kind", "/model/type", R"("Unigram")",
                 {"Unigram", "BPE"}, "tokenizer.json"),
          Edited("another normal form", "/normalizer/type", R"("NFKC")",
                 {"NFKC"}, "tokenizer.json"),
          Edited("more ids than embeddings", "/added_tokens/-",
                 R"({"id": 4096, "content": "<|more|>", "single_word": false,
                     "lstrip": false, "rstrip": false, "normalized": false,
                     "special": true})",
                 {"has 4097 ids", "vocab_size is 4096"}, "tokenizer.json"),
          Misled("fewer embeddings than config.json says", "/vocab_size",
                 "5000",
                 {"embed_tokens.weight has shape [4096, 256]", "[5000, 256]"}),
          Edited("a template that nobody knows", "/chat_template",
                 R"("{{ messages[0].content }} and nothing else")",
                 {"ChatML", "no_chat"}, config),
          Edited("a template that is none", "/chat_template",
                 R"("{% for m in messages %}")", {"no_chat"}, config),
      });
}

// Case C18, in the folder that a draft is published in; what it says of the
// target is compared with the target.
TEST(FaultyFoldersTest, Drafts) {
  const TempFolder targets;
  ASSERT_TRUE(
      Convert(absl::StrCat(kGoldens, "tiny-qwen35"), targets / "target.gdn")
          .ok());
  const std::string taps = "/dflash_config/target_layer_ids";
  const std::string mask = "/dflash_config/mask_token_id";
  ExpectRefused(
      absl::StrCat(kGoldens, "tiny-qwen35-dflash"),
      {
          Edited("no mask", mask, "", {"mask_token_id is missing"}),
          Edited("a mask of -1", mask, "-1", {"mask_token_id is -1", "511"}),
          Edited("a mask beyond the vocabulary", mask, "512",
                 {"mask_token_id is 512", "511"}),
          Edited("a block of none", "/block_size", "0", {"block_size is 0"}),
          Edited("a block of an anchor", "/block_size", "1",
                 {"block_size is 1"}),
          Edited("no block", "/block_size", "", {"block_size is missing"}),
          Edited("taps beyond the target", taps, "[1, 3, 8]",
                 {"target_layer_ids holds layer 8", "0 to 7"}),
          Edited("no taps", taps, "[]", {"target_layers"}),
          Edited("a tap twice", taps, "[1, 3, 3]",
                 {"target_layers[2] is 3", "twice"}),
          Misled("another number of taps", taps, "[1, 3]",
                 {"fc.weight has shape [64, 192]", "[64, 128]"}),
          Edited(
              "a target of other layers", "/num_target_layers", "9",
              {"target_layer_count is 9", "its target's is 8", "target.gdn"}),
          Edited("another vocabulary", "/vocab_size", "600",
                 {"vocab_size is 600", "its target's is 512", "target.gdn"}),
          Edited("another width", "/hidden_size", "128",
                 {"hidden_size is 128", "its target's is 64", "target.gdn"}),
          Edited("a vocabulary of its own", "/draft_vocab_size", "256",
                 {"draft_vocab_size is 256"}),
          Edited("labels that are shifted", "/dflash_config/shift_label",
                 "true", {"dflash_config.shift_label is true"}),
          Edited("a later kind", "/architectures", R"(["DFlash2DraftModel"])",
                 {"DFlash2DraftModel"}),
          Edited("another kind", "/architectures", R"(["DSparkDraftModel"])",
                 {"DSparkDraftModel"}),
          Edited("a selector of candidates", "/dflash_config/selector_rank",
                 "256", {"dflash_config.selector_rank = 256"}),
          Edited("a scale of its input", "/input_embedding_scale", "8.0",
                 {"input_embedding_scale = 8.0"}),
          Edited("windows of another kind", "/dflash_config/swa_window_size",
                 "64", {"dflash_config.swa_window_size = 64"}),
          Edited("a window that is not used", "/layer_types/0",
                 R"("sliding_attention")",
                 {"use_sliding_window is false", "layer 0"}),
          Edited("scaled angles", "/rope_scaling",
                 R"({"rope_type": "yarn", "factor": 4})",
                 {"rope_scaling.rope_type is \"yarn\""}),
          Edited("quantised", "/quantization_config", R"({"bits": 8})",
                 {"quantization_config", "quantised"}),
          {"an embedding of its own for the mask",
           [](const Folder& folder) {
             folder.Write("mask_embedding.pt", "PK");
           },
           {"mask_embedding.pt", "not supported"}},
          {"no norm of the context",
           [](const Folder& folder) {
             folder.Rename("hidden_norm.weight", "");
           },
           {"hidden_norm.weight is missing", "[64]"}},
          {"features of another width",
           [](const Folder& folder) {
             folder.EditEntry("fc.weight", [](Json* entry) {
               (*entry)["shape"] = {96, 128};
             });
           },
           {"fc.weight has shape [96, 128]", "[64, 192]"}},
      },
      targets / "target.gdn");
}

}  // namespace
}  // namespace deltaedge
