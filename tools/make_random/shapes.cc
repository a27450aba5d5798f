// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/shapes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"

namespace deltaedge {
namespace {

struct Shape {
  const char* name;
  int32_t hidden, intermediate, layers;
  int32_t query_heads, kv_heads;  // Of 256.
  int32_t value_heads;            // Of gated delta layers; of 128.
  bool tied;
  int32_t draft_query_heads;  // Of 128.
};

constexpr Shape kShapes[] = {
    {"qwen3.5-0.8b", 1024, 3584, 24, 8, 2, 16, true, 16},
    {"qwen3.5-2b", 2048, 6144, 24, 8, 2, 16, true, 16},
    {"qwen3.5-4b", 2560, 9216, 32, 16, 4, 32, true, 32},
    {"qwen3.5-9b", 4096, 12288, 32, 16, 4, 32, false, 32},
    {"qwen3.5-27b", 5120, 17408, 64, 24, 4, 48, false, 32},
};

constexpr int32_t kVocabSize = 248320;
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
  config.vocab_size = kVocabSize;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
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
  return config;
}

absl::StatusOr<DraftConfig> DraftShape(absl::string_view name,
                                       int32_t target_layers) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, Find(name));
  DraftConfig config;
  config.name = absl::StrCat(shape.name, "-dflash");
  config.vocab_size = kVocabSize;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.block_size = 16;
  config.mask_token = 248070;
  config.rms_norm_eps = kRmsNormEps;
  config.attention = {shape.draft_query_heads, /*kv_heads=*/8,
                      /*head_dim=*/128, /*rotary_dim=*/128, kRopeTheta};
  config.layers.resize(5);
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
