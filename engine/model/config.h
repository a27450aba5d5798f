// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_CONFIG_H_
#define DELTAEDGE_ENGINE_MODEL_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/types.h"

namespace deltaedge {

// What a model is, as plain numbers: read from a model file, checked once by
// Validate(), trusted by everything above. No FlatBuffers in sight.

// Limits that Validate() sets: far above any published model, and low enough
// that a product of any few sizes fits int64_t and the rows and columns of any
// matrix fit int32_t.
inline constexpr int32_t kMaxVocabSize = 1 << 24;
inline constexpr int32_t kMaxWidth = 1 << 20;  // Hidden, intermediate.
inline constexpr int32_t kMaxLayers = 1024;
inline constexpr int32_t kMaxHeads = 1024;
inline constexpr int32_t kMaxHeadDim = 512;  // Attention; GDN values.
inline constexpr int32_t kMaxKeyDim = 256;   // GDN keys.
inline constexpr int32_t kMaxPositions = 1 << 26;
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxExpertSize = 1 << 19;
inline constexpr int32_t kMaxModelNameBytes = 256;
// Rows of the longest block that the engine runs: one anchor and its drafts.
inline constexpr int32_t kMaxBlockRows = 16;

// The mixer of one decoder layer.
enum class LayerKind {
  kGatedDeltaNet,  // Linear attention with a recurrent state
                   // (docs/models.md 1.4).
  kFullAttention,  // Gated soft-max attention with a KV cache
                   // (docs/models.md 1.3).
};

// Sizes of the gated delta rule, the same in every such layer.
struct GdnConfig {
  int32_t key_heads = 0;    // Hk
  int32_t value_heads = 0;  // Hv, a multiple of Hk
  int32_t key_dim = 0;      // Dk, of one head
  int32_t value_dim = 0;    // Dv, of one head
  int32_t conv_width = 0;   // Always 4: the convolution's taps.

  int32_t keys() const { return key_heads * key_dim; }
  int32_t values() const { return value_heads * value_dim; }
  // Channels of the convolution: q, k and v side by side.
  int32_t conv_channels() const { return 2 * keys() + values(); }
};

// Sizes of soft-max attention.
struct AttentionConfig {
  int32_t query_heads = 0;  // A multiple of kv_heads.
  int32_t kv_heads = 0;
  int32_t head_dim = 0;    // A multiple of 4.
  int32_t rotary_dim = 0;  // Leading components that are rotated; even.
  double rope_theta = 0;

  int32_t queries() const { return query_heads * head_dim; }
  int32_t keys() const { return kv_heads * head_dim; }
};

// A mixture of experts in place of the MLP (docs/models.md 1.6), the same in
// every layer that has one.
struct MoeConfig {
  int32_t experts = 0;            // E. 0: no layer has experts.
  int32_t experts_per_token = 0;  // That a token chooses.
  int32_t expert_size = 0;        // Im: inner width of one.
  int32_t shared_size = 0;        // Is: that of the one that all tokens share.
  bool normalise = false;         // Weights of the chosen add up to 1.
  // Whether a layer has experts: one entry per layer, or none if E is 0.
  std::vector<bool> layers;
};

// A Qwen3.5-style hybrid, dense or with experts.
struct TargetConfig {
  std::string name;         // For people: the checkpoint's own name, or empty.
  int32_t vocab_size = 0;   // Rows of the embedding table, padding included.
  int32_t hidden_size = 0;  // H
  int32_t intermediate_size = 0;  // 0: all layers have experts.
  int32_t max_context = 0;        // Positions the checkpoint was made for.
  float rms_norm_eps = 0;
  bool tied_head = false;  // The output matrix is the embedding table.
  GdnConfig gdn;
  AttentionConfig attention;
  std::vector<LayerKind> layers;
  MoeConfig moe;

  bool has_experts(size_t layer) const {
    return moe.experts > 0 && moe.layers[layer];
  }
};

// How far a sliding layer of a draft sees around a row at position p (W = the
// window): kCausal keys p-W+1 .. p; kSymmetric keys p-W+1 .. p+W-1, as far as
// the block goes (docs/models.md 2.3).
enum class SlidingMask { kCausal, kSymmetric };

// One layer of a draft: sliding_window 0 sees everything, later block rows
// included; with a causal mask, kMaxPositions sees everything before.
struct DraftLayerConfig {
  int32_t sliding_window = 0;
};

// A DFlash draft model (docs/models.md 2). Embedding table and output matrix
// are its target's.
struct DraftConfig {
  std::string name;
  int32_t vocab_size = 0;   // The target's.
  int32_t hidden_size = 0;  // The target's.
  int32_t intermediate_size = 0;
  // Rows of a block: 1 anchor and at most block_size - 1 drafts. 2 to
  // kMaxBlockRows.
  int32_t block_size = 0;
  TokenId mask_token = -1;  // -1: not known, which Validate() refuses.
  float rms_norm_eps = 0;
  AttentionConfig attention;
  SlidingMask sliding_mask = SlidingMask::kCausal;
  std::vector<DraftLayerConfig> layers;
  // Target layers whose output the draft reads, 0-based: the residual stream
  // after that layer (docs/models.md 2.1). In the order in which `fc` expects
  // them.
  std::vector<int32_t> target_layers;
  int32_t target_layer_count = 0;  // Layers of the target it was made for.
};

// InvalidArgument names the first unsound field, its value and what is allowed.
absl::Status Validate(const TargetConfig& config);
absl::Status Validate(const DraftConfig& config);
// Whether `draft` fits `target`: vocabulary, width, number of layers and with
// it the tapped ones. Both have passed Validate(). InvalidArgument names the
// field and both values.
absl::Status ValidatePair(const TargetConfig& target, const DraftConfig& draft);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_CONFIG_H_
