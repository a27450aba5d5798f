// SPDX-License-Identifier: Apache-2.0

#include "engine/model/tensor_list.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/checked_math.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "schema/header.h"

namespace deltaedge {
namespace {

class SlotList {
 public:
  void Matrix(absl::string_view name, int32_t rows, int32_t cols,
              MatrixView* matrix, TensorRole role = TensorRole::kMatrix) {
    slots_.push_back(
        {absl::StrCat(prefix_, name), {rows, cols}, matrix, nullptr, role});
  }
  void Floats(absl::string_view name, std::vector<int32_t> shape,
              const float** vector) {
    slots_.push_back({absl::StrCat(prefix_, name), std::move(shape), nullptr,
                      vector, TensorRole::kFloat});
  }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  std::vector<TensorSlot> Take() { return std::move(slots_); }

 private:
  std::string prefix_;
  std::vector<TensorSlot> slots_;
};

void AddGdn(const GdnConfig& gdn, int32_t hidden, GdnWeights* weights,
            SlotList* list) {
  list->Matrix("gdn.in_qkv", gdn.conv_channels(), hidden, &weights->in_qkv,
               TensorRole::kGdn);
  list->Matrix("gdn.in_z", gdn.values(), hidden, &weights->in_z,
               TensorRole::kGdn);
  list->Matrix("gdn.in_b", gdn.value_heads, hidden, &weights->in_b,
               TensorRole::kFloat);
  list->Matrix("gdn.in_a", gdn.value_heads, hidden, &weights->in_a,
               TensorRole::kFloat);
  list->Floats("gdn.conv", {gdn.conv_width, gdn.conv_channels()},
               &weights->conv);
  list->Floats("gdn.neg_exp_a", {gdn.value_heads}, &weights->neg_exp_a);
  list->Floats("gdn.dt_bias", {gdn.value_heads}, &weights->dt_bias);
  list->Floats("gdn.norm", {gdn.value_dim}, &weights->norm);
  list->Matrix("gdn.out", hidden, gdn.values(), &weights->out,
               TensorRole::kGdn);
}

void AddAttention(const AttentionConfig& attention, int32_t hidden,
                  int32_t query_rows, AttentionWeights* weights,
                  SlotList* list) {
  list->Matrix("attention.q", query_rows, hidden, &weights->q);
  list->Matrix("attention.k", attention.keys(), hidden, &weights->k);
  list->Matrix("attention.v", attention.keys(), hidden, &weights->v);
  list->Floats("attention.q_norm", {attention.head_dim}, &weights->q_norm);
  list->Floats("attention.k_norm", {attention.head_dim}, &weights->k_norm);
  list->Matrix("attention.out", hidden, attention.queries(), &weights->out);
}

void AddMlp(absl::string_view name, int32_t intermediate, int32_t hidden,
            MlpWeights* weights, SlotList* list) {
  list->Matrix(absl::StrCat(name, ".gate"), intermediate, hidden,
               &weights->gate);
  list->Matrix(absl::StrCat(name, ".up"), intermediate, hidden, &weights->up);
  list->Matrix(absl::StrCat(name, ".down"), hidden, intermediate,
               &weights->down);
}

void AddMoe(const MoeConfig& moe, int32_t hidden, MoeWeights* weights,
            SlotList* list) {
  list->Matrix("moe.router", moe.experts, hidden, &weights->router,
               TensorRole::kFloat);
  list->Matrix("moe.shared_router", 1, hidden, &weights->shared_router,
               TensorRole::kFloat);
  list->Matrix("moe.gate_up", moe.experts * 2 * moe.expert_size, hidden,
               &weights->gate_up, TensorRole::kExperts);
  list->Matrix("moe.down", moe.experts * hidden, moe.expert_size,
               &weights->down, TensorRole::kExperts);
  AddMlp("moe.shared", moe.shared_size, hidden, &weights->shared, list);
}

std::vector<TensorSpec> ToSpecs(std::vector<TensorSlot> slots) {
  std::vector<TensorSpec> specs;
  specs.reserve(slots.size());
  for (TensorSlot& slot : slots) {
    specs.push_back({std::move(slot.name), WeightType::kF32,
                     std::move(slot.shape), slot.role});
  }
  return specs;
}

}  // namespace

std::vector<TensorSlot> TensorSlots(const TargetConfig& config,
                                    TargetWeights* weights) {
  const int32_t hidden = config.hidden_size;
  weights->layers.resize(config.layers.size());
  SlotList list;
  list.Matrix("embedding", config.vocab_size, hidden, &weights->embedding,
              TensorRole::kHead);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    TargetLayerWeights& layer = weights->layers[i];
    list.set_prefix(absl::StrCat("layers.", i, "."));
    list.Floats("input_norm", {hidden}, &layer.input_norm);
    switch (config.layers[i]) {
      case LayerKind::kGatedDeltaNet:
        AddGdn(config.gdn, hidden, &layer.gdn, &list);
        break;
      case LayerKind::kFullAttention:
        AddAttention(config.attention, hidden, 2 * config.attention.queries(),
                     &layer.attention, &list);
        break;
    }
    list.Floats("post_norm", {hidden}, &layer.post_norm);
    if (config.has_experts(i)) {
      AddMoe(config.moe, hidden, &layer.moe, &list);
    } else {
      AddMlp("mlp", config.intermediate_size, hidden, &layer.mlp, &list);
    }
  }
  list.set_prefix("");
  list.Floats("final_norm", {hidden}, &weights->final_norm);
  if (!config.tied_head) {
    list.Matrix("head", config.vocab_size, hidden, &weights->head,
                TensorRole::kHead);
  }
  return list.Take();
}

std::vector<TensorSlot> TensorSlots(const DraftConfig& config,
                                    DraftWeights* weights) {
  const int32_t hidden = config.hidden_size;
  weights->layers.resize(config.layers.size());
  SlotList list;
  list.Matrix("fc", hidden,
              static_cast<int32_t>(config.target_layers.size()) * hidden,
              &weights->fc);
  list.Floats("hidden_norm", {hidden}, &weights->hidden_norm);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    DraftLayerWeights& layer = weights->layers[i];
    list.set_prefix(absl::StrCat("layers.", i, "."));
    list.Floats("input_norm", {hidden}, &layer.input_norm);
    AddAttention(config.attention, hidden, config.attention.queries(),
                 &layer.attention, &list);
    list.Floats("post_norm", {hidden}, &layer.post_norm);
    AddMlp("mlp", config.intermediate_size, hidden, &layer.mlp, &list);
  }
  list.set_prefix("");
  list.Floats("final_norm", {hidden}, &weights->final_norm);
  return list.Take();
}

std::vector<TensorSpec> TensorSpecs(const TargetConfig& config) {
  TargetWeights weights;
  return ToSpecs(TensorSlots(config, &weights));
}

std::vector<TensorSpec> TensorSpecs(const DraftConfig& config) {
  DraftWeights weights;
  return ToSpecs(TensorSlots(config, &weights));
}

std::optional<TensorLayout> LayoutOf(WeightType type,
                                     absl::Span<const int32_t> shape) {
  int64_t elements = 1;
  for (const int32_t dimension : shape) {
    if (dimension <= 0) return std::nullopt;
    const std::optional<int64_t> product = CheckedMul(elements, dimension);
    if (!product.has_value()) return std::nullopt;
    elements = *product;
  }
  const bool is_matrix = shape.size() == 2;
  TensorLayout layout;
  switch (type) {
    case WeightType::kF32: {
      const std::optional<int64_t> bytes = CheckedMul(elements, sizeof(float));
      if (!bytes.has_value()) return std::nullopt;
      layout.number_bytes = layout.scale_offset = *bytes;
      return layout;
    }
    case WeightType::kQ8:
    case WeightType::kQ8W:
      if (!is_matrix) return std::nullopt;
      layout.number_bytes = elements;
      layout.scale_bytes = int64_t{shape[0]} * sizeof(float);
      break;
    case WeightType::kQ4:
      if (!is_matrix || shape[1] % kQ4Block != 0) return std::nullopt;
      layout.number_bytes = elements / 2;
      layout.scale_bytes = elements / kQ4Block * sizeof(uint16_t);
      break;
    default:
      return std::nullopt;
  }
  const std::optional<int64_t> offset =
      CheckedRoundUp(layout.number_bytes, schema::kSegmentAlignment);
  if (!offset.has_value() ||
      !CheckedAdd(*offset, layout.scale_bytes).has_value()) {
    return std::nullopt;
  }
  layout.scale_offset = *offset;
  return layout;
}

std::optional<int64_t> TensorBytes(WeightType type,
                                   absl::Span<const int32_t> shape) {
  const std::optional<TensorLayout> layout = LayoutOf(type, shape);
  if (!layout.has_value()) return std::nullopt;
  return layout->size_bytes();
}

absl::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kUnknown:
      break;
    case WeightType::kF32:
      return "f32";
    case WeightType::kQ8:
      return "q8";
    case WeightType::kQ4:
      return "q4";
    case WeightType::kQ8W:
      return "q8w";
  }
  return "unknown";
}

std::string ShapeText(absl::Span<const int32_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace deltaedge
