// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/draft_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/graph/launch.h"
#include "engine/graph/mlp.h"
#include "engine/ops/linear.h"
#include "kernels/act/act.h"
#include "kernels/attn/attention.h"
#include "kernels/logits/argmax.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace deltaedge {

namespace {

struct Layer {
  const DraftLayerWeights* weights = nullptr;
  int32_t sliding_window = 0;
  std::unique_ptr<Linear> q;
  std::unique_ptr<Linear> kv;  // k | v, of context and block alike.
  std::unique_ptr<Linear> out;
  std::unique_ptr<Mlp> mlp;
};

bool Cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

// Keys that a row at `position` sees (docs/models.md 2.3); the block ends
// before `end`.
KeyRange VisibleKeys(int32_t window, SlidingMask mask, int64_t position,
                     int64_t end) {
  if (window == 0) return {0, end};
  const int64_t begin = std::max<int64_t>(0, position - window + 1);
  if (mask == SlidingMask::kCausal) return {begin, position + 1};
  return {begin, std::min<int64_t>(end, position + window)};
}

}  // namespace

KvShape DraftKvShape(const DraftConfig& config, int64_t capacity) {
  KvShape shape;
  shape.layers = static_cast<int32_t>(config.layers.size());
  shape.key_floats = KvKeyFloats(config.attention.kv_heads,
                                 config.attention.head_dim, capacity);
  shape.value_floats = KvValueFloats(config.attention.kv_heads,
                                     config.attention.head_dim, capacity);
  return shape;
}

class DraftModel::Impl {
 public:
  Impl(const DraftConfig& config, const DraftWeights& weights,
       TargetModel* target, int32_t max_rows, const LinearOptions& options,
       pthreadpool_t pool)
      : config_(config),
        weights_(weights),
        target_(target),
        max_rows_(max_rows),
        options_(options),
        pool_(pool) {}

  absl::Status Init() {
    const int64_t hidden = config_.hidden_size;
    const AttentionConfig& attention = config_.attention;
    const int64_t block = config_.block_size;
    const auto allocate = [this](int64_t floats, AlignedArray<float>* array) {
      absl::StatusOr<AlignedArray<float>> allocated =
          AlignedArray<float>::Allocate(floats, "draft activations");
      if (allocated.ok()) *array = *std::move(allocated);
      scratch_bytes_ += floats * static_cast<int64_t>(sizeof(float));
      return allocated.status();
    };
    DELTAEDGE_RETURN_IF_ERROR(allocate(max_rows_ * hidden, &context_));
    DELTAEDGE_RETURN_IF_ERROR(
        allocate(int64_t{max_rows_} * 2 * attention.keys(), &kv_));
    DELTAEDGE_RETURN_IF_ERROR(
        allocate(int64_t{max_rows_} * attention.rotary_dim / 2, &cos_));
    DELTAEDGE_RETURN_IF_ERROR(
        allocate(int64_t{max_rows_} * attention.rotary_dim / 2, &sin_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * hidden, &x_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * hidden, &h_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * hidden, &y_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * attention.queries(), &q_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * attention.queries(), &mixed_));
    DELTAEDGE_RETURN_IF_ERROR(allocate(block * config_.vocab_size, &logits_));
    DELTAEDGE_ASSIGN_OR_RETURN(
        mlp_,
        MlpScratch::Allocate(config_.block_size, config_.intermediate_size));
    scratch_bytes_ += mlp_.bytes();
    ranges_.resize(config_.block_size);
    best_.resize(config_.block_size);
    tokens_.resize(config_.block_size);

    DELTAEDGE_ASSIGN_OR_RETURN(
        fc_, Linear::Create({weights_.fc}, "draft.fc", options_));
    packed_bytes_ += fc_->packed_bytes();
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      Layer layer;
      layer.weights = &weights_.layers[i];
      layer.sliding_window = config_.layers[i].sliding_window;
      const AttentionWeights& w = layer.weights->attention;
      DELTAEDGE_ASSIGN_OR_RETURN(layer.q,
                                 Linear::Create({w.q}, "draft.q", options_));
      DELTAEDGE_ASSIGN_OR_RETURN(
          layer.kv, Linear::Create({w.k, w.v}, "draft.kv", options_));
      DELTAEDGE_ASSIGN_OR_RETURN(
          layer.out, Linear::Create({w.out}, "draft.out", options_));
      DELTAEDGE_ASSIGN_OR_RETURN(Mlp mlp,
                                 Mlp::Create(layer.weights->mlp, options_));
      layer.mlp = std::make_unique<Mlp>(std::move(mlp));
      packed_bytes_ += layer.q->packed_bytes() + layer.kv->packed_bytes() +
                       layer.out->packed_bytes() + layer.mlp->packed_bytes();
      layers_.push_back(std::move(layer));
    }
    return absl::OkStatus();
  }

  absl::Status Inject(const float* taps, int64_t position, int32_t rows,
                      int64_t capacity, KvStore* kv,
                      const std::atomic<bool>* cancel) {
    const int32_t hidden = config_.hidden_size;
    const int32_t features = fc_->in_features();
    while (rows > 0) {
      const int32_t chunk = std::min(rows, max_rows_);
      if (Cancelled(cancel)) return absl::CancelledError("cancelled");
      DELTAEDGE_RETURN_IF_ERROR(
          fc_->Run(taps, chunk, context_.data(), PoolFor(*fc_, chunk, pool_)));
      RmsNorm(chunk, hidden, context_.data(), hidden, weights_.hidden_norm,
              config_.rms_norm_eps, context_.data(), hidden,
              Pool(int64_t{chunk} * hidden));
      if (trace_ != nullptr) {
        trace_->context.insert(trace_->context.end(), context_.data(),
                               context_.data() + int64_t{chunk} * hidden);
      }
      RopeRows(position, chunk);
      for (size_t i = 0; i < layers_.size(); ++i) {
        if (Cancelled(cancel)) return absl::CancelledError("cancelled");
        DELTAEDGE_RETURN_IF_ERROR(WriteKeys(static_cast<int32_t>(i),
                                            context_.data(), position, chunk,
                                            capacity, kv));
      }
      taps += int64_t{chunk} * features;
      position += chunk;
      rows -= chunk;
    }
    return absl::OkStatus();
  }

  absl::Status Draft(TokenId anchor, int64_t position, int32_t drafts,
                     int64_t capacity, KvStore* kv,
                     const std::atomic<bool>* cancel, float* logits,
                     TokenId* out) {
    const int32_t rows = 1 + drafts;
    const int32_t hidden = config_.hidden_size;
    const AttentionConfig& attention = config_.attention;
    const int32_t dim = attention.head_dim;
    std::fill(tokens_.begin(), tokens_.end(), config_.mask_token);
    tokens_[0] = anchor;
    float* x = x_.data();
    target_->Embed(absl::MakeConstSpan(tokens_.data(), rows), x);
    RopeRows(position, rows);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (Cancelled(cancel)) return absl::CancelledError("cancelled");
      Layer& layer = layers_[i];
      const AttentionWeights& w = layer.weights->attention;
      RmsNorm(rows, hidden, x, hidden, layer.weights->input_norm,
              config_.rms_norm_eps, h_.data(), hidden,
              Pool(int64_t{rows} * hidden));
      DELTAEDGE_RETURN_IF_ERROR(layer.q->Run(h_.data(), rows, q_.data(),
                                             PoolFor(*layer.q, rows, pool_)));
      RmsNormHeads(rows, attention.query_heads, dim, q_.data(),
                   attention.queries(), dim, w.q_norm, config_.rms_norm_eps,
                   q_.data(), attention.queries(), dim,
                   Pool(int64_t{rows} * attention.queries()));
      RopeApply(rows, attention.query_heads, attention.rotary_dim, q_.data(),
                attention.queries(), dim, cos_.data(), sin_.data(),
                Pool(int64_t{rows} * attention.queries()));
      DELTAEDGE_RETURN_IF_ERROR(WriteKeys(static_cast<int32_t>(i), h_.data(),
                                          position, rows, capacity, kv));
      for (int32_t t = 0; t < rows; ++t) {
        ranges_[t] = VisibleKeys(layer.sliding_window, config_.sliding_mask,
                                 position + t, position + rows);
      }
      AttentionBlock block = {};
      block.rows = rows;
      block.q_heads = attention.query_heads;
      block.kv = View(static_cast<int32_t>(i), capacity, kv);
      block.q = q_.data();
      block.q_row_stride = attention.queries();
      block.q_head_stride = dim;
      block.range = ranges_.data();
      block.scale = static_cast<float>(1.0 / std::sqrt(double{1} * dim));
      block.out = mixed_.data();
      block.out_row_stride = attention.queries();
      AttentionForward(block,
                       Pool(rows * (position + rows) * attention.queries()));
      DELTAEDGE_RETURN_IF_ERROR(layer.out->Run(
          mixed_.data(), rows, y_.data(), PoolFor(*layer.out, rows, pool_)));
      AddRows(rows, hidden, x, hidden, y_.data(), hidden,
              Pool(int64_t{rows} * hidden));
      RmsNorm(rows, hidden, x, hidden, layer.weights->post_norm,
              config_.rms_norm_eps, h_.data(), hidden,
              Pool(int64_t{rows} * hidden));
      DELTAEDGE_RETURN_IF_ERROR(
          layer.mlp->Run(h_.data(), rows, &mlp_, y_.data(), pool_));
      AddRows(rows, hidden, x, hidden, y_.data(), hidden,
              Pool(int64_t{rows} * hidden));
      if (trace_ != nullptr) {
        trace_->hidden.emplace_back(x, x + int64_t{rows} * hidden);
      }
    }
    RmsNorm(rows, hidden, x, hidden, weights_.final_norm, config_.rms_norm_eps,
            h_.data(), hidden, Pool(int64_t{rows} * hidden));
    if (trace_ != nullptr) {
      trace_->final_hidden.assign(h_.data(),
                                  h_.data() + int64_t{rows} * hidden);
    }
    // Row 0 is the anchor's; row i guesses the token at its own position.
    float* scores = logits != nullptr ? logits : logits_.data();
    DELTAEDGE_RETURN_IF_ERROR(
        target_->Head(h_.data() + hidden, drafts, scores));
    ArgMaxRows(drafts, config_.vocab_size, scores, config_.vocab_size,
               best_.data(), Pool(int64_t{drafts} * config_.vocab_size));
    for (int32_t t = 0; t < drafts; ++t) out[t] = best_[t].index;
    return absl::OkStatus();
  }

  const DraftConfig config_;
  int64_t packed_bytes_ = 0;
  int64_t scratch_bytes_ = 0;
  Trace* trace_ = nullptr;

 private:
  KvView View(int32_t layer, int64_t capacity, KvStore* kv) const {
    return {kv->keys(layer), kv->values(layer), config_.attention.kv_heads,
            config_.attention.head_dim, capacity};
  }

  pthreadpool_t Pool(int64_t elements) const {
    return PoolFor(elements, pool_);
  }

  void RopeRows(int64_t position, int32_t rows) {
    RopeTable(position, rows, config_.attention.rotary_dim,
              config_.attention.rope_theta, cos_.data(), sin_.data());
  }

  absl::Status WriteKeys(int32_t index, const float* x, int64_t position,
                         int32_t rows, int64_t capacity, KvStore* kv) {
    Layer& layer = layers_[index];
    const AttentionConfig& attention = config_.attention;
    const int64_t width = layer.kv->out_features();
    DELTAEDGE_RETURN_IF_ERROR(
        layer.kv->Run(x, rows, kv_.data(), PoolFor(*layer.kv, rows, pool_)));
    RmsNormHeads(rows, attention.kv_heads, attention.head_dim, kv_.data(),
                 width, attention.head_dim, layer.weights->attention.k_norm,
                 config_.rms_norm_eps, kv_.data(), width, attention.head_dim,
                 Pool(int64_t{rows} * attention.keys()));
    RopeApply(rows, attention.kv_heads, attention.rotary_dim, kv_.data(), width,
              attention.head_dim, cos_.data(), sin_.data(),
              Pool(int64_t{rows} * attention.keys()));
    KvWrite(View(index, capacity, kv), position, rows, kv_.data(), width,
            kv_.data() + attention.keys(), width);
    return absl::OkStatus();
  }

  const DraftWeights weights_;
  TargetModel* const target_;
  const int32_t max_rows_;
  const LinearOptions options_;
  const pthreadpool_t pool_;
  std::unique_ptr<Linear> fc_;
  std::vector<Layer> layers_;

  AlignedArray<float> context_;    // [max_rows, H]
  AlignedArray<float> kv_;         // [max_rows, 2 * Hkv * D]
  AlignedArray<float> cos_, sin_;  // [max_rows, rotary_dim / 2]
  AlignedArray<float> x_, h_, y_;  // [block, H]
  AlignedArray<float> q_, mixed_;  // [block, Hq * D]
  AlignedArray<float> logits_;     // [block, vocab_size]
  MlpScratch mlp_;
  std::vector<KeyRange> ranges_;  // [block]
  std::vector<ArgMax> best_;      // [block]
  std::vector<TokenId> tokens_;   // [block]
};

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(
    const DraftConfig& config, const DraftWeights& weights, TargetModel* target,
    int32_t max_rows, const LinearOptions& options, pthreadpool_t pool) {
  auto impl = std::make_unique<Impl>(config, weights, target,
                                     std::max(max_rows, config.block_size),
                                     options, pool);
  DELTAEDGE_RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<DraftModel>(new DraftModel(std::move(impl)));
}

DraftModel::DraftModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DraftModel::~DraftModel() = default;

absl::Status DraftModel::Inject(const float* taps, int64_t position,
                                int32_t rows, int64_t capacity, KvStore* kv,
                                const std::atomic<bool>* cancel) {
  return impl_->Inject(taps, position, rows, capacity, kv, cancel);
}

absl::Status DraftModel::Draft(TokenId anchor, int64_t position, int32_t drafts,
                               int64_t capacity, KvStore* kv,
                               const std::atomic<bool>* cancel, float* logits,
                               TokenId* out) {
  return impl_->Draft(anchor, position, drafts, capacity, kv, cancel, logits,
                      out);
}

void DraftModel::set_trace(Trace* trace) { impl_->trace_ = trace; }
const DraftConfig& DraftModel::config() const { return impl_->config_; }
int64_t DraftModel::packed_bytes() const { return impl_->packed_bytes_; }
int64_t DraftModel::scratch_bytes() const { return impl_->scratch_bytes_; }

}  // namespace deltaedge
