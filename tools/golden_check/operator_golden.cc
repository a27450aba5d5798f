// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/operator_golden.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/fp_mode.h"
#include "engine/base/status_macros.h"
#include "engine/state/recurrent_store.h"
#include "kernels/base/argument_error.h"
#include "kernels/conv1d/conv1d.h"
#include "kernels/gates/gates.h"
#include "kernels/gdn/gdn_block.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace deltaedge {

namespace {

constexpr float kL2Epsilon = 1e-6f;
constexpr int64_t kConvTaps = 4;
// Above any golden, and low enough that products of a few sizes fit int64_t.
constexpr int64_t kMaxSize = 1 << 20;

// One section of a golden file: its tensors, and names for the report.
struct Case {
  GoldenTensors* golden;
  std::string section;
  Report* report;

  absl::StatusOr<GoldenFloats> Get(absl::string_view name, size_t dims) const {
    return golden->Floats(section, name, dims);
  }
  std::string Name(absl::string_view what) const {
    return section.empty() ? std::string(what)
                           : absl::StrCat(section, ".", what);
  }
};

absl::Status CheckSizes(absl::Span<const int64_t> shape) {
  for (const int64_t size : shape) {
    if (size < 1 || size > kMaxSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape ", ShapeText(shape), "; sizes are 1 to ", kMaxSize));
    }
  }
  return absl::OkStatus();
}

// The kernels' layouts of states, one for each of several sequences.
class States {
 public:
  static absl::StatusOr<States> Allocate(const GdnShape& shape, int64_t count) {
    States states;
    states.shape_ = shape;
    states.floats_ = GdnStateFloats(shape);
    DELTAEDGE_ASSIGN_OR_RETURN(
        states.array_,
        AlignedArray<float>::Allocate({count, states.floats_}, "states"));
    return states;
  }

  float* at(int64_t i) { return array_.data() + i * floats_; }
  // All of them, [count, Hv, Dk, Dv].
  std::vector<float> Export() {
    const int64_t dense = int64_t{shape_.v_heads} * shape_.k_dim * shape_.v_dim;
    const int64_t count = array_.size() / floats_;
    std::vector<float> out(count * dense);
    for (int64_t i = 0; i < count; ++i) {
      GdnExportState(shape_, at(i), out.data() + i * dense);
    }
    return out;
  }

 private:
  GdnShape shape_;
  int64_t floats_ = 0;
  AlignedArray<float> array_;
};

// A case of the delta rule, ready to be run in several ways.
struct DeltaRule {
  GdnShape shape;
  int64_t batch, rows;         // B, T
  std::vector<float> q, k, v;  // [B * T, heads, dim]; q, k normalised
  std::vector<float> g, beta;  // [B * T, heads]
  std::vector<float> initial;  // [B, heads, Dk, Dv]; empty: zero

  int64_t key_floats() const { return int64_t{shape.k_heads} * shape.k_dim; }
  int64_t value_floats() const { return int64_t{shape.v_heads} * shape.v_dim; }

  // Initial states.
  absl::StatusOr<States> Begin() const {
    DELTAEDGE_ASSIGN_OR_RETURN(States states, States::Allocate(shape, batch));
    const int64_t dense = int64_t{shape.v_heads} * shape.k_dim * shape.v_dim;
    for (int64_t b = 0; b < batch && !initial.empty(); ++b) {
      GdnImportState(shape, initial.data() + b * dense, states.at(b));
    }
    return states;
  }

  // Rows [first, first + count) of one sequence. row_begin: {0, count}.
  GdnBlock Block(int64_t sequence, int64_t first, const int32_t* row_begin,
                 const GdnSequence* states, float* out) const {
    const int64_t row = sequence * rows + first;
    GdnBlock block = {};
    block.shape = shape;
    block.sequences = 1;
    block.row_begin = row_begin;
    block.q = q.data() + row * key_floats();
    block.k = k.data() + row * key_floats();
    block.v = v.data() + row * value_floats();
    block.q_stride = block.k_stride = key_floats();
    block.v_stride = block.out_stride = value_floats();
    block.log_decay = g.data() + row * shape.v_heads;
    block.beta = beta.data() + row * shape.v_heads;
    block.sequence = states;
    block.out = out + row * value_floats();
    return block;
  }
};

absl::StatusOr<DeltaRule> ReadDeltaRule(const Case& c) {
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats q, c.Get("q", 4));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats k, c.Get("k", 4));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats v, c.Get("v", 4));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats g, c.Get("g", 3));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats beta, c.Get("beta", 3));
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(q.shape));
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(v.shape));
  const int64_t batch = q.dim(0), rows = q.dim(1), heads = q.dim(2);
  const int64_t key_dim = q.dim(3), value_dim = v.dim(3);
  if (key_dim > kGdnMaxKeyDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Dk is ", key_dim, "; the kernel takes at most ", kGdnMaxKeyDim));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(k.shape, q.shape));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckShape(v.shape, {batch, rows, heads, value_dim}));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(g.shape, {batch, rows, heads}));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(beta.shape, {batch, rows, heads}));

  DeltaRule rule;
  rule.shape = {static_cast<int32_t>(heads), static_cast<int32_t>(heads),
                static_cast<int32_t>(key_dim), static_cast<int32_t>(value_dim)};
  rule.batch = batch;
  rule.rows = rows;
  rule.q = std::move(q.values);
  rule.k = std::move(k.values);
  rule.v = std::move(v.values);
  rule.g = std::move(g.values);
  rule.beta = std::move(beta.values);
  if (c.golden->Has(c.section, "initial_state")) {
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats initial, c.Get("initial_state", 4));
    DELTAEDGE_RETURN_IF_ERROR(
        CheckShape(initial.shape, {batch, heads, key_dim, value_dim}));
    rule.initial = std::move(initial.values);
  }
  const int32_t all = static_cast<int32_t>(batch * rows);
  const int64_t stride = heads * key_dim;
  L2NormHeads(all, rule.shape.k_heads, rule.shape.k_dim, rule.q.data(), stride,
              key_dim, kL2Epsilon,
              static_cast<float>(1 / std::sqrt(static_cast<double>(key_dim))),
              rule.q.data(), stride, key_dim, nullptr);
  L2NormHeads(all, rule.shape.k_heads, rule.shape.k_dim, rule.k.data(), stride,
              key_dim, kL2Epsilon, 1.0f, rule.k.data(), stride, key_dim,
              nullptr);
  return rule;
}

absl::Status CheckDeltaRule(const Case& c) {
  DELTAEDGE_ASSIGN_OR_RETURN(const DeltaRule rule, ReadDeltaRule(c));
  const int64_t rows = rule.rows;
  std::vector<float> out(rule.v.size()), step_out(rule.v.size());
  DELTAEDGE_ASSIGN_OR_RETURN(States begin, rule.Begin());
  DELTAEDGE_ASSIGN_OR_RETURN(States last,
                             States::Allocate(rule.shape, rule.batch));
  // Rows behind which a state is looked at.
  const bool all_rows = c.golden->Has(c.section, "step_states");
  std::vector<int64_t> watched;
  for (int64_t t = 0; t < rows; ++t) {
    if (all_rows || t == 0 || t == rows / 2 || t == rows - 1) {
      watched.push_back(t);
    }
  }
  const int64_t watches = static_cast<int64_t>(watched.size());
  DELTAEDGE_ASSIGN_OR_RETURN(
      States each, States::Allocate(rule.shape, rule.batch * watches));
  DELTAEDGE_ASSIGN_OR_RETURN(
      States folded, States::Allocate(rule.shape, rule.batch * watches));
  DELTAEDGE_ASSIGN_OR_RETURN(States next, States::Allocate(rule.shape, 1));
  DELTAEDGE_ASSIGN_OR_RETURN(States stepped, rule.Begin());

  std::vector<float> journal_k(rows * rule.key_floats());
  std::vector<float> journal_u(rows * rule.value_floats());
  std::vector<float> journal_gamma(rows * rule.shape.v_heads);
  GdnJournal journal;
  journal.k = journal_k.data();
  journal.u = journal_u.data();
  journal.gamma = journal_gamma.data();

  for (int64_t b = 0; b < rule.batch; ++b) {
    std::vector<float*> places(rows, nullptr);
    for (int64_t i = 0; i < watches; ++i) {
      places[watched[i]] = each.at(b * watches + i);
    }
    const int32_t whole[2] = {0, static_cast<int32_t>(rows)};
    GdnSequence sequence = {};
    sequence.state = begin.at(b);
    sequence.record = journal;
    sequence.last = last.at(b);
    sequence.each = places.data();
    const GdnBlock block = rule.Block(b, 0, whole, &sequence, out.data());
    ArgumentError error;
    if (!CheckGdnBlock(block, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the kernel refuses: ", ToString(error)));
    }
    GdnForward(block, nullptr);

    const int32_t none[2] = {0, 0};
    const int32_t one[2] = {0, 1};
    for (int64_t i = 0; i < watches; ++i) {
      GdnSequence fold = {};
      fold.state = begin.at(b);
      fold.fold = journal;
      fold.fold_rows = static_cast<int32_t>(watched[i] + 1);
      fold.last = folded.at(b * watches + i);
      GdnForward(rule.Block(b, 0, none, &fold, out.data()), nullptr);
    }
    for (int64_t t = 0; t < rows; ++t) {
      GdnSequence step = {};
      step.state = stepped.at(b);
      step.last = next.at(0);
      GdnForward(rule.Block(b, t, one, &step, step_out.data()), nullptr);
      std::copy_n(next.at(0), GdnStateFloats(rule.shape), stepped.at(b));
    }
  }

  const std::vector<float> final_state = last.Export();
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats golden, c.Get("out", 4));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(
      golden.shape, {rule.batch, rows, rule.shape.v_heads, rule.shape.v_dim}));
  c.report->Close(c.Name("out"), out, golden.values, kDeltaRuleLimit);
  DELTAEDGE_ASSIGN_OR_RETURN(golden, c.Get("final_state", 4));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(
      golden.shape,
      {rule.batch, rule.shape.v_heads, rule.shape.k_dim, rule.shape.v_dim}));
  c.report->Close(c.Name("final_state"), final_state, golden.values,
                  kDeltaRuleLimit);
  const std::vector<float> each_state = each.Export();
  if (all_rows) {
    DELTAEDGE_ASSIGN_OR_RETURN(golden, c.Get("step_states", 5));
    DELTAEDGE_RETURN_IF_ERROR(
        CheckShape(golden.shape, {rule.batch, rows, rule.shape.v_heads,
                                  rule.shape.k_dim, rule.shape.v_dim}));
    c.report->Close(c.Name("step_states"), each_state, golden.values,
                    kDeltaRuleLimit);
  }
  c.report->SameBits(c.Name("out, token by token"), step_out, out);
  c.report->SameBits(c.Name("final_state, token by token"), stepped.Export(),
                     final_state);
  c.report->SameBits(c.Name("states, folded from a journal"), folded.Export(),
                     each_state);
  return absl::OkStatus();
}

// [channels, columns] to [columns, channels].
std::vector<float> Transpose(absl::Span<const float> in, int64_t channels,
                             int64_t columns) {
  std::vector<float> out(in.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < columns; ++t) {
      out[t * channels + c] = in[c * columns + t];
    }
  }
  return out;
}

// One run of the convolution over [B, C, T] after `before` [B, C, K] (empty:
// at the start of a sequence), through the ring that sequences use.
struct Convolved {
  std::vector<float> out;    // [B, C, T]
  std::vector<float> state;  // [B, C, K]
};

absl::StatusOr<Convolved> Convolve(const GoldenFloats& x,
                                   const std::vector<float>& taps,
                                   const GoldenFloats* before, int64_t width) {
  const int64_t batch = x.dim(0), channels = x.dim(1), rows = x.dim(2);
  const int32_t count = static_cast<int32_t>(rows);
  // Far from 0, so that columns before it are read.
  const int64_t position = before == nullptr ? 0 : 1000;
  Convolved result;
  for (int64_t b = 0; b < batch; ++b) {
    RecurrentShape shape;
    shape.layers = 1;
    shape.column_floats = channels;
    shape.block_rows = static_cast<int32_t>(std::max(rows, width));
    DELTAEDGE_ASSIGN_OR_RETURN(RecurrentStore store,
                               RecurrentStore::Create(shape));
    if (before != nullptr) {
      const std::vector<float> columns =
          Transpose(before->row(b), channels, width);
      store.WriteColumns(0, position - width, static_cast<int32_t>(width),
                         columns.data(), channels);
    }
    const std::vector<float> columns = Transpose(x.row(b), channels, rows);
    std::vector<float> out(columns.size());
    Conv1dBlock block;
    block.channels = static_cast<int32_t>(channels);
    block.rows = count;
    block.position = position;
    block.ring = store.ring(0);
    block.ring_rows = shape.ring_rows();
    block.x = columns.data();
    block.x_stride = channels;
    block.weight = taps.data();
    block.out = out.data();
    block.out_stride = channels;
    Conv1dSiluForward(block, nullptr);
    store.WriteColumns(0, position, count, columns.data(), channels);

    const std::vector<float> dense = Transpose(out, rows, channels);
    result.out.insert(result.out.end(), dense.begin(), dense.end());
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = position + rows - width; p < position + rows; ++p) {
        const float* column = store.ring(0) + std::max<int64_t>(p, 0) %
                                                  shape.ring_rows() * channels;
        result.state.push_back(p < 0 ? 0.0f : column[c]);
      }
    }
  }
  return result;
}

absl::Status CheckConvolution(const Case& c) {
  const char* const kOutputs[] = {"update_out", "update_state_out",
                                  "prefill_out", "prefill_state_out"};
  if (c.golden->Has(c.section, "bias")) {
    for (const std::string& name : c.golden->Names(c.section)) {
      c.golden->Skip(c.section, name);
    }
    c.report->NotRun(c.section, "has a bias, which the kernel does not take");
    return absl::OkStatus();
  }
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats x, c.Get("x", 3));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats weight, c.Get("weight", 2));
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(x.shape));
  const int64_t channels = x.dim(1), width = weight.dim(1);
  if (width < 1 || width > kConvTaps) {
    c.report->NotRun(c.section,
                     absl::StrCat("has ", width, " taps; the kernel has 4"));
    return absl::OkStatus();
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(weight.shape, {channels, width}));
  std::vector<float> taps(kConvTaps * channels);
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      taps[(kConvTaps - width + j) * channels + i] =
          weight.values[i * width + j];
    }
  }
  const std::vector<int64_t> state_shape = {x.dim(0), channels, width};
  const auto compare = [&](absl::string_view name,
                           const std::vector<float>& ours,
                           absl::Span<const int64_t> shape) -> absl::Status {
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats golden, c.Get(name, 3));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, shape));
    c.report->Close(c.Name(name), ours, golden.values, kOperatorLimit);
    return absl::OkStatus();
  };
  if (c.golden->Has(c.section, kOutputs[0]) ||
      c.golden->Has(c.section, kOutputs[1])) {
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats before, c.Get("state_in", 3));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(before.shape, state_shape));
    DELTAEDGE_ASSIGN_OR_RETURN(Convolved update,
                               Convolve(x, taps, &before, width));
    DELTAEDGE_RETURN_IF_ERROR(compare(kOutputs[0], update.out, x.shape));
    DELTAEDGE_RETURN_IF_ERROR(compare(kOutputs[1], update.state, state_shape));
  }
  if (c.golden->Has(c.section, kOutputs[2]) ||
      c.golden->Has(c.section, kOutputs[3])) {
    DELTAEDGE_ASSIGN_OR_RETURN(Convolved prefill,
                               Convolve(x, taps, nullptr, width));
    DELTAEDGE_RETURN_IF_ERROR(compare(kOutputs[2], prefill.out, x.shape));
    DELTAEDGE_RETURN_IF_ERROR(compare(kOutputs[3], prefill.state, state_shape));
  }
  return absl::OkStatus();
}

// The object with "case": n of `meta`[family]; null if there is none.
const nlohmann::json* FindMeta(const nlohmann::json& meta,
                               absl::string_view family, int32_t number) {
  if (!meta.is_object()) return nullptr;
  const auto cases = meta.find(std::string(family));
  if (cases == meta.end() || !cases->is_array()) return nullptr;
  for (const nlohmann::json& entry : *cases) {
    if (!entry.is_object()) continue;
    const auto found = entry.find("case");
    if (found != entry.end() && found->is_number_integer() &&
        found->get<int64_t>() == number) {
      return &entry;
    }
  }
  return nullptr;
}

// A number of `entry`; InvalidArgument if it is not there.
absl::StatusOr<double> MetaNumber(const nlohmann::json* entry,
                                  const char* key) {
  if (entry == nullptr || !entry->contains(key) || !(*entry)[key].is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ops_meta.json beside the golden must tell ", key));
  }
  return (*entry)[key].get<double>();
}

absl::Status CheckNorms(const Case& c, const nlohmann::json* meta) {
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats x, c.Get("x", 2));
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(x.shape));
  const int32_t rows = static_cast<int32_t>(x.dim(0));
  const int32_t dim = static_cast<int32_t>(x.dim(1));
  std::vector<float> y(x.values.size());
  const auto compare = [&](absl::string_view name) -> absl::Status {
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats golden, c.Get(name, 2));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, x.shape));
    c.report->Close(c.Name(name), y, golden.values, kOperatorLimit);
    return absl::OkStatus();
  };
  if (c.golden->Has(c.section, "gated_out")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const double eps, MetaNumber(meta, "eps"));
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats gate, c.Get("gate", 2));
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats weight, c.Get("gated_weight", 1));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(gate.shape, x.shape));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(weight.shape, {dim}));
    GatedRmsNormHeads(rows, 1, dim, x.values.data(), dim, dim,
                      gate.values.data(), dim, dim, weight.values.data(),
                      static_cast<float>(eps), y.data(), dim, dim, nullptr);
    DELTAEDGE_RETURN_IF_ERROR(compare("gated_out"));
  }
  if (c.golden->Has(c.section, "rmsnorm_out")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const double eps, MetaNumber(meta, "eps"));
    DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats weight,
                               c.Get("zero_centred_weight", 1));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(weight.shape, {dim}));
    for (float& w : weight.values) w += 1.0f;
    RmsNorm(rows, dim, x.values.data(), dim, weight.values.data(),
            static_cast<float>(eps), y.data(), dim, nullptr);
    DELTAEDGE_RETURN_IF_ERROR(compare("rmsnorm_out"));
  }
  if (c.golden->Has(c.section, "l2norm_out")) {
    L2NormHeads(rows, 1, dim, x.values.data(), dim, dim, kL2Epsilon, 1.0f,
                y.data(), dim, dim, nullptr);
    DELTAEDGE_RETURN_IF_ERROR(compare("l2norm_out"));
  }
  return absl::OkStatus();
}

absl::Status CheckGates(const Case& c) {
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats a, c.Get("a", 2));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats b, c.Get("b", 2));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats a_log, c.Get("A_log", 1));
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats dt_bias, c.Get("dt_bias", 1));
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(a.shape));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(b.shape, a.shape));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(a_log.shape, {a.dim(1)}));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(dt_bias.shape, {a.dim(1)}));
  std::vector<float> neg_exp_a, log_decay(a.values.size()),
      beta(a.values.size());
  for (const float value : a_log.values) {
    neg_exp_a.push_back(static_cast<float>(-std::exp(double{value})));
  }
  GdnGatesForward(static_cast<int32_t>(a.dim(0)),
                  static_cast<int32_t>(a.dim(1)), a.values.data(), a.dim(1),
                  b.values.data(), b.dim(1), neg_exp_a.data(),
                  dt_bias.values.data(), log_decay.data(), beta.data());
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats golden, c.Get("g", 2));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, a.shape));
  c.report->Close(c.Name("g"), log_decay, golden.values, kOperatorLimit);
  DELTAEDGE_ASSIGN_OR_RETURN(golden, c.Get("beta", 2));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, a.shape));
  c.report->Close(c.Name("beta"), beta, golden.values, kOperatorLimit);
  return absl::OkStatus();
}

absl::Status CheckRope(const Case& c, const nlohmann::json* meta) {
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats x, c.Get("x", 3));  // [H, T, D]
  DELTAEDGE_RETURN_IF_ERROR(CheckSizes(x.shape));
  DELTAEDGE_ASSIGN_OR_RETURN(const double rotary,
                             MetaNumber(meta, "rotary_dim"));
  DELTAEDGE_ASSIGN_OR_RETURN(const double theta, MetaNumber(meta, "theta"));
  DELTAEDGE_ASSIGN_OR_RETURN(const double first, MetaNumber(meta, "pos0"));
  const int64_t rows = x.dim(1), dim = x.dim(2);
  if (!(rotary >= 2 && rotary <= dim && std::fmod(rotary, 2) == 0 &&
        theta > 0 && first >= 0 && first < 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary_dim ", rotary, ", theta ", theta, ", pos0 ", first,
                     " of ops_meta.json do not fit heads of ", dim));
  }
  const int32_t rotary_dim = static_cast<int32_t>(rotary);
  std::vector<float> cos(rows * rotary_dim / 2), sin(rows * rotary_dim / 2);
  RopeTable(static_cast<int64_t>(first), static_cast<int32_t>(rows), rotary_dim,
            theta, cos.data(), sin.data());
  RopeApply(static_cast<int32_t>(rows), static_cast<int32_t>(x.dim(0)),
            rotary_dim, x.values.data(), dim, rows * dim, cos.data(),
            sin.data(), nullptr);
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenFloats golden, c.Get("out", 3));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, x.shape));
  c.report->Close(c.Name("out"), x.values, golden.values, kOperatorLimit);
  return absl::OkStatus();
}

// "gdr12" is case 12 of family "gdr"; -1: of another family.
int32_t CaseNumber(absl::string_view section, absl::string_view family) {
  int32_t number = -1;
  if (!absl::StartsWith(section, family) ||
      !absl::SimpleAtoi(section.substr(family.size()), &number)) {
    return -1;
  }
  return number;
}

bool HasGates(const GoldenTensors& golden) {
  return golden.Has("", "A_log") && golden.Has("", "dt_bias");
}

}  // namespace

bool IsOperatorGolden(const GoldenTensors& golden) {
  if (HasGates(golden)) return true;
  for (const std::string& section : golden.Sections()) {
    for (const char* family : {"gdr", "conv", "norm", "rope"}) {
      if (CaseNumber(section, family) >= 0) return true;
    }
  }
  return false;
}

void CheckOperators(GoldenTensors* golden, const nlohmann::json& meta,
                    Report* report) {
  const ScopedFpMode fp_mode;
  for (const std::string& section : golden->Sections()) {
    const Case c = {golden, section, report};
    absl::Status status;
    if (CaseNumber(section, "gdr") >= 0) {
      status = CheckDeltaRule(c);
    } else if (CaseNumber(section, "conv") >= 0) {
      status = CheckConvolution(c);
    } else if (const int32_t n = CaseNumber(section, "norm"); n >= 0) {
      status = CheckNorms(c, FindMeta(meta, "norms", n));
    } else if (const int32_t n = CaseNumber(section, "rope"); n >= 0) {
      status = CheckRope(c, FindMeta(meta, "rope", n));
    } else if (section.empty() && HasGates(*golden)) {
      status = CheckGates(c);
    }
    if (!status.ok()) report->Fail(section, status);
  }
}

}  // namespace deltaedge
