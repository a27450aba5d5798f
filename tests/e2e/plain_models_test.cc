// SPDX-License-Identifier: Apache-2.0

// Target and draft against docs/models.md sections 1 and 2, written down once
// more: one token after the other, one number after the other, in double.
// Shapes are random, so that no size is another's by chance.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/graph/draft_model.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_file.h"
#include "engine/model/weights.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"
#include "tools/golden_check/report.h"
#include "tools/golden_check/target_runner.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {
namespace {

using testing::Random;
using Row = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Row MatrixRow(const MatrixView& w, int64_t row) {
  std::vector<float> values(static_cast<size_t>(w.cols));
  DequantiseRow(w, row, values.data());
  return Row(values.begin(), values.end());
}

// Rows [first, first + rows) of w, times x.
Row Times(const MatrixView& w, const Row& x, int64_t first, int64_t rows) {
  Row y;
  for (int64_t i = first; i < first + rows; ++i) {
    const Row row = MatrixRow(w, i);
    y.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
  }
  return y;
}
Row Times(const MatrixView& w, const Row& x) { return Times(w, x, 0, w.rows); }

Row Slice(const Row& x, size_t begin, size_t size) {
  const auto first = x.begin() + static_cast<ptrdiff_t>(begin);
  return Row(first, first + static_cast<ptrdiff_t>(size));
}

void AddTo(const Row& from, double factor, Row* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += factor * from[i];
}

Row RmsNorm(Row x, const float* gain, double eps) {
  const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double scale =
      1 / std::sqrt(square / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * gain[i];
  return x;
}

Row L2Norm(Row x, double factor) {
  const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  for (double& value : x) value *= factor / std::sqrt(square + 1e-6);
  return x;
}

// A head at `position`.
Row Rotated(const AttentionConfig& attention, int64_t position, Row x) {
  const auto half = static_cast<size_t>(attention.rotary_dim) / 2;
  for (size_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) *
        std::pow(attention.rope_theta,
                 -static_cast<double>(i) / static_cast<double>(half));
    const double first = x[i], second = x[i + half];
    x[i] = first * std::cos(angle) - second * std::sin(angle);
    x[i + half] = second * std::cos(angle) + first * std::sin(angle);
  }
  return x;
}

// Soft-max attention of q over the keys for which `sees` says so.
template <class Sees>
Row Attend(const Row& q, const std::vector<std::vector<Row>>& keys,
           const std::vector<std::vector<Row>>& values, size_t head,
           const Sees& sees) {
  Row sum(q.size());
  double total = 0;
  for (size_t p = 0; p < keys.size(); ++p) {
    if (!sees(static_cast<int64_t>(p))) continue;
    const Row& key = keys[p][head];
    const double weight =
        std::exp(std::inner_product(q.begin(), q.end(), key.begin(), 0.0) /
                 std::sqrt(static_cast<double>(q.size())));
    AddTo(values[p][head], weight, &sum);
    total += weight;
  }
  for (double& value : sum) value /= total;
  return sum;
}

Row Activated(const Row& gate, Row up) {
  for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] * Sigmoid(gate[i]);
  return up;
}

Row Mlp(const MlpWeights& w, const Row& h) {
  return Times(w.down, Activated(Times(w.gate, h), Times(w.up, h)));
}

class PlainTarget {
 public:
  explicit PlainTarget(const ModelFile& file)
      : config_(file.target_config()), weights_(file.target_weights()) {
    memory_.resize(config_.layers.size());
  }

  // Experts of every row that a router saw, in the order of the layers within
  // a row.
  const std::vector<int32_t>& chosen() const { return chosen_; }

  // Scores of what may follow `token`, the next of the sequence.
  Row Next(TokenId token) {
    Row x = MatrixRow(weights_.embedding, token);
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      const TargetLayerWeights& layer = weights_.layers[i];
      const Row h = RmsNorm(x, layer.input_norm, config_.rms_norm_eps);
      AddTo(config_.layers[i] == LayerKind::kGatedDeltaNet
                ? DeltaRule(layer.gdn, h, &memory_[i])
                : Attention(layer.attention, h, &memory_[i]),
            1, &x);
      const Row g = RmsNorm(x, layer.post_norm, config_.rms_norm_eps);
      AddTo(config_.has_experts(i) ? Mixture(layer.moe, g) : Mlp(layer.mlp, g),
            1, &x);
    }
    ++position_;
    return Times(weights_.head,
                 RmsNorm(x, weights_.final_norm, config_.rms_norm_eps));
  }

 private:
  // What a layer keeps of the tokens before.
  struct Memory {
    std::vector<Row> columns;                    // Of the convolution.
    std::vector<std::vector<Row>> states;        // [Hv][Dk][Dv]
    std::vector<std::vector<Row>> keys, values;  // [position][Hkv][D]
  };

  Row DeltaRule(const GdnWeights& w, const Row& h, Memory* memory) {
    const GdnConfig& gdn = config_.gdn;
    const size_t dk = static_cast<size_t>(gdn.key_dim);
    const size_t dv = static_cast<size_t>(gdn.value_dim);
    const size_t hk = static_cast<size_t>(gdn.key_heads);
    const size_t hv = static_cast<size_t>(gdn.value_heads);
    memory->columns.push_back(Times(w.in_qkv, h));
    const size_t channels = memory->columns.back().size();
    Row mixed(channels);
    for (size_t tap = 0; tap < 4; ++tap) {
      if (memory->columns.size() + tap < 4) continue;
      const Row& column = memory->columns[memory->columns.size() + tap - 4];
      for (size_t c = 0; c < channels; ++c) {
        mixed[c] += double{w.conv[tap * channels + c]} * column[c];
      }
    }
    for (double& value : mixed) value *= Sigmoid(value);

    const Row z = Times(w.in_z, h), b = Times(w.in_b, h), a = Times(w.in_a, h);
    memory->states.resize(hv, std::vector<Row>(dk, Row(dv)));
    Row out;
    for (size_t head = 0; head < hv; ++head) {
      const size_t key_head = head / (hv / hk);
      const Row q = L2Norm(Slice(mixed, key_head * dk, dk),
                           1 / std::sqrt(static_cast<double>(dk)));
      const Row k = L2Norm(Slice(mixed, (hk + key_head) * dk, dk), 1);
      const Row v = Slice(mixed, 2 * hk * dk + head * dv, dv);
      const double gamma = std::exp(
          w.neg_exp_a[head] * std::log1p(std::exp(a[head] + w.dt_bias[head])));
      std::vector<Row>& state = memory->states[head];
      Row remembered(dv), o(dv);
      for (size_t i = 0; i < dk; ++i) {
        for (double& value : state[i]) value *= gamma;
        AddTo(state[i], k[i], &remembered);
      }
      Row u = v;
      AddTo(remembered, -1, &u);
      for (double& value : u) value *= Sigmoid(b[head]);
      for (size_t i = 0; i < dk; ++i) {
        AddTo(u, k[i], &state[i]);
        AddTo(state[i], q[i], &o);
      }
      o = RmsNorm(o, w.norm, config_.rms_norm_eps);
      for (size_t i = 0; i < dv; ++i) {
        const double gate = z[head * dv + i];
        out.push_back(o[i] * gate * Sigmoid(gate));
      }
    }
    return Times(w.out, out);
  }

  Row Attention(const AttentionWeights& w, const Row& h, Memory* memory) {
    const AttentionConfig& attention = config_.attention;
    const size_t dim = static_cast<size_t>(attention.head_dim);
    const size_t query_heads = static_cast<size_t>(attention.query_heads);
    const size_t kv_heads = static_cast<size_t>(attention.kv_heads);
    const Row queries = Times(w.q, h), keys = Times(w.k, h),
              values = Times(w.v, h);
    memory->keys.emplace_back();
    memory->values.emplace_back();
    for (size_t head = 0; head < kv_heads; ++head) {
      memory->keys.back().push_back(
          Rotated(attention, position_,
                  RmsNorm(Slice(keys, head * dim, dim), w.k_norm,
                          config_.rms_norm_eps)));
      memory->values.back().push_back(Slice(values, head * dim, dim));
    }
    Row out;
    for (size_t head = 0; head < query_heads; ++head) {
      const Row q = Rotated(attention, position_,
                            RmsNorm(Slice(queries, 2 * head * dim, dim),
                                    w.q_norm, config_.rms_norm_eps));
      const Row o =
          Attend(q, memory->keys, memory->values,
                 head / (query_heads / kv_heads), [](int64_t) { return true; });
      for (size_t i = 0; i < dim; ++i) {
        out.push_back(o[i] * Sigmoid(queries[(2 * head + 1) * dim + i]));
      }
    }
    return Times(w.out, out);
  }

  Row Mixture(const MoeWeights& w, const Row& h) {
    const MoeConfig& moe = config_.moe;
    const int64_t size = moe.expert_size, hidden = config_.hidden_size;
    Row p = Times(w.router, h);
    for (double& value : p) value = std::exp(value);
    const double all = std::accumulate(p.begin(), p.end(), 0.0);
    std::vector<int32_t> ids(p.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
    });
    ids.resize(static_cast<size_t>(moe.experts_per_token));
    chosen_.insert(chosen_.end(), ids.begin(), ids.end());
    double chosen = 0;
    for (const int32_t id : ids) chosen += p[static_cast<size_t>(id)];
    Row y(static_cast<size_t>(hidden));
    for (const int32_t id : ids) {
      const Row inner =
          Activated(Times(w.gate_up, h, id * 2 * size, size),
                    Times(w.gate_up, h, (id * 2 + 1) * size, size));
      AddTo(Times(w.down, inner, id * hidden, hidden),
            p[static_cast<size_t>(id)] / (moe.normalise ? chosen : all), &y);
    }
    AddTo(Mlp(w.shared, h), Sigmoid(Times(w.shared_router, h)[0]), &y);
    return y;
  }

  const TargetConfig& config_;
  const TargetWeights weights_;
  std::vector<Memory> memory_;
  std::vector<int32_t> chosen_;
  int64_t position_ = 0;
};

// A draft, of which all is computed anew for each block.
class PlainDraft {
 public:
  PlainDraft(const ModelFile& target, const ModelFile& draft)
      : target_(target.target_weights()),
        config_(draft.draft_config()),
        weights_(draft.draft_weights()) {}

  // Scores of `drafts` tokens after `anchor`, whose position is that behind
  // `taps`.
  std::vector<float> Scores(const std::vector<Row>& taps, TokenId anchor,
                            int32_t drafts) const {
    std::vector<Row> context, x = {MatrixRow(target_.embedding, anchor)};
    for (const Row& tap : taps) {
      context.push_back(RmsNorm(Times(weights_.fc, tap), weights_.hidden_norm,
                                config_.rms_norm_eps));
    }
    x.resize(1 + static_cast<size_t>(drafts),
             MatrixRow(target_.embedding, config_.mask_token));
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      RunLayer(weights_.layers[i], config_.layers[i].sliding_window, context,
               &x);
    }
    std::vector<float> scores;
    for (size_t row = 1; row < x.size(); ++row) {
      const Row logits =
          Times(target_.head,
                RmsNorm(x[row], weights_.final_norm, config_.rms_norm_eps));
      scores.insert(scores.end(), logits.begin(), logits.end());
    }
    return scores;
  }

 private:
  // Whether a row at position p sees key k.
  bool Sees(int32_t window, int64_t p, int64_t k) const {
    if (window == 0) return true;
    return p - k < window &&
           (config_.sliding_mask == SlidingMask::kCausal ? k <= p
                                                         : k - p < window);
  }

  void RunLayer(const DraftLayerWeights& layer, int32_t window,
                const std::vector<Row>& context, std::vector<Row>* x) const {
    const AttentionConfig& attention = config_.attention;
    const AttentionWeights& w = layer.attention;
    const auto dim = static_cast<size_t>(attention.head_dim);
    const auto query_heads = static_cast<size_t>(attention.query_heads);
    const auto kv_heads = static_cast<size_t>(attention.kv_heads);
    std::vector<Row> h = context;
    for (const Row& row : *x) {
      h.push_back(RmsNorm(row, layer.input_norm, config_.rms_norm_eps));
    }
    const auto head_of = [&](const Row& heads, const float* norm,
                             size_t position, size_t head) {
      return Rotated(
          attention, static_cast<int64_t>(position),
          RmsNorm(Slice(heads, head * dim, dim), norm, config_.rms_norm_eps));
    };
    std::vector<std::vector<Row>> keys(h.size()), values(h.size());
    for (size_t p = 0; p < h.size(); ++p) {
      const Row k = Times(w.k, h[p]), v = Times(w.v, h[p]);
      for (size_t head = 0; head < kv_heads; ++head) {
        keys[p].push_back(head_of(k, w.k_norm, p, head));
        values[p].push_back(Slice(v, head * dim, dim));
      }
    }
    for (size_t row = 0; row < x->size(); ++row) {
      const size_t p = context.size() + row;
      const Row q = Times(w.q, h[p]);
      Row out;
      for (size_t head = 0; head < query_heads; ++head) {
        const Row o = Attend(head_of(q, w.q_norm, p, head), keys, values,
                             head / (query_heads / kv_heads), [&](int64_t k) {
                               return Sees(window, static_cast<int64_t>(p), k);
                             });
        out.insert(out.end(), o.begin(), o.end());
      }
      AddTo(Times(w.out, out), 1, &(*x)[row]);
    }
    for (Row& row : *x) {
      AddTo(Mlp(layer.mlp, RmsNorm(row, layer.post_norm, config_.rms_norm_eps)),
            1, &row);
    }
  }

  const TargetWeights target_;
  const DraftConfig& config_;
  const DraftWeights weights_;
};

// Sizes within their limits, small, and rarely alike.
TargetConfig RandomShape(uint64_t seed) {
  Random random(seed);
  TargetConfig config;
  config.vocab_size = random.Int(1, 90);
  config.hidden_size = random.Int(1, 50);
  config.max_context = 64;
  config.rms_norm_eps = 1e-5f;
  config.tied_head = random.Int(0, 1) == 1;
  config.gdn.key_heads = random.Int(1, 4);
  config.gdn.value_heads = config.gdn.key_heads * random.Int(1, 4);
  config.gdn.key_dim = random.Int(1, 40);
  config.gdn.value_dim = random.Int(1, 40);
  config.gdn.conv_width = 4;
  config.attention.kv_heads = random.Int(1, 3);
  config.attention.query_heads = config.attention.kv_heads * random.Int(1, 4);
  config.attention.head_dim = 4 * random.Int(1, 10);
  config.attention.rotary_dim =
      2 * random.Int(1, config.attention.head_dim / 2);
  config.attention.rope_theta = 1e4;
  const int layers = random.Int(1, 5);
  for (int i = 0; i < layers; ++i) {
    config.layers.push_back(random.Int(0, 2) == 0 ? LayerKind::kFullAttention
                                                  : LayerKind::kGatedDeltaNet);
  }
  config.intermediate_size = random.Int(1, 70);
  if (seed % 3 == 0) return config;
  MoeConfig& moe = config.moe;
  moe.experts = random.Int(1, 20);
  moe.experts_per_token = random.Int(1, moe.experts);
  moe.expert_size = random.Int(1, 40);
  moe.shared_size = random.Int(1, 40);
  moe.normalise = random.Int(0, 1) == 1;
  for (int i = 0; i < layers; ++i) moe.layers.push_back(random.Int(0, 2) > 0);
  moe.layers[0] = true;
  if (std::count(moe.layers.begin(), moe.layers.end(), false) == 0) {
    config.intermediate_size = 0;
  }
  return config;
}

DraftConfig RandomDraftShape(const TargetConfig& target, Random* random) {
  DraftConfig config;
  config.vocab_size = target.vocab_size;
  config.hidden_size = target.hidden_size;
  config.intermediate_size = random->Int(1, 60);
  config.block_size = random->Int(2, kMaxBlockRows);
  config.mask_token = random->Int(0, target.vocab_size - 1);
  config.rms_norm_eps = 1e-5f;
  config.attention.kv_heads = random->Int(1, 3);
  config.attention.query_heads = config.attention.kv_heads * random->Int(1, 3);
  config.attention.head_dim = 4 * random->Int(1, 10);
  config.attention.rotary_dim =
      2 * random->Int(1, config.attention.head_dim / 2);
  config.attention.rope_theta = 1e4;
  config.sliding_mask =
      random->Int(0, 1) == 1 ? SlidingMask::kCausal : SlidingMask::kSymmetric;
  for (int i = random->Int(1, 3); i > 0; --i) {
    // All, some, and with a causal mask all before.
    const int32_t windows[] = {0, random->Int(1, 12), kMaxPositions};
    config.layers.push_back({windows[random->Int(0, 2)]});
  }
  config.target_layer_count = static_cast<int32_t>(target.layers.size());
  for (int32_t i = config.target_layer_count - 1; i >= 0; --i) {
    if (i == 0 || random->Int(0, 1) == 1) config.target_layers.push_back(i);
  }
  return config;
}

void ExpectNear(const std::string& path, int32_t tokens, uint64_t seed) {
  const auto file = ModelFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const TargetConfig& config = (*file)->target_config();
  Random random(seed);
  std::vector<TokenId> ids(static_cast<size_t>(tokens));
  for (TokenId& id : ids) id = random.Int(0, config.vocab_size - 1);

  const auto runner = TargetRunner::Create(**file, {}, tokens, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status();
  auto sequence = (*runner)->NewSequence(tokens);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const auto ours = (*runner)->Run(ids, &*sequence);
  ASSERT_TRUE(ours.ok()) << ours.status();

  PlainTarget plain(**file);
  std::vector<float> truth;
  for (const TokenId id : ids) {
    const Row logits = plain.Next(id);
    truth.insert(truth.end(), logits.begin(), logits.end());
  }
  EXPECT_LE(RelativeError(ours->logits, truth), 2e-5);

  // Ours are layer by layer, theirs row by row.
  const size_t layers = static_cast<size_t>(
      std::count(config.moe.layers.begin(), config.moe.layers.end(), true));
  const auto top_k = static_cast<size_t>(config.moe.experts_per_token);
  std::vector<int32_t> chosen;
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto from =
          ours->router_ids.begin() +
          static_cast<ptrdiff_t>((layer * ids.size() + row) * top_k);
      chosen.insert(chosen.end(), from, from + static_cast<ptrdiff_t>(top_k));
    }
  }
  EXPECT_EQ(chosen, plain.chosen());
}

TEST(PlainModelsTest, RandomShapes) {
  const std::string path = ::testing::TempDir() + "/random_shape.gdn";
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomModelOptions options;
    options.numbers.seed = seed;
    options.byte_tokenizer = false;
    ASSERT_EQ(MakeRandomTarget(RandomShape(seed), path, options),
              absl::OkStatus());
    ExpectNear(path, 9, seed);
  }
  std::filesystem::remove(path);
}

TEST(PlainModelsTest, DraftsOfRandomShapes) {
  const std::string target_path = ::testing::TempDir() + "/drafted.gdn";
  const std::string draft_path = ::testing::TempDir() + "/draft.gdn";
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const TargetConfig shape = RandomShape(seed);
    RandomModelOptions made;
    made.numbers.seed = seed;
    made.byte_tokenizer = false;
    ASSERT_EQ(MakeRandomTarget(shape, target_path, made), absl::OkStatus());
    ASSERT_EQ(MakeRandomDraft(RandomDraftShape(shape, &random), target_path,
                              draft_path, made),
              absl::OkStatus());
    const auto target = ModelFile::Open(target_path);
    const auto file = ModelFile::Open(draft_path);
    ASSERT_TRUE(target.ok() && file.ok()) << file.status();
    const DraftConfig& config = (*file)->draft_config();
    const auto runner =
        TargetRunner::Create(**target, config.target_layers, 16, nullptr);
    ASSERT_TRUE(runner.ok()) << runner.status();
    const auto draft = DraftModel::Create(config, (*file)->draft_weights(),
                                          &(*runner)->model(), 16, {}, nullptr);
    ASSERT_TRUE(draft.ok()) << draft.status();

    const int32_t length = random.Int(0, 20);
    const int64_t width = int64_t{config.hidden_size} *
                          static_cast<int64_t>(config.target_layers.size());
    // With the readable bytes behind.
    const std::vector<float> taps = random.Gaussians(length * width + 16);
    DraftRequest request;
    request.anchor = random.Int(0, config.vocab_size - 1);
    request.position = length;
    request.drafts = random.Int(1, config.block_size - 1);
    request.capacity = length + config.block_size;
    auto kv = KvStore::Create(DraftKvShape(config, request.capacity));
    ASSERT_TRUE(kv.ok()) << kv.status();
    DraftInjection injection;
    injection.taps = taps.data();
    injection.rows = length;
    injection.capacity = request.capacity;
    injection.kv = request.kv = &*kv;
    if (length > 0) {
      ASSERT_EQ((*draft)->Inject({&injection, 1}, {}), absl::OkStatus());
    }
    std::vector<float> scores(
        static_cast<size_t>(request.drafts * config.vocab_size));
    std::vector<TokenId> out(static_cast<size_t>(request.drafts));
    request.logits = scores.data();
    request.out = out.data();
    ASSERT_EQ((*draft)->Draft({&request, 1}, {}), absl::OkStatus());

    std::vector<Row> rows;
    for (int32_t i = 0; i < length; ++i) {
      rows.emplace_back(taps.begin() + i * width,
                        taps.begin() + (i + 1) * width);
    }
    EXPECT_LE(RelativeError(scores,
                            PlainDraft(**target, **file)
                                .Scores(rows, request.anchor, request.drafts)),
              2e-5);
  }
  std::filesystem::remove(target_path);
  std::filesystem::remove(draft_path);
}

// What the type of weights stands for is what is multiplied with.
TEST(PlainModelsTest, ModelsOfTheOtherTests) {
  for (const char* const name :
       {"t", "odd", "wide", "moe", "next_f32", "next_q8w"}) {
    SCOPED_TRACE(name);
    ExpectNear(absl::StrCat("tests/testdata/models/", name, ".gdn"), 19, 7);
  }
}

}  // namespace
}  // namespace deltaedge
