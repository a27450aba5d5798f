// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/layer_products.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "engine/base/fp_mode.h"
#include "engine/base/huge_page_arena.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/ops/row_check.h"

namespace deltaedge {

namespace {

constexpr int32_t kLayersOfAKind = 3;

// As the model groups them (engine/graph/target_model.cc, mlp.cc).
std::vector<std::vector<MatrixView>> Groups(const TargetLayerWeights& layer) {
  std::vector<std::vector<MatrixView>> groups;
  if (layer.gdn.in_qkv.data == nullptr) {
    const AttentionWeights& w = layer.attention;
    groups = {{w.q, w.k, w.v}, {w.out}};
  } else {
    const GdnWeights& w = layer.gdn;
    if (w.in_qkv.type == w.in_b.type) {
      groups = {{w.in_qkv, w.in_z, w.in_b, w.in_a}, {w.out}};
    } else {
      groups = {{w.in_qkv, w.in_z}, {w.in_b, w.in_a}, {w.out}};
    }
  }
  groups.push_back({layer.mlp.gate, layer.mlp.up});
  groups.push_back({layer.mlp.down});
  return groups;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerProducts>> LayerProducts::Create(
    const ModelFile& target, int32_t max_rows, int threads) {
  const ScopedFpMode fp_mode;
  std::unique_ptr<LayerProducts> made(new LayerProducts());
  DELTAEDGE_ASSIGN_OR_RETURN(made->pool_, ThreadPool::Create(threads));
  DELTAEDGE_ASSIGN_OR_RETURN(
      LinearOptions options,
      FindLinearOptions(target.weight_types(), made->pool_->get()));
  options.arena = std::make_shared<HugePageArena>();
  const std::vector<LayerKind>& kinds = target.target_config().layers;
  int32_t widest_in = 0, widest_out = 0;
  for (const LayerKind kind :
       {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention}) {
    const auto count =
        static_cast<int32_t>(std::count(kinds.begin(), kinds.end(), kind));
    const int32_t copies = std::min(kLayersOfAKind, count);
    for (size_t i = 0, copied = 0; static_cast<int32_t>(copied) < copies; ++i) {
      if (kinds[i] != kind) continue;
      ++copied;
      for (const auto& parts : Groups(target.target_weights().layers[i])) {
        Product product;
        DELTAEDGE_ASSIGN_OR_RETURN(product.linear,
                                   Linear::Create(parts, "product", options));
        product.times = 1.0 * count / copies;
        widest_in = std::max(widest_in, product.linear->in_features());
        widest_out = std::max(widest_out, product.linear->out_features());
        made->products_.push_back(std::move(product));
      }
    }
  }
  target.EvictWeights();
  DELTAEDGE_ASSIGN_OR_RETURN(made->input_,
                             LinearInput::Allocate(max_rows, widest_in));
  DELTAEDGE_ASSIGN_OR_RETURN(
      made->x_,
      AlignedArray<float>::Allocate(int64_t{max_rows} * widest_in, "inputs"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      made->y_,
      AlignedArray<float>::Allocate(int64_t{max_rows} * widest_out, "outputs"));
  uint32_t state = 1;
  std::generate_n(made->x_.data(), made->x_.size(), [&state] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  });
  return made;
}

absl::Duration LayerProducts::Run(int32_t rows) {
  using Clock = std::chrono::steady_clock;
  const ScopedFpMode fp_mode;
  absl::Duration time;
  for (const Product& product : products_) {
    input_.Set(x_.data(), rows, product.linear->in_features());
    input_.Quantize(pool_->get());
    const Clock::time_point start = Clock::now();
    product.linear->Run(input_, y_.data(), pool_->get());
    time += absl::FromChrono(Clock::now() - start) * product.times;
  }
  pool_->Rest();
  return time;
}

}  // namespace deltaedge
