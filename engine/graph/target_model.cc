// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/target_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/graph/launch.h"
#include "engine/graph/mlp.h"
#include "engine/graph/moe.h"
#include "engine/graph/rope_cache.h"
#include "engine/ops/embedding.h"
#include "engine/ops/linear_input.h"
#include "kernels/act/act.h"
#include "kernels/attn/attention.h"
#include "kernels/conv1d/conv1d.h"
#include "kernels/gates/gates.h"
#include "kernels/gdn/gdn_block.h"
#include "kernels/logits/argmax.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace deltaedge {

namespace {

// What Validate(TargetConfig) lets through, the kernels take.
static_assert(kMaxHeadDim <= kAttentionMaxHeadDim);
static_assert(kMaxKeyDim <= kGdnMaxKeyDim);

// The L2 norm of q and k has an epsilon of its own (docs/models.md 1.2).
constexpr float kL2Epsilon = 1e-6f;

struct GdnMixer {
  int32_t index = 0;              // Among the GDN layers.
  std::unique_ptr<Linear> in;     // q | k | v | z, and b | a if of their type
  std::unique_ptr<Linear> gates;  // b | a; null: in `in`
  std::unique_ptr<Linear> out;
};

struct AttentionMixer {
  int32_t index = 0;           // Among the attention layers.
  std::unique_ptr<Linear> in;  // per head q, gate | k | v
  std::unique_ptr<Linear> out;
};

struct Layer {
  const TargetLayerWeights* weights = nullptr;
  GdnMixer gdn;
  AttentionMixer attention;
  std::unique_ptr<Mlp> mlp;  // Or:
  std::unique_ptr<Moe> moe;
  int32_t tap = -1;  // Slot of TargetPass::taps.
};

// All buffers of a pass, for max_rows rows.
struct Activations {
  AlignedArray<float> x;          // [rows, H] residual stream
  AlignedArray<float> h;          // [rows, H] normalised
  AlignedArray<float> y;          // [rows, H] what a sub-block adds
  AlignedArray<float> projected;  // [rows, widest mixer input]
  AlignedArray<float> convolved;  // [rows, conv_channels] q | k | v
  AlignedArray<float> log_decay;  // [rows, Hv]
  AlignedArray<float> beta;       // [rows, Hv]
  AlignedArray<float> mixed;      // [rows, Hv*Dv or Hq*D]
  AlignedArray<float> cos, sin;   // [rows, rotary_dim / 2]
  RopeCache rope;
  std::vector<KeyRange> ranges;  // [rows]
  LinearInput input;
  MlpScratch mlp;
  MoeScratch moe;

  int64_t bytes() const {
    return (x.size() + h.size() + y.size() + projected.size() +
            convolved.size() + log_decay.size() + beta.size() + mixed.size() +
            cos.size() + sin.size()) *
               static_cast<int64_t>(sizeof(float)) +
           rope.bytes() + input.bytes() + mlp.bytes() + moe.bytes();
  }
};

absl::StatusOr<Activations> AllocateActivations(const TargetConfig& config,
                                                int32_t max_rows) {
  const int64_t rows = max_rows;
  const GdnConfig& gdn = config.gdn;
  const AttentionConfig& attention = config.attention;
  const int64_t gdn_in =
      gdn.conv_channels() + gdn.values() + 2 * gdn.value_heads;
  const int64_t attention_in = 2 * attention.queries() + 2 * attention.keys();
  Activations a;
  const auto allocate = [rows](int64_t width, AlignedArray<float>* array) {
    absl::StatusOr<AlignedArray<float>> allocated =
        AlignedArray<float>::Allocate(rows * width, "activations");
    if (allocated.ok()) *array = *std::move(allocated);
    return allocated.status();
  };
  DELTAEDGE_RETURN_IF_ERROR(allocate(config.hidden_size, &a.x));
  DELTAEDGE_RETURN_IF_ERROR(allocate(config.hidden_size, &a.h));
  DELTAEDGE_RETURN_IF_ERROR(allocate(config.hidden_size, &a.y));
  DELTAEDGE_RETURN_IF_ERROR(
      allocate(std::max(gdn_in, attention_in), &a.projected));
  DELTAEDGE_RETURN_IF_ERROR(allocate(gdn.conv_channels(), &a.convolved));
  DELTAEDGE_RETURN_IF_ERROR(allocate(gdn.value_heads, &a.log_decay));
  DELTAEDGE_RETURN_IF_ERROR(allocate(gdn.value_heads, &a.beta));
  const int64_t mixed = std::max(gdn.values(), attention.queries());
  DELTAEDGE_RETURN_IF_ERROR(allocate(mixed, &a.mixed));
  DELTAEDGE_RETURN_IF_ERROR(allocate(attention.rotary_dim / 2, &a.cos));
  DELTAEDGE_RETURN_IF_ERROR(allocate(attention.rotary_dim / 2, &a.sin));
  DELTAEDGE_ASSIGN_OR_RETURN(
      a.rope, RopeCache::Create(attention.rotary_dim, attention.rope_theta));
  a.ranges.resize(max_rows);
  const int32_t mlp_size =
      std::max(config.intermediate_size, config.moe.shared_size);
  const int64_t widest =
      std::max<int64_t>({config.hidden_size, mixed, mlp_size});
  DELTAEDGE_ASSIGN_OR_RETURN(
      a.input, LinearInput::Allocate(max_rows, static_cast<int32_t>(widest)));
  DELTAEDGE_ASSIGN_OR_RETURN(a.mlp, MlpScratch::Allocate(max_rows, mlp_size));
  if (config.moe.experts > 0) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        a.moe, MoeScratch::Allocate(max_rows, config.hidden_size, config.moe));
  }
  return a;
}

GdnJournal ToKernel(const JournalRows& rows) {
  GdnJournal journal;
  journal.k = rows.k;
  journal.u = rows.u;
  journal.gamma = rows.gamma;
  return journal;
}

class TargetModelImpl : public TargetModel {
 public:
  TargetModelImpl(const TargetConfig& config, const TargetWeights& weights,
                  int32_t max_rows, const LinearOptions& options,
                  pthreadpool_t pool)
      : config_(config),
        weights_(weights),
        max_rows_(max_rows),
        options_(options),
        pool_(pool) {}

  absl::Status Init(absl::Span<const int32_t> taps) {
    taps_ = static_cast<int32_t>(taps.size());
    slots_.resize(max_rows_);
    DELTAEDGE_ASSIGN_OR_RETURN(act_, AllocateActivations(config_, max_rows_));
    int32_t gdn_layers = 0, attention_layers = 0;
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      Layer layer;
      layer.weights = &weights_.layers[i];
      const std::string name = absl::StrCat("layers.", i);
      if (config_.layers[i] == LayerKind::kGatedDeltaNet) {
        const GdnWeights& w = layer.weights->gdn;
        layer.gdn.index = gdn_layers++;
        // The gates' weights are float always.
        if (w.in_qkv.type == w.in_b.type) {
          DELTAEDGE_ASSIGN_OR_RETURN(
              layer.gdn.in,
              Linear::Create({w.in_qkv, w.in_z, w.in_b, w.in_a},
                             absl::StrCat(name, ".gdn.in"), options_));
        } else {
          DELTAEDGE_ASSIGN_OR_RETURN(
              layer.gdn.in,
              Linear::Create({w.in_qkv, w.in_z}, absl::StrCat(name, ".gdn.in"),
                             options_));
          DELTAEDGE_ASSIGN_OR_RETURN(
              layer.gdn.gates,
              Linear::Create({w.in_b, w.in_a}, absl::StrCat(name, ".gdn.gates"),
                             options_));
          packed_bytes_ += layer.gdn.gates->packed_bytes();
        }
        DELTAEDGE_ASSIGN_OR_RETURN(
            layer.gdn.out,
            Linear::Create({w.out}, absl::StrCat(name, ".gdn.out"), options_));
        packed_bytes_ +=
            layer.gdn.in->packed_bytes() + layer.gdn.out->packed_bytes();
      } else {
        const AttentionWeights& w = layer.weights->attention;
        layer.attention.index = attention_layers++;
        DELTAEDGE_ASSIGN_OR_RETURN(
            layer.attention.in,
            Linear::Create({w.q, w.k, w.v}, absl::StrCat(name, ".attention.in"),
                           options_));
        DELTAEDGE_ASSIGN_OR_RETURN(
            layer.attention.out,
            Linear::Create({w.out}, absl::StrCat(name, ".attention.out"),
                           options_));
        packed_bytes_ += layer.attention.in->packed_bytes() +
                         layer.attention.out->packed_bytes();
      }
      if (config_.has_experts(i)) {
        DELTAEDGE_ASSIGN_OR_RETURN(
            Moe moe, Moe::Create(layer.weights->moe, config_.moe,
                                 absl::StrCat(name, ".moe"), options_));
        layer.moe = std::make_unique<Moe>(std::move(moe));
        packed_bytes_ += layer.moe->packed_bytes();
      } else {
        DELTAEDGE_ASSIGN_OR_RETURN(
            Mlp mlp, Mlp::Create(layer.weights->mlp, absl::StrCat(name, ".mlp"),
                                 options_));
        layer.mlp = std::make_unique<Mlp>(std::move(mlp));
        packed_bytes_ += layer.mlp->packed_bytes();
      }
      for (size_t t = 0; t < taps.size(); ++t) {
        if (taps[t] == static_cast<int32_t>(i)) {
          layer.tap = static_cast<int32_t>(t);
        }
      }
      layers_.push_back(std::move(layer));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(
        head_, Linear::Create({weights_.head}, "head", options_));
    packed_bytes_ += head_->packed_bytes();
    return absl::OkStatus();
  }

  absl::Status Run(absl::Span<const TargetPass> passes) override {
    const int32_t hidden = config_.hidden_size;
    float* x = act_.x.data();
    row_begin_.assign(1, 0);
    bool scores = false;
    for (const TargetPass& pass : passes) {
      const int32_t begin = row_begin_.back();
      const int32_t half = config_.attention.rotary_dim / 2;
      Embed(pass.tokens, x + int64_t{begin} * hidden);
      act_.rope.Copy(pass.plan.position, pass.plan.rows,
                     act_.cos.data() + int64_t{begin} * half,
                     act_.sin.data() + int64_t{begin} * half);
      for (int32_t t = 0; t < pass.plan.rows; ++t) {
        act_.ranges[begin + t] = {0, pass.plan.position + t + 1};
      }
      row_begin_.push_back(begin + pass.plan.rows);
      scores |= WantsScores(pass) || pass.final_hidden != nullptr;
    }
    const int32_t rows = row_begin_.back();
    int32_t routers = 0;
    for (Layer& layer : layers_) {
      if (Cancelled(passes)) return absl::CancelledError("cancelled");
      RmsNorm(rows, hidden, x, hidden, layer.weights->input_norm,
              config_.rms_norm_eps, act_.h.data(), hidden,
              Pool(int64_t{rows} * hidden));
      if (layer.gdn.in != nullptr) {
        RunGdn(passes, layer);
      } else {
        RunAttention(passes, layer);
      }
      AddRows(rows, hidden, x, hidden, act_.y.data(), hidden,
              Pool(int64_t{rows} * hidden));
      RmsNorm(rows, hidden, x, hidden, layer.weights->post_norm,
              config_.rms_norm_eps, act_.h.data(), hidden,
              Pool(int64_t{rows} * hidden));
      if (layer.moe != nullptr) {
        layer.moe->Run(act_.h.data(), rows, &act_.input, &act_.mlp, &act_.moe,
                       act_.y.data(), pool_);
        CopyRouters(passes, routers++);
      } else {
        layer.mlp->Run(act_.h.data(), rows, &act_.input, &act_.mlp,
                       act_.y.data(), pool_);
      }
      AddRows(rows, hidden, x, hidden, act_.y.data(), hidden,
              Pool(int64_t{rows} * hidden));
      if (layer.tap >= 0) CopyTaps(passes, layer.tap);
    }
    if (!scores) return absl::OkStatus();
    RmsNorm(rows, hidden, x, hidden, weights_.final_norm, config_.rms_norm_eps,
            act_.h.data(), hidden, Pool(int64_t{rows} * hidden));
    return Score(passes);
  }

  absl::Status Head(const float* x, int32_t rows, float* logits, ArgMax* best,
                    float* second) override {
    const int32_t vocab_size = config_.vocab_size;
    act_.input.Set(x, rows, config_.hidden_size);
    if (logits == nullptr) {
      head_->RunArgMax(act_.input, best, second, PoolFor(*head_, rows, pool_));
      return absl::OkStatus();
    }
    Multiply(*head_, logits);
    if (best != nullptr) {
      ArgMaxRows(rows, vocab_size, logits, vocab_size, best,
                 Pool(int64_t{rows} * vocab_size));
    }
    return absl::OkStatus();
  }

  void Embed(absl::Span<const TokenId> tokens, float* x) const override {
    EmbedRows(weights_.embedding, weights_.embedding_file, tokens, x);
  }

  const TargetConfig& config() const override { return config_; }
  int32_t max_rows() const override { return max_rows_; }
  int64_t packed_bytes() const override { return packed_bytes_; }
  int64_t scratch_bytes() const override { return act_.bytes(); }

 private:
  static bool Cancelled(absl::Span<const TargetPass> passes) {
    return std::all_of(passes.begin(), passes.end(), [](const TargetPass& p) {
      return p.cancel != nullptr && p.cancel->load(std::memory_order_relaxed);
    });
  }

  static bool WantsScores(const TargetPass& pass) {
    return pass.logits != nullptr || pass.best != nullptr;
  }

  void CopyTaps(absl::Span<const TargetPass> passes, int32_t tap) {
    const int64_t hidden = config_.hidden_size;
    for (size_t i = 0; i < passes.size(); ++i) {
      if (passes[i].taps == nullptr) continue;
      const float* x = act_.x.data() + row_begin_[i] * hidden;
      for (int32_t t = 0; t < passes[i].plan.rows; ++t) {
        std::memcpy(passes[i].taps + (int64_t{t} * taps_ + tap) * hidden,
                    x + t * hidden, hidden * sizeof(float));
      }
    }
  }

  // What layer `index` of those with experts decided.
  void CopyRouters(absl::Span<const TargetPass> passes, int64_t index) {
    const int64_t experts = config_.moe.experts;
    const int64_t top_k = config_.moe.experts_per_token;
    const MoeScratch& moe = act_.moe;
    for (size_t i = 0; i < passes.size(); ++i) {
      const RouterOutputs* const out = passes[i].routers;
      if (out == nullptr) continue;
      const int64_t begin = row_begin_[i], rows = passes[i].plan.rows;
      for (int64_t t = 0; t < rows; ++t) {
        // The last one is the shared expert's.
        std::copy_n(moe.logits.data() + (begin + t) * (experts + 1), experts,
                    out->logits + (index * rows + t) * experts);
      }
      std::copy_n(moe.ids.data() + begin * top_k, rows * top_k,
                  out->ids + index * rows * top_k);
      std::copy_n(moe.weights.data() + begin * top_k, rows * top_k,
                  out->weights + index * rows * top_k);
    }
  }

  // Outputs of rows that are in act_.h, normalised.
  absl::Status Score(absl::Span<const TargetPass> passes) {
    const int64_t hidden = config_.hidden_size;
    const int64_t vocab_size = config_.vocab_size;
    for (size_t i = 0; i < passes.size(); ++i) {
      if (passes[i].final_hidden == nullptr) continue;
      std::memcpy(passes[i].final_hidden,
                  act_.h.data() + row_begin_[i] * hidden,
                  passes[i].plan.rows * hidden * sizeof(float));
    }
    const auto follows = [](const auto* next, const auto* first, int64_t size) {
      return first == nullptr ? next == nullptr : next == first + size;
    };
    for (size_t i = 0, end; i < passes.size(); i = end) {
      const TargetPass& first = passes[i];
      const auto rows = [&] { return row_begin_[end] - row_begin_[i]; };
      end = i + 1;
      if (!WantsScores(first)) continue;
      while (end < passes.size() &&
             follows(passes[end].logits, first.logits, rows() * vocab_size) &&
             follows(passes[end].best, first.best, rows())) {
        ++end;
      }
      DELTAEDGE_RETURN_IF_ERROR(Head(act_.h.data() + row_begin_[i] * hidden,
                                     rows(), first.logits, first.best,
                                     /*second=*/nullptr));
    }
    return absl::OkStatus();
  }

  void RunGdn(absl::Span<const TargetPass> passes, Layer& layer) {
    const GdnConfig& gdn = config_.gdn;
    const GdnWeights& w = layer.weights->gdn;
    const int32_t rows = row_begin_.back();
    const int32_t index = layer.gdn.index;
    const int64_t channels = gdn.conv_channels();
    const int64_t width = layer.gdn.in->out_features();

    float* projected = act_.projected.data();
    act_.input.Set(act_.h.data(), rows, config_.hidden_size);
    Multiply(*layer.gdn.in, projected);
    const float* z = projected + channels;
    const float* b = z + gdn.values();
    int64_t gates_width = width;
    if (layer.gdn.gates != nullptr) {
      float* gates = projected + rows * width;
      Multiply(*layer.gdn.gates, gates);
      b = gates;
      gates_width = layer.gdn.gates->out_features();
    }
    const float* a = b + gdn.value_heads;

    for (size_t i = 0; i < passes.size(); ++i) {
      Convolve(passes[i], index, w.conv, projected + row_begin_[i] * width,
               width, act_.convolved.data() + row_begin_[i] * channels);
    }

    float* q = act_.convolved.data();
    float* k = q + gdn.keys();
    const float* v = k + gdn.keys();
    L2NormHeads(rows, gdn.key_heads, gdn.key_dim, q, channels, gdn.key_dim,
                kL2Epsilon,
                static_cast<float>(1.0 / std::sqrt(double{1} * gdn.key_dim)), q,
                channels, gdn.key_dim, Pool(int64_t{rows} * gdn.keys()));
    L2NormHeads(rows, gdn.key_heads, gdn.key_dim, k, channels, gdn.key_dim,
                kL2Epsilon, 1.0f, k, channels, gdn.key_dim,
                Pool(int64_t{rows} * gdn.keys()));
    GdnGatesForward(rows, gdn.value_heads, a, gates_width, b, gates_width,
                    w.neg_exp_a, w.dt_bias, act_.log_decay.data(),
                    act_.beta.data());

    sequences_.clear();
    int64_t updates = rows;
    for (size_t i = 0; i < passes.size(); ++i) {
      sequences_.push_back(
          RecurrentPart(passes[i], index, slots_.data() + row_begin_[i]));
      updates += sequences_.back().fold_rows;
    }
    GdnBlock block = {};
    block.shape = {gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim};
    block.sequences = static_cast<int32_t>(passes.size());
    block.row_begin = row_begin_.data();
    block.q = q;
    block.k = k;
    block.v = v;
    block.q_stride = block.k_stride = block.v_stride = channels;
    block.log_decay = act_.log_decay.data();
    block.beta = act_.beta.data();
    block.sequence = sequences_.data();
    block.out = act_.mixed.data();
    block.out_stride = gdn.values();
    GdnForward(block, Pool(updates * gdn.values() * gdn.key_dim));
    for (const TargetPass& pass : passes) {
      if (pass.spare == nullptr) pass.sequence->cursor.FoldDone(index);
    }

    float* mixed = act_.mixed.data();
    GatedRmsNormHeads(rows, gdn.value_heads, gdn.value_dim, mixed, gdn.values(),
                      gdn.value_dim, z, width, gdn.value_dim, w.norm,
                      config_.rms_norm_eps, mixed, gdn.values(), gdn.value_dim,
                      Pool(int64_t{rows} * gdn.values()));
    act_.input.Set(mixed, rows, layer.gdn.out->in_features());
    Multiply(*layer.gdn.out, act_.y.data());
  }

  // One sequence's convolution: `x` [rows, width] raw, `out` [rows, channels].
  void Convolve(const TargetPass& pass, int32_t index, const float* weight,
                const float* x, int64_t width, float* out) {
    const int32_t rows = pass.plan.rows;
    const int64_t channels = config_.gdn.conv_channels();
    RecurrentStore& store = pass.sequence->recurrent;
    Conv1dBlock conv;
    conv.channels = config_.gdn.conv_channels();
    conv.rows = rows;
    conv.position = pass.plan.position;
    conv.ring = store.ring(index);
    conv.ring_rows = store.shape().ring_rows();
    conv.x = x;
    conv.x_stride = width;
    conv.weight = weight;
    conv.out = out;
    conv.out_stride = channels;
    Conv1dSiluForward(conv, Pool(rows * channels));
    if (pass.spare == nullptr) {
      store.WriteColumns(index, pass.plan.position, rows, x, width);
      return;
    }
    const int32_t tail = std::min(rows, kWindowColumns);
    for (int32_t t = 0; t < tail; ++t) {
      std::memcpy(pass.spare->columns(index) + t * channels,
                  x + (rows - tail + t) * width, channels * sizeof(float));
    }
  }

  // Where one sequence's state is read and written. `slots` [rows]: room for
  // the places of a state per row.
  static GdnSequence RecurrentPart(const TargetPass& pass, int32_t index,
                                   float** slots) {
    RecurrentStore& store = pass.sequence->recurrent;
    const SequenceState& cursor = pass.sequence->cursor;
    GdnSequence part = {};
    part.state = store.state(index, cursor.column());
    if (store.shape().rollback == Rollback::kJournal) {
      part.fold = ToKernel(store.journal(index, cursor.journal()));
      part.fold_rows = cursor.pending(index);
    }
    if (pass.spare != nullptr) {
      part.last = pass.spare->state(index);
    } else if (store.shape().rollback == Rollback::kJournal) {
      part.folded = store.state(index, cursor.column());
      part.record = ToKernel(store.journal(index, 1 - cursor.journal()));
    } else {
      for (int32_t t = 0; t < pass.plan.rows; ++t) {
        slots[t] = store.state(index, cursor.BlockColumn(t));
      }
      part.each = slots;
    }
    return part;
  }

  void RunAttention(absl::Span<const TargetPass> passes, Layer& layer) {
    const AttentionConfig& attention = config_.attention;
    const AttentionWeights& w = layer.weights->attention;
    const int32_t rows = row_begin_.back();
    const int32_t dim = attention.head_dim;
    const int64_t width = layer.attention.in->out_features();

    float* projected = act_.projected.data();
    act_.input.Set(act_.h.data(), rows, config_.hidden_size);
    Multiply(*layer.attention.in, projected);
    float* q = projected;  // [rows, Hq, 2, D]: query, gate
    float* k = projected + 2 * attention.queries();
    const float* v = k + attention.keys();
    RmsNormHeads(rows, attention.query_heads, dim, q, width, 2 * dim, w.q_norm,
                 config_.rms_norm_eps, q, width, 2 * dim,
                 Pool(int64_t{rows} * attention.queries()));
    RmsNormHeads(rows, attention.kv_heads, dim, k, width, dim, w.k_norm,
                 config_.rms_norm_eps, k, width, dim,
                 Pool(int64_t{rows} * attention.keys()));
    RopeApply(
        rows, attention.query_heads, attention.rotary_dim, q, width, 2 * dim,
        act_.cos.data(), act_.sin.data(),
        Pool(int64_t{rows} * attention.query_heads * attention.rotary_dim));
    RopeApply(rows, attention.kv_heads, attention.rotary_dim, k, width, dim,
              act_.cos.data(), act_.sin.data(),
              Pool(int64_t{rows} * attention.kv_heads * attention.rotary_dim));

    for (size_t i = 0; i < passes.size(); ++i) {
      const BlockPlan& plan = passes[i].plan;
      const int64_t begin = row_begin_[i];
      const KvView kv =
          TargetKv(attention, passes[i].sequence, layer.attention.index);
      KvWrite(kv, plan.position, plan.rows, k + begin * width, width,
              v + begin * width, width);
      AttentionBlock block = {};
      block.rows = plan.rows;
      block.q_heads = attention.query_heads;
      block.kv = kv;
      block.q = q + begin * width;
      block.q_row_stride = width;
      block.q_head_stride = 2 * dim;
      block.range = act_.ranges.data() + begin;
      block.scale = static_cast<float>(1.0 / std::sqrt(double{1} * dim));
      block.out = act_.mixed.data() + begin * attention.queries();
      block.out_row_stride = attention.queries();
      AttentionForward(block, Pool(plan.rows * (plan.position + plan.rows) *
                                   attention.queries()));
    }
    SigmoidGateHeads(rows, attention.query_heads, dim, act_.mixed.data(),
                     attention.queries(), dim, q + dim, width, 2 * dim,
                     Pool(int64_t{rows} * attention.queries()));
    act_.input.Set(act_.mixed.data(), rows, layer.attention.out->in_features());
    Multiply(*layer.attention.out, act_.y.data());
  }

  pthreadpool_t Pool(int64_t elements) const {
    return PoolFor(elements, pool_);
  }

  // Of act_.input.
  void Multiply(const Linear& linear, float* y) {
    linear.Run(act_.input, y, PoolFor(linear, act_.input.rows(), pool_));
  }

  const TargetConfig config_;
  const TargetWeights weights_;  // Views; the numbers are the model file's.
  const int32_t max_rows_;
  const LinearOptions options_;
  const pthreadpool_t pool_;
  int32_t taps_ = 0;
  std::vector<Layer> layers_;
  std::unique_ptr<Linear> head_;
  Activations act_;
  std::vector<int32_t> row_begin_;      // [passes + 1] of the run
  std::vector<GdnSequence> sequences_;  // [passes]
  std::vector<float*> slots_;           // [max_rows]
  int64_t packed_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TargetModel>> MakeTargetModel(
    const TargetConfig& config, const TargetWeights& weights,
    absl::Span<const int32_t> taps, int32_t max_rows,
    const LinearOptions& options, pthreadpool_t pool) {
  auto model = std::make_unique<TargetModelImpl>(config, weights, max_rows,
                                                 options, pool);
  DELTAEDGE_RETURN_IF_ERROR(model->Init(taps));
  return model;
}

}  // namespace deltaedge
