// SPDX-License-Identifier: Apache-2.0

#include "engine/model/fingerprint.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/config.h"
#include "engine/model/tokenizer_tables.h"

namespace deltaedge {
namespace {

// FNV-1a, 64 bits, fed with the items of FORMAT.md.
class Hash {
 public:
  void Byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }
  void U32(uint32_t value) {
    for (int i = 0; i < 4; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void I32(int32_t value) { U32(static_cast<uint32_t>(value)); }
  void U64(uint64_t value) {
    U32(static_cast<uint32_t>(value));
    U32(static_cast<uint32_t>(value >> 32));
  }
  void F32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    U32(bits);
  }
  void F64(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    U64(bits);
  }
  void Text(absl::string_view text) {
    U64(text.size());
    for (const char c : text) Byte(static_cast<uint8_t>(c));
  }
  void Floats(absl::Span<const float> values) {
    U64(values.size());
    for (const float value : values) F32(value);
  }
  void Attention(const AttentionConfig& attention) {
    I32(attention.query_heads);
    I32(attention.kv_heads);
    I32(attention.head_dim);
    I32(attention.rotary_dim);
    F64(attention.rope_theta);
  }
  void Tokenizer(const TokenizerTables& tables) {
    U64(tables.token_bytes.size());
    for (const std::string& token : tables.token_bytes) Text(token);
    U64(tables.merges.size());
    for (const TokenizerTables::Merge& merge : tables.merges) {
      I32(merge.left);
      I32(merge.right);
      I32(merge.result);
    }
    U64(tables.added.size());
    for (const AddedToken& added : tables.added) {
      I32(added.id);
      Byte(added.special);
      Byte(added.single_word);
      Byte(added.lstrip);
      Byte(added.rstrip);
      Byte(added.normalized);
    }
    Text(tables.pretokenizer);
    Byte(tables.nfc);
    Byte(tables.ignore_merges);
  }

  // 0 means "none" in a file.
  uint64_t value() const { return hash_ == 0 ? 1 : hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

uint64_t TargetFingerprint(const TargetConfig& config,
                           const std::optional<TokenizerTables>& tokenizer,
                           absl::Span<const float> final_norm,
                           absl::Span<const float> first_rows,
                           absl::Span<const float> last_rows) {
  Hash hash;
  const MoeConfig& moe = config.moe;
  hash.Text(moe.experts > 0 ? "Qwen35Moe" : "Qwen35Dense");
  hash.I32(config.vocab_size);
  hash.I32(config.hidden_size);
  hash.I32(config.intermediate_size);
  hash.F32(config.rms_norm_eps);
  hash.Byte(config.tied_head);
  hash.I32(config.gdn.key_heads);
  hash.I32(config.gdn.value_heads);
  hash.I32(config.gdn.key_dim);
  hash.I32(config.gdn.value_dim);
  hash.I32(config.gdn.conv_width);
  hash.Attention(config.attention);
  hash.U64(config.layers.size());
  for (const LayerKind kind : config.layers) {
    hash.Byte(kind == LayerKind::kGatedDeltaNet ? 1 : 2);
  }
  if (moe.experts > 0) {
    hash.I32(moe.experts);
    hash.I32(moe.experts_per_token);
    hash.I32(moe.expert_size);
    hash.I32(moe.shared_size);
    hash.Byte(moe.normalise);
    for (const bool sparse : moe.layers) hash.Byte(sparse ? 2 : 1);
  }
  hash.Byte(tokenizer.has_value());
  if (tokenizer.has_value()) hash.Tokenizer(*tokenizer);
  hash.Floats(final_norm);
  hash.Floats(first_rows);
  hash.Floats(last_rows);
  return hash.value();
}

uint64_t DraftFingerprint(const DraftConfig& config,
                          uint64_t target_fingerprint,
                          absl::Span<const float> hidden_norm,
                          absl::Span<const float> final_norm,
                          absl::Span<const float> first_rows,
                          absl::Span<const float> last_rows) {
  Hash hash;
  hash.Text("DFlash");
  hash.I32(config.vocab_size);
  hash.I32(config.hidden_size);
  hash.I32(config.intermediate_size);
  hash.I32(config.block_size);
  hash.I32(config.mask_token);
  hash.F32(config.rms_norm_eps);
  hash.Attention(config.attention);
  hash.Byte(config.sliding_mask == SlidingMask::kCausal ? 1 : 2);
  hash.U64(config.layers.size());
  for (const DraftLayerConfig& layer : config.layers) {
    hash.I32(layer.sliding_window);
  }
  hash.U64(config.target_layers.size());
  for (const int32_t layer : config.target_layers) hash.I32(layer);
  hash.I32(config.target_layer_count);
  hash.U64(target_fingerprint);
  hash.Floats(hidden_norm);
  hash.Floats(final_norm);
  hash.Floats(first_rows);
  hash.Floats(last_rows);
  return hash.value();
}

}  // namespace deltaedge
