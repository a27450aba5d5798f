// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/export_state.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "kernels/attn/attention.h"
#include "kernels/gdn/gdn_block.h"

namespace deltaedge {

namespace {

// Index of `layer` among the layers of its kind.
absl::StatusOr<int32_t> IndexOfKind(const TargetConfig& config, int32_t layer,
                                    LayerKind kind) {
  const int32_t layers = static_cast<int32_t>(config.layers.size());
  if (layer < 0 || layer >= layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " does not exist; the model has ", layers));
  }
  if (config.layers[layer] != kind) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " has ",
        kind == LayerKind::kGatedDeltaNet ? "keys and values, no state"
                                          : "a state, no keys and values"));
  }
  return static_cast<int32_t>(
      std::count(config.layers.begin(), config.layers.begin() + layer, kind));
}

}  // namespace

absl::Status ExportRecurrentState(const TargetConfig& config, int32_t layer,
                                  TargetSequence* sequence,
                                  std::vector<float>* state) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int32_t index,
      IndexOfKind(config, layer, LayerKind::kGatedDeltaNet));
  DELTAEDGE_ASSIGN_OR_RETURN(
      auto folded,
      AlignedArray<float>::Allocate(sequence->recurrent.shape().state_floats,
                                    "exported state"));
  CopyRecurrentState(config, sequence, sequence->cursor, index, folded.data(),
                     /*pool=*/nullptr);
  const GdnConfig& gdn = config.gdn;
  state->resize(int64_t{gdn.value_heads} * gdn.key_dim * gdn.value_dim);
  GdnExportState({gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim},
                 folded.data(), state->data());
  return absl::OkStatus();
}

absl::Status ExportConvColumns(const TargetConfig& config, int32_t layer,
                               TargetSequence* sequence,
                               std::vector<float>* columns) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int32_t index,
      IndexOfKind(config, layer, LayerKind::kGatedDeltaNet));
  RecurrentStore& store = sequence->recurrent;
  const int64_t channels = store.shape().column_floats;
  columns->assign(kWindowColumns * channels, 0.0f);
  for (int32_t i = 0; i < kWindowColumns; ++i) {
    const int64_t position = sequence->cursor.length() - kWindowColumns + i;
    if (position < 0) continue;
    std::memcpy(columns->data() + i * channels, store.column(index, position),
                channels * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status ExportKv(const TargetConfig& config, int32_t layer,
                      TargetSequence* sequence, std::vector<float>* keys,
                      std::vector<float>* values) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int32_t index,
      IndexOfKind(config, layer, LayerKind::kFullAttention));
  const AttentionConfig& attention = config.attention;
  const int64_t rows = sequence->cursor.length();
  const int64_t dim = attention.head_dim;
  const int64_t floats = rows * attention.keys();
  keys->resize(floats);
  values->resize(floats);
  if (rows == 0) return absl::OkStatus();
  std::vector<float> row_keys(floats), row_values(floats);
  KvRead(TargetKv(attention, sequence, index), 0, static_cast<int32_t>(rows),
         row_keys.data(), row_values.data());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < attention.kv_heads; ++head) {
      const int64_t from = (row * attention.kv_heads + head) * dim;
      const int64_t to = (head * rows + row) * dim;
      std::copy_n(row_keys.data() + from, dim, keys->data() + to);
      std::copy_n(row_values.data() + from, dim, values->data() + to);
    }
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
