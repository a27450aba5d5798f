// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/target_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/fp_mode.h"
#include "engine/base/status_macros.h"
#include "engine/graph/export_state.h"
#include "engine/ops/row_check.h"

namespace deltaedge {

namespace {

// Rows of one chunk: what fits a matrix.
constexpr int64_t kMaxPromptRows = int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<TargetRunner>> TargetRunner::Create(
    const ModelFile& file, absl::Span<const int32_t> taps, int64_t max_rows,
    pthreadpool_t pool) {
  if (max_rows > kMaxPromptRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", max_rows, " tokens; at most ", kMaxPromptRows));
  }
  const TargetConfig& config = file.target_config();
  DELTAEDGE_ASSIGN_OR_RETURN(
      SpareStates spare,
      SpareStates::Create(TargetRecurrentShape(config, /*block_rows=*/1)));
  std::unique_ptr<TargetRunner> runner(new TargetRunner(std::move(spare)));
  DELTAEDGE_ASSIGN_OR_RETURN(runner->linear_options_,
                             FindLinearOptions(file.weight_types(), pool));
  runner->tap_floats_ = static_cast<int64_t>(taps.size()) * config.hidden_size;
  DELTAEDGE_ASSIGN_OR_RETURN(
      runner->model_, MakeTargetModel(config, file.target_weights(), taps,
                                      static_cast<int32_t>(std::max<int64_t>(
                                          max_rows, kMaxBlockRows)),
                                      runner->linear_options_, pool));
  DELTAEDGE_ASSIGN_OR_RETURN(
      runner->stepper_, Stepper::Create(runner->model_.get(),
                                        runner->tap_floats_, kMaxBlockRows));
  return runner;
}

absl::StatusOr<TargetSequence> TargetRunner::NewSequence(
    int64_t capacity, Rollback rollback) const {
  return MakeTargetSequence(config(), capacity, kMaxBlockRows, rollback);
}

absl::Status TargetRunner::Step(absl::Span<const TokenId> tokens,
                                int32_t max_drafts, TargetSequence* sequence,
                                BlockDrafter* drafter, StepResult* result) {
  logits_.resize(kMaxBlockRows * vocab_size());
  StepItem item;
  item.sequence = tokens;
  item.max_drafts = max_drafts;
  item.state = sequence;
  item.drafter = drafter;
  item.sampler = &greedy_;
  item.result = result;
  item.logits = logits_.data();
  return stepper_->Step(item);
}

absl::Status TargetRunner::Prefill(absl::Span<const TokenId> tokens,
                                   TargetSequence* sequence,
                                   BlockDrafter* drafter, float* logits) {
  StepResult result;
  StepItem item;
  item.chunk = tokens;
  item.state = sequence;
  item.drafter = drafter;
  item.result = &result;
  item.logits = logits;
  return stepper_->Step(item);
}

absl::StatusOr<TargetRunner::Outputs> TargetRunner::Run(
    absl::Span<const TokenId> tokens, TargetSequence* sequence) {
  const ScopedFpMode fp_mode;
  const int64_t rows = static_cast<int64_t>(tokens.size());
  Outputs outputs;
  outputs.logits.resize(rows * vocab_size());
  outputs.final_hidden.resize(rows * config().hidden_size);
  DELTAEDGE_ASSIGN_OR_RETURN(
      outputs.taps,
      AlignedArray<float>::Allocate({rows, tap_floats_}, "tapped rows"));
  const MoeConfig& moe = config().moe;
  const int64_t routed =
      std::count(moe.layers.begin(), moe.layers.end(), true) * rows;
  outputs.router_logits.resize(routed * moe.experts);
  outputs.router_ids.resize(routed * moe.experts_per_token);
  outputs.router_weights.resize(routed * moe.experts_per_token);
  const RouterOutputs routers = {outputs.router_logits.data(),
                                 outputs.router_ids.data(),
                                 outputs.router_weights.data()};
  TargetPass pass;
  pass.tokens = tokens;
  DELTAEDGE_ASSIGN_OR_RETURN(pass.plan,
                             sequence->cursor.Plan(static_cast<int32_t>(rows)));
  pass.sequence = sequence;
  pass.spare = &spare_;
  pass.logits = outputs.logits.data();
  pass.final_hidden = outputs.final_hidden.data();
  pass.taps = outputs.taps.empty() ? nullptr : outputs.taps.data();
  pass.routers = &routers;
  sequence->cursor.Begin(pass.plan);
  DELTAEDGE_RETURN_IF_ERROR(model_->Run(pass));
  sequence->recurrent.Adopt(pass.plan, sequence->cursor.column(), &spare_);
  sequence->cursor.PublishPrefill(pass.plan);
  return outputs;
}

absl::StatusOr<std::vector<float>> TargetRunner::WholeState(
    TargetSequence* sequence) const {
  std::vector<float> all, part, values;
  for (size_t i = 0; i < config().layers.size(); ++i) {
    const int32_t layer = static_cast<int32_t>(i);
    if (config().layers[i] == LayerKind::kGatedDeltaNet) {
      DELTAEDGE_RETURN_IF_ERROR(
          ExportRecurrentState(config(), layer, sequence, &part));
      DELTAEDGE_RETURN_IF_ERROR(
          ExportConvColumns(config(), layer, sequence, &values));
    } else {
      DELTAEDGE_RETURN_IF_ERROR(
          ExportKv(config(), layer, sequence, &part, &values));
    }
    all.insert(all.end(), part.begin(), part.end());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

absl::Status TargetRunner::CompareState(absl::string_view name,
                                        absl::string_view kind, int32_t layer,
                                        const GoldenFloats& golden,
                                        TargetSequence* sequence,
                                        Report* report) const {
  const GdnConfig& gdn = config().gdn;
  const AttentionConfig& attention = config().attention;
  std::vector<float> ours;
  if (kind == "conv_state") {
    DELTAEDGE_RETURN_IF_ERROR(
        ExportConvColumns(config(), layer, sequence, &ours));
    const int64_t channels = gdn.conv_channels();
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {channels, 4}));
    report->Close(name, ours, NewestConvColumns(golden.values, channels),
                  kModelLimit);
  } else if (kind == "rec_state") {
    DELTAEDGE_RETURN_IF_ERROR(
        ExportRecurrentState(config(), layer, sequence, &ours));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(
        golden.shape, {gdn.value_heads, gdn.key_dim, gdn.value_dim}));
    report->Close(name, ours, golden.values, kModelLimit);
  } else {
    std::vector<float> values;
    DELTAEDGE_RETURN_IF_ERROR(
        ExportKv(config(), layer, sequence, &ours, &values));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(
        golden.shape,
        {attention.kv_heads, sequence->cursor.length(), attention.head_dim}));
    report->Close(name, kind == "k" ? ours : values, golden.values,
                  kModelLimit);
  }
  return absl::OkStatus();
}

std::vector<float> NewestConvColumns(absl::Span<const float> state,
                                     int64_t channels) {
  std::vector<float> columns(3 * channels);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < 3; ++i) {
      columns[i * channels + c] = state[c * 4 + i + 1];
    }
  }
  return columns;
}

Winner FindWinner(absl::Span<const float> logits) {
  Winner winner;
  double second = -std::numeric_limits<double>::infinity();
  winner.logit = second;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return Winner();
    if (logits[i] > winner.logit) {
      second = winner.logit;
      winner.logit = logits[i];
      winner.token = static_cast<TokenId>(i);
    } else {
      second = std::max<double>(second, logits[i]);
    }
  }
  winner.gap = winner.logit - second;
  return winner;
}

}  // namespace deltaedge
