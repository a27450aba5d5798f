// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/shapes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"

namespace deltaedge {
namespace {

// What models of this kind differ in.
struct Shape {
  const char* name;
  int32_t vocab, hidden;
  int32_t intermediate;  // Of MLPs; of the draft's where there are experts.
  int32_t layers;
  int32_t query_heads, kv_heads;  // Of 256.
  int32_t value_heads;            // Of gated delta layers; of 128.
  bool tied;
  int32_t draft_layers;
  int32_t draft_query_heads, draft_kv_heads;  // Of 128.
  // In all layers, each of kExpertSize, the shared one too. 0: none.
  int32_t experts, experts_per_token;
};

constexpr int32_t kVocab = 248320;
constexpr int32_t kNextVocab = 151936;
constexpr int32_t kExpertSize = 512;

constexpr Shape kShapes[] = {
    {"qwen3.5-0.8b", kVocab, 1024, 3584, 24, 8, 2, 16, true, 5, 16, 8, 0, 0},
    {"qwen3.5-2b", kVocab, 2048, 6144, 24, 8, 2, 16, true, 5, 16, 8, 0, 0},
    {"qwen3.5-4b", kVocab, 2560, 9216, 32, 16, 4, 32, true, 5, 32, 8, 0, 0},
    {"qwen3.5-9b", kVocab, 4096, 12288, 32, 16, 4, 32, false, 5, 32, 8, 0, 0},
    {"qwen3.5-27b", kVocab, 5120, 17408, 64, 24, 4, 48, false, 5, 32, 8, 0, 0},
    {"qwen3.5-35b-a3b", kVocab, 2048, 6144, 40, 16, 2, 32, false, 8, 32, 4, 256,
     8},
    {"qwen3-next-80b-a3b", kNextVocab, 2048, 6144, 48, 16, 2, 32, false, 8, 32,
     4, 512, 10},
};

constexpr float kRmsNormEps = 1e-6f;
constexpr double kRopeTheta = 1e7;

absl::StatusOr<Shape> Find(absl::string_view name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return shape;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is no known shape; known are ",
      absl::StrJoin(kShapes, ", ", [](std::string* out, const Shape& shape) {
        absl::StrAppend(out, shape.name);
      })));
}

}  // namespace

absl::StatusOr<TargetConfig> TargetShape(absl::string_view name) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, Find(name));
  TargetConfig config;
  config.name = shape.name;
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.max_context = 262144;
  config.rms_norm_eps = kRmsNormEps;
  config.tied_head = shape.tied;
  config.gdn = {/*key_heads=*/16, shape.value_heads, /*key_dim=*/128,
                /*value_dim=*/128, /*conv_width=*/4};
  config.attention = {shape.query_heads, shape.kv_heads, /*head_dim=*/256,
                      /*rotary_dim=*/64, kRopeTheta};
  for (int32_t i = 0; i < shape.layers; ++i) {
    config.layers.push_back(i % 4 == 3 ? LayerKind::kFullAttention
                                       : LayerKind::kGatedDeltaNet);
  }
  if (shape.experts == 0) {
    config.intermediate_size = shape.intermediate;
    return config;
  }
  config.moe = {shape.experts,
                shape.experts_per_token,
                kExpertSize,
                /*shared_size=*/kExpertSize,
                /*normalise=*/true,
                std::vector<bool>(config.layers.size(), true)};
  return config;
}

void KeepLayers(int32_t layers, TargetConfig* config) {
  config->layers.resize(layers);
  MoeConfig& moe = config->moe;
  if (moe.experts == 0) return;
  moe.layers.resize(layers);
  const auto sparse = std::count(moe.layers.begin(), moe.layers.end(), true);
  if (sparse == layers) config->intermediate_size = 0;
  if (sparse == 0) moe = MoeConfig();
}

absl::StatusOr<DraftConfig> DraftShape(absl::string_view name,
                                       int32_t target_layers) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, Find(name));
  DraftConfig config;
  config.name = absl::StrCat(shape.name, "-dflash");
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.block_size = 16;
  // Among the last rows of the embedding table, which no text uses.
  config.mask_token = shape.vocab == kVocab ? 248070 : shape.vocab - 1;
  config.rms_norm_eps = kRmsNormEps;
  config.attention = {shape.draft_query_heads, shape.draft_kv_heads,
                      /*head_dim=*/128, /*rotary_dim=*/128, kRopeTheta};
  config.layers.resize(shape.draft_layers);
  config.target_layer_count = target_layers;
  // From layer 1 to the third before the end, as published drafts have them.
  const int32_t taps = std::min(5, std::max(1, target_layers - 3));
  for (int32_t i = 0; i < taps; ++i) {
    config.target_layers.push_back(
        taps == 1 ? target_layers / 2
                  : static_cast<int32_t>(std::nearbyint(
                        1.0 + i * (target_layers - 4.0) / (taps - 1))));
  }
  return config;
}

}  // namespace deltaedge
