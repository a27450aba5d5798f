// SPDX-License-Identifier: Apache-2.0
//
// Writes a checkpoint in the layout and sizes of a published one, all of whose
// numbers are zero: files of gigabytes that are holes and take no disk.
//
//   sparse_checkpoint --shape=qwen3.5-4b [--layers=N] --output=FOLDER

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/tensor_list.h"
#include "nlohmann/json.hpp"
#include "tests/tools/convert/safetensors_writer.h"
#include "tools/make_random/shapes.h"

ABSL_FLAG(std::string, shape, "", "sizes of a published model. Required");
ABSL_FLAG(int32_t, layers, 0, "keep this many layers only, the first. 0: all");
ABSL_FLAG(std::string, output, "", "the folder to make. Required");

namespace deltaedge {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "model.language_model.";
// Of one file, like published ones.
constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

// Names in a model file and in a published one, behind the layer's.
constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
    {"embedding", "embed_tokens.weight"},
    {"final_norm", "norm.weight"},
    {"input_norm", "input_layernorm.weight"},
    {"post_norm", "post_attention_layernorm.weight"},
    {"gdn.in_qkv", "linear_attn.in_proj_qkv.weight"},
    {"gdn.in_z", "linear_attn.in_proj_z.weight"},
    {"gdn.in_b", "linear_attn.in_proj_b.weight"},
    {"gdn.in_a", "linear_attn.in_proj_a.weight"},
    {"gdn.conv", "linear_attn.conv1d.weight"},
    {"gdn.neg_exp_a", "linear_attn.A_log"},
    {"gdn.dt_bias", "linear_attn.dt_bias"},
    {"gdn.norm", "linear_attn.norm.weight"},
    {"gdn.out", "linear_attn.out_proj.weight"},
    {"attention.q", "self_attn.q_proj.weight"},
    {"attention.k", "self_attn.k_proj.weight"},
    {"attention.v", "self_attn.v_proj.weight"},
    {"attention.q_norm", "self_attn.q_norm.weight"},
    {"attention.k_norm", "self_attn.k_norm.weight"},
    {"attention.out", "self_attn.o_proj.weight"},
    {"mlp.gate", "mlp.gate_proj.weight"},
    {"mlp.up", "mlp.up_proj.weight"},
    {"mlp.down", "mlp.down_proj.weight"},
    {"moe.router", "mlp.gate.weight"},
    {"moe.shared_router", "mlp.shared_expert_gate.weight"},
    {"moe.gate_up", "mlp.experts.gate_up_proj"},
    {"moe.down", "mlp.experts.down_proj"},
    {"moe.shared.gate", "mlp.shared_expert.gate_proj.weight"},
    {"moe.shared.up", "mlp.shared_expert.up_proj.weight"},
    {"moe.shared.down", "mlp.shared_expert.down_proj.weight"},
};

std::string PublishedName(absl::string_view ours) {
  if (ours == "head") return "lm_head.weight";
  std::string layer;
  if (absl::StartsWith(ours, "layers.")) {
    const size_t end = ours.find('.', 7) + 1;
    layer = std::string(ours.substr(0, end));
    ours.remove_prefix(end);
  }
  for (const auto& [name, published] : kNames) {
    if (name == ours) return absl::StrCat(kPrefix, layer, published);
  }
  return "";
}

std::vector<int64_t> PublishedShape(const TensorSpec& spec,
                                    const TargetConfig& config) {
  std::vector<int64_t> shape(spec.shape.begin(), spec.shape.end());
  if (absl::EndsWith(spec.name, "gdn.conv")) return {shape[1], 1, shape[0]};
  if (absl::EndsWith(spec.name, "moe.gate_up") ||
      absl::EndsWith(spec.name, "moe.down")) {
    const int64_t experts = config.moe.experts;
    return {experts, shape[0] / experts, shape[1]};
  }
  return shape;
}

Json PublishedConfig(const TargetConfig& config) {
  const bool sparse = config.moe.experts > 0;
  Json types = Json::array();
  for (const LayerKind kind : config.layers) {
    types.push_back(kind == LayerKind::kFullAttention ? "full_attention"
                                                      : "linear_attention");
  }
  const AttentionConfig& attention = config.attention;
  Json text = {{"model_type", sparse ? "qwen3_5_moe_text" : "qwen3_5_text"},
               {"vocab_size", config.vocab_size},
               {"hidden_size", config.hidden_size},
               {"num_hidden_layers", config.layers.size()},
               {"layer_types", types},
               {"max_position_embeddings", config.max_context},
               {"rms_norm_eps", config.rms_norm_eps},
               {"hidden_act", "silu"},
               {"num_attention_heads", attention.query_heads},
               {"num_key_value_heads", attention.kv_heads},
               {"head_dim", attention.head_dim},
               {"rope_parameters",
                {{"rope_type", "default"},
                 {"rope_theta", attention.rope_theta},
                 {"partial_rotary_factor",
                  1.0 * attention.rotary_dim / attention.head_dim}}},
               {"linear_num_key_heads", config.gdn.key_heads},
               {"linear_num_value_heads", config.gdn.value_heads},
               {"linear_key_head_dim", config.gdn.key_dim},
               {"linear_value_head_dim", config.gdn.value_dim},
               {"linear_conv_kernel_dim", config.gdn.conv_width}};
  if (sparse) {
    text["num_experts"] = config.moe.experts;
    text["num_experts_per_tok"] = config.moe.experts_per_token;
    text["moe_intermediate_size"] = config.moe.expert_size;
    text["shared_expert_intermediate_size"] = config.moe.shared_size;
  } else {
    text["intermediate_size"] = config.intermediate_size;
  }
  return {{"architectures",
           {sparse ? "Qwen3_5MoeForConditionalGeneration"
                   : "Qwen3_5ForConditionalGeneration"}},
          {"model_type", sparse ? "qwen3_5_moe" : "qwen3_5"},
          {"tie_word_embeddings", config.tied_head},
          {"text_config", text}};
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return file.good() ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("cannot write ", path));
}

// A file of `header` and `data_bytes` of zeros.
absl::Status WriteShard(const std::string& path, const Json& header,
                        int64_t data_bytes) {
  const std::string text = header.dump();
  DELTAEDGE_RETURN_IF_ERROR(
      WriteText(path, testing::SafetensorsBytes(text, "")));
  if (truncate(path.c_str(),
               static_cast<off_t>(8 + text.size()) + data_bytes) != 0) {
    return absl::ErrnoToStatus(errno, path);
  }
  return absl::OkStatus();
}

absl::Status Run() {
  const std::string folder = absl::GetFlag(FLAGS_output);
  if (folder.empty()) return absl::InvalidArgumentError("--output is missing");
  DELTAEDGE_ASSIGN_OR_RETURN(TargetConfig config,
                             TargetShape(absl::GetFlag(FLAGS_shape)));
  const int32_t layers = absl::GetFlag(FLAGS_layers);
  if (layers > 0) KeepLayers(layers, &config);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  DELTAEDGE_RETURN_IF_ERROR(
      WriteText(folder + "/config.json", PublishedConfig(config).dump(1)));

  Json map = Json::object(), header = Json::object();
  int64_t end = 0;
  int shards = 0;
  const auto name = [&] {
    return absl::StrFormat("model.safetensors-%05d.safetensors", shards);
  };
  const auto finish = [&] {
    const absl::Status written =
        WriteShard(absl::StrCat(folder, "/", name()), header, end);
    header = Json::object();
    end = 0;
    ++shards;
    return written;
  };
  for (const TensorSpec& spec : TensorSpecs(config)) {
    const bool wide = absl::EndsWith(spec.name, "gdn.neg_exp_a") ||
                      absl::EndsWith(spec.name, "gdn.norm");
    int64_t bytes = wide ? 4 : 2;
    for (const int32_t extent : spec.shape) bytes *= extent;
    if (end > 0 && end + bytes > kMaxShardBytes) {
      DELTAEDGE_RETURN_IF_ERROR(finish());
    }
    header[PublishedName(spec.name)] = {{"dtype", wide ? "F32" : "BF16"},
                                        {"shape", PublishedShape(spec, config)},
                                        {"data_offsets", {end, end + bytes}}};
    map[PublishedName(spec.name)] = name();
    end += bytes;
  }
  DELTAEDGE_RETURN_IF_ERROR(finish());
  return WriteText(folder + "/model.safetensors.index.json",
                   Json{{"weight_map", map}}.dump(1));
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = deltaedge::Run();
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "error: %s\n", status.message());
  return EXIT_FAILURE;
}
