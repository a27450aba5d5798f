// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/draft_model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/graph/launch.h"
#include "engine/graph/mlp.h"
#include "engine/graph/rope_cache.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
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

absl::StatusOr<AlignedArray<float>> Floats(
    std::initializer_list<int64_t> shape) {
  return AlignedArray<float>::Allocate(shape, "draft activations");
}

// Neighbouring rows of one sequence among the rows of a call.
struct Segment {
  int64_t position = 0;
  int32_t rows = 0;
  int64_t capacity = 0;
  KvStore* kv = nullptr;
};

// Activations of the blocks of a pass, R rows.
struct PassBuffers {
  AlignedArray<float> x, h, y;   // [R, H]
  AlignedArray<float> q, mixed;  // [R, Hq * D]
  MlpScratch mlp;

  static absl::StatusOr<PassBuffers> Allocate(const DraftConfig& config,
                                              int32_t rows) {
    PassBuffers buffers;
    for (AlignedArray<float>* array : {&buffers.x, &buffers.h, &buffers.y}) {
      DELTAEDGE_ASSIGN_OR_RETURN(*array, Floats({rows, config.hidden_size}));
    }
    for (AlignedArray<float>* array : {&buffers.q, &buffers.mixed}) {
      DELTAEDGE_ASSIGN_OR_RETURN(*array,
                                 Floats({rows, config.attention.queries()}));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(
        buffers.mlp, MlpScratch::Allocate(rows, config.intermediate_size));
    return buffers;
  }

  int64_t bytes() const {
    return x.size_bytes() + h.size_bytes() + y.size_bytes() + q.size_bytes() +
           mixed.size_bytes() + mlp.bytes();
  }
};

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
    const AttentionConfig& attention = config_.attention;
    DELTAEDGE_ASSIGN_OR_RETURN(context_,
                               Floats({max_rows_, config_.hidden_size}));
    DELTAEDGE_ASSIGN_OR_RETURN(kv_, Floats({max_rows_, 2, attention.keys()}));
    DELTAEDGE_ASSIGN_OR_RETURN(cos_,
                               Floats({max_rows_, attention.rotary_dim / 2}));
    DELTAEDGE_ASSIGN_OR_RETURN(sin_,
                               Floats({max_rows_, attention.rotary_dim / 2}));
    DELTAEDGE_ASSIGN_OR_RETURN(
        rope_, RopeCache::Create(attention.rotary_dim, attention.rope_theta));
    const int32_t widest =
        std::max({weights_.fc.cols, attention.queries(),
                  static_cast<int32_t>(config_.intermediate_size)});
    DELTAEDGE_ASSIGN_OR_RETURN(input_,
                               LinearInput::Allocate(max_rows_, widest));
    DELTAEDGE_RETURN_IF_ERROR(ReservePass(config_.block_size));
    DELTAEDGE_ASSIGN_OR_RETURN(gathered_,
                               Floats({max_rows_, weights_.fc.cols}));
    chunk_.reserve(kMaxPassRows);
    segments_.reserve(kMaxPassRows);
    ranges_.resize(kMaxPassRows);
    best_.resize(kMaxPassRows);
    second_.resize(kMaxPassRows);
    tokens_.resize(kMaxPassRows);

    DELTAEDGE_ASSIGN_OR_RETURN(fc_,
                               Linear::Create({weights_.fc}, "fc", options_));
    packed_bytes_ += fc_->packed_bytes();
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      Layer layer;
      layer.weights = &weights_.layers[i];
      layer.sliding_window = config_.layers[i].sliding_window;
      const AttentionWeights& w = layer.weights->attention;
      const std::string name = absl::StrCat("layers.", i);
      DELTAEDGE_ASSIGN_OR_RETURN(
          layer.q, Linear::Create({w.q}, absl::StrCat(name, ".q"), options_));
      DELTAEDGE_ASSIGN_OR_RETURN(
          layer.kv,
          Linear::Create({w.k, w.v}, absl::StrCat(name, ".kv"), options_));
      DELTAEDGE_ASSIGN_OR_RETURN(
          layer.out,
          Linear::Create({w.out}, absl::StrCat(name, ".out"), options_));
      DELTAEDGE_ASSIGN_OR_RETURN(
          Mlp mlp, Mlp::Create(layer.weights->mlp, absl::StrCat(name, ".mlp"),
                               options_));
      layer.mlp = std::make_unique<Mlp>(std::move(mlp));
      packed_bytes_ += layer.q->packed_bytes() + layer.kv->packed_bytes() +
                       layer.out->packed_bytes() + layer.mlp->packed_bytes();
      layers_.push_back(std::move(layer));
    }
    return absl::OkStatus();
  }

  absl::Status Inject(absl::Span<const DraftInjection> injections,
                      CancelFlags cancel) {
    chunk_.clear();
    int32_t rows = 0;
    for (DraftInjection rest : injections) {
      while (rest.rows > 0) {
        DraftInjection& piece = chunk_.emplace_back(rest);
        piece.rows = std::min(rest.rows, max_rows_ - rows);
        rest.taps += int64_t{piece.rows} * fc_->in_features();
        rest.position += piece.rows;
        rest.rows -= piece.rows;
        rows += piece.rows;
        if (rows < max_rows_) continue;
        DELTAEDGE_RETURN_IF_ERROR(InjectChunk(chunk_, rows, cancel));
        chunk_.clear();
        rows = 0;
      }
    }
    return rows == 0 ? absl::OkStatus() : InjectChunk(chunk_, rows, cancel);
  }

  absl::Status Draft(absl::Span<const DraftRequest> requests,
                     CancelFlags cancel) {
    static_assert(kMaxBlockRows <= kMaxPassRows);
    while (!requests.empty()) {
      size_t count = 0;
      int32_t rows = 0;
      while (count < requests.size() &&
             rows + 1 + requests[count].drafts <= kMaxPassRows) {
        rows += 1 + requests[count++].drafts;
      }
      DELTAEDGE_RETURN_IF_ERROR(DraftPass(requests.first(count), rows, cancel));
      requests.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  int64_t scratch_bytes() const {
    return context_.size_bytes() + kv_.size_bytes() + cos_.size_bytes() +
           sin_.size_bytes() + rope_.bytes() + gathered_.size_bytes() +
           input_.bytes() + pass_.bytes();
  }

  const DraftConfig config_;
  int64_t packed_bytes_ = 0;
  Trace* trace_ = nullptr;

 private:
  absl::Status ReservePass(int32_t rows) {
    if (rows <= pass_rows_) return absl::OkStatus();
    rows = std::min(kMaxPassRows, std::max(rows, 2 * pass_rows_));
    DELTAEDGE_ASSIGN_OR_RETURN(pass_, PassBuffers::Allocate(config_, rows));
    pass_rows_ = rows;
    return absl::OkStatus();
  }

  // The tapped rows of `chunk`, one behind the other.
  const float* Gather(absl::Span<const DraftInjection> chunk) {
    if (chunk.size() == 1) return chunk[0].taps;
    const int64_t features = fc_->in_features();
    float* to = gathered_.data();
    for (const DraftInjection& piece : chunk) {
      to = std::copy_n(piece.taps, piece.rows * features, to);
    }
    return gathered_.data();
  }

  absl::Status InjectChunk(absl::Span<const DraftInjection> chunk, int32_t rows,
                           CancelFlags cancel) {
    if (cancel.cancelled()) return absl::CancelledError("cancelled");
    const int32_t hidden = config_.hidden_size;
    input_.Set(Gather(chunk), rows, fc_->in_features());
    Multiply(*fc_, context_.data());
    RmsNorm(rows, hidden, context_.data(), hidden, weights_.hidden_norm,
            config_.rms_norm_eps, context_.data(), hidden,
            Pool(int64_t{rows} * hidden));
    if (trace_ != nullptr) {
      trace_->context.insert(trace_->context.end(), context_.data(),
                             context_.data() + int64_t{rows} * hidden);
    }
    segments_.clear();
    for (const DraftInjection& piece : chunk) {
      segments_.push_back(
          {piece.position, piece.rows, piece.capacity, piece.kv});
    }
    RopeRows();
    input_.Set(context_.data(), rows, hidden);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (cancel.cancelled()) return absl::CancelledError("cancelled");
      WriteKeys(static_cast<int32_t>(i));
    }
    return absl::OkStatus();
  }

  absl::Status DraftPass(absl::Span<const DraftRequest> requests, int32_t rows,
                         CancelFlags cancel) {
    DELTAEDGE_RETURN_IF_ERROR(ReservePass(rows));
    const int32_t hidden = config_.hidden_size;
    const AttentionConfig& attention = config_.attention;
    const int32_t dim = attention.head_dim;
    float* x = pass_.x.data();
    float* h = pass_.h.data();
    float* y = pass_.y.data();
    float* q = pass_.q.data();
    segments_.clear();
    std::fill(tokens_.begin(), tokens_.end(), config_.mask_token);
    int32_t row = 0;
    for (const DraftRequest& request : requests) {
      segments_.push_back(
          {request.position, 1 + request.drafts, request.capacity, request.kv});
      tokens_[row] = request.anchor;
      row += 1 + request.drafts;
    }
    target_->Embed(absl::MakeConstSpan(tokens_.data(), rows), x);
    RopeRows();
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (cancel.cancelled()) return absl::CancelledError("cancelled");
      Layer& layer = layers_[i];
      RmsNorm(rows, hidden, x, hidden, layer.weights->input_norm,
              config_.rms_norm_eps, h, hidden, Pool(int64_t{rows} * hidden));
      input_.Set(h, rows, hidden);
      Multiply(*layer.q, q);
      RmsNormHeads(rows, attention.query_heads, dim, q, attention.queries(),
                   dim, layer.weights->attention.q_norm, config_.rms_norm_eps,
                   q, attention.queries(), dim,
                   Pool(int64_t{rows} * attention.queries()));
      RopeApply(rows, attention.query_heads, attention.rotary_dim, q,
                attention.queries(), dim, cos_.data(), sin_.data(),
                Pool(int64_t{rows} * attention.queries()));
      WriteKeys(static_cast<int32_t>(i));
      Attend(static_cast<int32_t>(i));
      input_.Set(pass_.mixed.data(), rows, layer.out->in_features());
      Multiply(*layer.out, y);
      AddRows(rows, hidden, x, hidden, y, hidden, Pool(int64_t{rows} * hidden));
      RmsNorm(rows, hidden, x, hidden, layer.weights->post_norm,
              config_.rms_norm_eps, h, hidden, Pool(int64_t{rows} * hidden));
      layer.mlp->Run(h, rows, &input_, &pass_.mlp, y, pool_);
      AddRows(rows, hidden, x, hidden, y, hidden, Pool(int64_t{rows} * hidden));
      if (trace_ != nullptr) {
        trace_->hidden.emplace_back(x, x + int64_t{rows} * hidden);
      }
    }
    RmsNorm(rows, hidden, x, hidden, weights_.final_norm, config_.rms_norm_eps,
            h, hidden, Pool(int64_t{rows} * hidden));
    if (trace_ != nullptr) {
      trace_->final_hidden.assign(h, h + int64_t{rows} * hidden);
    }
    // A block's row 0 is the anchor's; row i guesses the token at its own
    // position.
    float* guesses = h;
    for (const DraftRequest& request : requests) {
      h += hidden;
      guesses = std::copy_n(h, int64_t{request.drafts} * hidden, guesses);
      h += int64_t{request.drafts} * hidden;
    }
    const int32_t drafts = rows - static_cast<int32_t>(requests.size());
    const bool margins =
        std::any_of(requests.begin(), requests.end(),
                    [](const DraftRequest& r) { return r.margins != nullptr; });
    for (int32_t done = 0; done < drafts; done += target_->max_rows()) {
      DELTAEDGE_RETURN_IF_ERROR(
          target_->Head(pass_.h.data() + int64_t{done} * hidden,
                        std::min(drafts - done, target_->max_rows()),
                        /*logits=*/nullptr, best_.data() + done,
                        margins ? second_.data() + done : nullptr));
    }
    guesses = pass_.h.data();
    const ArgMax* best = best_.data();
    const float* second = second_.data();
    for (const DraftRequest& request : requests) {
      if (request.logits != nullptr) {
        DELTAEDGE_RETURN_IF_ERROR(
            target_->Head(guesses, request.drafts, request.logits,
                          /*best=*/nullptr, /*second=*/nullptr));
      }
      guesses += int64_t{request.drafts} * hidden;
      for (int32_t t = 0; t < request.drafts; ++t) {
        request.out[t] = best[t].index;
        if (request.margins != nullptr) {
          request.margins[t] = best[t].value - second[t];
        }
      }
      best += request.drafts;
      second += request.drafts;
    }
    return absl::OkStatus();
  }

  // Each sequence's rows over its own keys.
  void Attend(int32_t index) {
    const AttentionConfig& attention = config_.attention;
    AttentionBlock block = {};
    block.q_heads = attention.query_heads;
    block.q = pass_.q.data();
    block.q_row_stride = attention.queries();
    block.q_head_stride = attention.head_dim;
    block.range = ranges_.data();
    block.scale =
        static_cast<float>(1.0 / std::sqrt(double{1} * attention.head_dim));
    block.out = pass_.mixed.data();
    block.out_row_stride = attention.queries();
    for (const Segment& segment : segments_) {
      const int64_t end = segment.position + segment.rows;
      for (int32_t t = 0; t < segment.rows; ++t) {
        ranges_[t] =
            VisibleKeys(layers_[index].sliding_window, config_.sliding_mask,
                        segment.position + t, end);
      }
      block.rows = segment.rows;
      block.kv = View(index, segment);
      AttentionForward(block, Pool(segment.rows * end * attention.queries()));
      block.q += segment.rows * block.q_row_stride;
      block.out += segment.rows * block.out_row_stride;
    }
  }

  KvView View(int32_t layer, const Segment& segment) const {
    return {segment.kv->keys(layer), segment.kv->values(layer),
            config_.attention.kv_heads, config_.attention.head_dim,
            segment.capacity};
  }

  pthreadpool_t Pool(int64_t elements) const {
    return PoolFor(elements, pool_);
  }

  void RopeRows() {
    const int32_t half = config_.attention.rotary_dim / 2;
    int64_t row = 0;
    for (const Segment& segment : segments_) {
      rope_.Copy(segment.position, segment.rows, cos_.data() + row * half,
                 sin_.data() + row * half);
      row += segment.rows;
    }
  }

  // Keys and values of the rows in input_, to where the segments belong.
  void WriteKeys(int32_t index) {
    Layer& layer = layers_[index];
    const AttentionConfig& attention = config_.attention;
    const int64_t width = layer.kv->out_features();
    const int32_t rows = input_.rows();
    Multiply(*layer.kv, kv_.data());
    RmsNormHeads(rows, attention.kv_heads, attention.head_dim, kv_.data(),
                 width, attention.head_dim, layer.weights->attention.k_norm,
                 config_.rms_norm_eps, kv_.data(), width, attention.head_dim,
                 Pool(int64_t{rows} * attention.keys()));
    RopeApply(rows, attention.kv_heads, attention.rotary_dim, kv_.data(), width,
              attention.head_dim, cos_.data(), sin_.data(),
              Pool(int64_t{rows} * attention.keys()));
    const float* keys = kv_.data();
    for (const Segment& segment : segments_) {
      KvWrite(View(index, segment), segment.position, segment.rows, keys, width,
              keys + attention.keys(), width);
      keys += segment.rows * width;
    }
  }

  // Of input_.
  void Multiply(const Linear& linear, float* y) {
    linear.Run(input_, y, PoolFor(linear, input_.rows(), pool_));
  }

  const DraftWeights weights_;
  TargetModel* const target_;
  const int32_t max_rows_;  // At least kMaxPassRows.
  const LinearOptions options_;
  const pthreadpool_t pool_;
  std::unique_ptr<Linear> fc_;
  std::vector<Layer> layers_;

  LinearInput input_;
  AlignedArray<float> context_;    // [max_rows, H]
  AlignedArray<float> kv_;         // [max_rows, 2 * Hkv * D]
  AlignedArray<float> cos_, sin_;  // [max_rows, rotary_dim / 2]
  RopeCache rope_;
  AlignedArray<float> gathered_;  // [max_rows, taps * H]
  int32_t pass_rows_ = 0;         // R of pass_; at most kMaxPassRows.
  PassBuffers pass_;
  // Of the current chunk or pass.
  std::vector<DraftInjection> chunk_;
  std::vector<Segment> segments_;
  std::vector<KeyRange> ranges_;  // [kMaxPassRows]
  std::vector<ArgMax> best_;      // [kMaxPassRows]
  std::vector<float> second_;     // [kMaxPassRows], if wanted
  std::vector<TokenId> tokens_;   // [kMaxPassRows]
};

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(
    const DraftConfig& config, const DraftWeights& weights, TargetModel* target,
    int32_t max_rows, const LinearOptions& options, pthreadpool_t pool) {
  auto impl = std::make_unique<Impl>(
      config, weights, target, std::max(max_rows, kMaxPassRows), options, pool);
  DELTAEDGE_RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<DraftModel>(new DraftModel(std::move(impl)));
}

DraftModel::DraftModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DraftModel::~DraftModel() = default;

absl::Status DraftModel::Inject(absl::Span<const DraftInjection> injections,
                                CancelFlags cancel) {
  return impl_->Inject(injections, cancel);
}

absl::Status DraftModel::Draft(absl::Span<const DraftRequest> requests,
                               CancelFlags cancel) {
  return impl_->Draft(requests, cancel);
}

void DraftModel::set_trace(Trace* trace) { impl_->trace_ = trace; }
const DraftConfig& DraftModel::config() const { return impl_->config_; }
int64_t DraftModel::packed_bytes() const { return impl_->packed_bytes_; }
int64_t DraftModel::scratch_bytes() const { return impl_->scratch_bytes(); }

}  // namespace deltaedge
