// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/target_golden.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/base/status_macros.h"
#include "engine/graph/export_state.h"
#include "engine/model/config.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/types.h"
#include "tools/golden_check/draft_runner.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {

namespace {

constexpr absl::string_view kAfterGreedy = "after_greedy.";

// "rec_state.3", but not "after_greedy.rec_state.3".
bool IsStateName(absl::string_view name) {
  const auto [kind, layer] = SplitNumber(name);
  return layer >= 0 && (kind == "conv_state" || kind == "rec_state" ||
                        kind == "k" || kind == "v");
}

// One prompt of a golden, in the hands of its checks.
struct Prompt {
  TargetRunner* runner;
  GoldenTensors* golden;
  std::string section;
  Report* report;
  std::vector<TokenId> ids;

  std::string Name(absl::string_view what) const {
    return absl::StrCat(section, ".", what);
  }
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

// What `section` gives as its prompt.
absl::StatusOr<Prompt> ReadPrompt(TargetRunner* runner, GoldenTensors* golden,
                                  const std::string& section, Report* report) {
  Prompt prompt = {runner, golden, section, report, {}};
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts ids,
                             golden->Ints(section, "ids", 1));
  DELTAEDGE_ASSIGN_OR_RETURN(prompt.ids,
                             ToTokens(ids.values, runner->config().vocab_size));
  if (prompt.ids.empty()) {
    return absl::InvalidArgumentError("a prompt of no tokens");
  }
  return prompt;
}

// Compares `name`, one layer's state: `of` without what stands before it.
absl::Status CheckState(const Prompt& prompt, const std::string& name,
                        absl::string_view of, TargetSequence* sequence) {
  const auto [kind, layer] = SplitNumber(of);
  DELTAEDGE_ASSIGN_OR_RETURN(
      const GoldenFloats golden,
      prompt.golden->Floats(prompt.section, name,
                            kind == "conv_state" ? 2 : 3));
  return prompt.runner->CompareState(prompt.Name(name), kind, layer, golden,
                                     sequence, prompt.report);
}

// Compares what came out of the prompt as one chunk.
absl::Status CheckOutput(const Prompt& prompt, const std::string& name,
                         const TargetRunner::Outputs& outputs) {
  const TargetConfig& config = prompt.runner->config();
  const int64_t rows = prompt.rows(), hidden = config.hidden_size;
  const int32_t layers = static_cast<int32_t>(config.layers.size());
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden,
                             prompt.golden->Floats(prompt.section, name, 2));
  const std::string full_name = prompt.Name(name);
  if (name == "logits") {
    DELTAEDGE_RETURN_IF_ERROR(
        CheckShape(golden.shape, {rows, config.vocab_size}));
    prompt.report->Close(full_name, outputs.logits, golden.values, kModelLimit);
    return absl::OkStatus();
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {rows, hidden}));
  if (name == "hidden.final") {
    prompt.report->Close(full_name, outputs.final_hidden, golden.values,
                         kModelLimit);
    return absl::OkStatus();
  }
  const int32_t layer = SplitNumber(name).second;
  if (layer > layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has only ", layers, " layers"));
  }
  std::vector<float> ours(rows * hidden);
  if (layer == 0) {
    prompt.runner->model().Embed(prompt.ids, ours.data());
  } else {
    for (int64_t t = 0; t < rows; ++t) {
      std::copy_n(outputs.taps.data() + (t * layers + layer - 1) * hidden,
                  hidden, ours.data() + t * hidden);
    }
  }
  prompt.report->Close(full_name, ours, golden.values, kModelLimit);
  return absl::OkStatus();
}

// "router_topk.3"
bool IsRouterName(absl::string_view name) {
  const auto [kind, layer] = SplitNumber(name);
  return layer >= 0 && (kind == "router_logits" || kind == "router_topk" ||
                        kind == "router_weights");
}

// Compares what the router of one layer decided about the prompt's rows.
absl::Status CheckRouter(const Prompt& prompt, const std::string& name,
                         const TargetRunner::Outputs& outputs) {
  const TargetConfig& config = prompt.runner->config();
  const MoeConfig& moe = config.moe;
  const auto [kind, layer] = SplitNumber(name);
  const auto layers = static_cast<int32_t>(config.layers.size());
  if (layer >= layers || !config.has_experts(static_cast<size_t>(layer))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no experts in layer ", layer));
  }
  const int64_t rows = prompt.rows();
  const int64_t width =
      kind == "router_logits" ? moe.experts : moe.experts_per_token;
  const auto size = static_cast<size_t>(rows * width);
  const size_t begin =
      size * static_cast<size_t>(std::count(moe.layers.begin(),
                                            moe.layers.begin() + layer, true));
  if (kind == "router_topk") {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts golden,
                               prompt.golden->Ints(prompt.section, name, 2));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {rows, width}));
    const auto ids = outputs.router_ids.begin() + static_cast<ptrdiff_t>(begin);
    prompt.report->Equal(
        prompt.Name(name),
        std::vector<int64_t>(ids, ids + static_cast<ptrdiff_t>(size)),
        golden.values);
    return absl::OkStatus();
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden,
                             prompt.golden->Floats(prompt.section, name, 2));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {rows, width}));
  prompt.report->Close(
      prompt.Name(name),
      absl::MakeConstSpan(kind == "router_logits" ? outputs.router_logits
                                                  : outputs.router_weights)
          .subspan(begin, size),
      golden.values, kModelLimit);
  return absl::OkStatus();
}

bool IsOutputName(absl::string_view name) {
  const auto [kind, number] = SplitNumber(name);
  return name == "logits" || name == "hidden.final" ||
         (kind == "hidden" && number >= 0);
}

// The prompt in chunks of 1, 2, 3, 5, 8, 13 ... rows.
absl::Status CheckChunks(const Prompt& prompt, const std::vector<float>& logits,
                         const std::vector<float>& state) {
  TargetRunner& runner = *prompt.runner;
  DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                             runner.NewSequence(prompt.rows()));
  NullDrafter drafter;
  std::vector<float> ours(logits.size());
  int64_t size = 1, next = 2;
  for (int64_t first = 0; first < prompt.rows();) {
    const int64_t rows = std::min(size, prompt.rows() - first);
    DELTAEDGE_RETURN_IF_ERROR(runner.Prefill(
        absl::MakeConstSpan(prompt.ids).subspan(first, rows), &sequence,
        &drafter, ours.data() + first * runner.vocab_size()));
    first += rows;
    size = std::exchange(next, size + next);
  }
  prompt.report->SameBits(prompt.Name("logits, in chunks"), ours, logits);
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<float> our_state,
                             runner.WholeState(&sequence));
  prompt.report->SameBits(prompt.Name("state, in chunks"), our_state, state);
  return absl::OkStatus();
}

// The prompt as blocks of up to 16 rows, of which only some are kept.
absl::Status CheckBlocks(const Prompt& prompt, const std::vector<float>& logits,
                         const std::vector<float>& state) {
  TargetRunner& runner = *prompt.runner;
  const int64_t vocab = runner.vocab_size();
  DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                             runner.NewSequence(prompt.rows()));
  ScriptedDrafter drafter;
  StepResult result;
  std::vector<float> ours(logits.size());
  int64_t steps = 0;
  for (int64_t first = 0; first < prompt.rows(); ++steps) {
    const int64_t rows =
        std::min<int64_t>(kMaxBlockRows - steps % 3, prompt.rows() - first);
    const auto end = prompt.ids.begin() + first + rows;
    drafter.drafts.assign(prompt.ids.begin() + first + 1, end);
    DELTAEDGE_RETURN_IF_ERROR(
        runner.Step(absl::MakeConstSpan(prompt.ids).first(first + 1),
                    kMaxBlockRows - 1, &sequence, &drafter, &result));
    std::copy_n(runner.logits(), rows * vocab, ours.data() + first * vocab);
    const int64_t kept = std::min<int64_t>(rows, 1 + steps * 5 % kMaxBlockRows);
    DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(static_cast<int32_t>(rows)));
    DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(0));
    DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(static_cast<int32_t>(kept)));
    first += kept;
  }
  prompt.report->SameBits(prompt.Name("logits, in blocks"), ours, logits);
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<float> our_state,
                             runner.WholeState(&sequence));
  prompt.report->SameBits(prompt.Name("state, in blocks"), our_state, state);
  return absl::OkStatus();
}

// A continuation and the scores from which each token was picked.
struct Continuation {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [tokens, vocab_size]
};

// Continues `sequence`, which covers `prompt`, from the prompt's last scores
// until there are `count` tokens, the last of which it does not cover.
absl::StatusOr<Continuation> Continue(TargetRunner& runner,
                                      const std::vector<TokenId>& prompt,
                                      absl::Span<const float> last_logits,
                                      int64_t count, TargetSequence* sequence,
                                      BlockDrafter* drafter,
                                      int32_t max_drafts) {
  const size_t vocab = static_cast<size_t>(runner.vocab_size());
  Continuation run;
  std::vector<TokenId> tokens = prompt;
  const auto append = [&](TokenId token, absl::Span<const float> logits) {
    run.tokens.push_back(token);
    run.logits.insert(run.logits.end(), logits.begin(), logits.end());
    tokens.push_back(token);
  };
  const Winner first = FindWinner(last_logits);
  if (first.token < 0) {
    return absl::InternalError("the scores of the prompt are not numbers");
  }
  append(first.token, last_logits);
  StepResult result;
  while (static_cast<int64_t>(run.tokens.size()) < count) {
    const int64_t missing = count - static_cast<int64_t>(run.tokens.size());
    DELTAEDGE_RETURN_IF_ERROR(
        runner.Step(tokens, max_drafts, sequence, drafter, &result));
    const int64_t kept = std::min<int64_t>(result.tokens.size(), missing);
    DELTAEDGE_RETURN_IF_ERROR(
        sequence->cursor.Keep(static_cast<int32_t>(kept)));
    for (int64_t i = 0; i < kept; ++i) {
      append(result.tokens[i],
             absl::MakeConstSpan(runner.logits() + i * vocab, vocab));
    }
  }
  return run;
}

// Drafts a known continuation, so that 0, 1, ... of the drafts in turn are
// right, then one is wrong, and those behind it are right again.
class HalfRightDrafter : public NullDrafter {
 public:
  HalfRightDrafter(std::vector<TokenId> truth, int64_t prompt_rows,
                   int32_t vocab_size)
      : truth_(std::move(truth)),
        prompt_rows_(prompt_rows),
        vocab_size_(vocab_size) {}

  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags, std::vector<TokenId>* drafts) override {
    const int64_t known = static_cast<int64_t>(sequence.size()) - prompt_rows_;
    for (int64_t i = 0; i < max_drafts; ++i) {
      const int64_t at = known + i;
      if (at >= static_cast<int64_t>(truth_.size())) break;
      drafts->push_back(i == turn_ ? (truth_[at] + 1) % vocab_size_
                                   : truth_[at]);
    }
    turn_ = (turn_ + 1) % (max_drafts + 1);
    return absl::OkStatus();
  }

 private:
  const std::vector<TokenId> truth_;
  const int64_t prompt_rows_;
  const int32_t vocab_size_;
  int32_t turn_ = 0;
};

absl::Status CheckGreedyTensors(const Prompt& prompt, const Continuation& ours,
                                TargetSequence* sequence) {
  const size_t vocab = static_cast<size_t>(prompt.runner->vocab_size());
  std::vector<float> logits, gaps;
  for (size_t i = 0; i < ours.tokens.size(); ++i) {
    const Winner winner =
        FindWinner(absl::MakeConstSpan(ours.logits).subspan(i * vocab, vocab));
    logits.push_back(static_cast<float>(winner.logit));
    gaps.push_back(static_cast<float>(winner.gap));
  }
  const std::string& section = prompt.section;
  GoldenTensors& golden = *prompt.golden;
  double scale = MaxAbs(logits);
  if (golden.Has(section, "greedy_top1_logit")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats top,
                               golden.Floats(section, "greedy_top1_logit", 1));
    prompt.report->Close(prompt.Name("greedy_top1_logit"), logits, top.values,
                         kModelLimit);
    scale = MaxAbs(top.values);
  }
  if (golden.Has(section, "greedy_top2_gap")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats gap,
                               golden.Floats(section, "greedy_top2_gap", 1));
    // The difference of two logits is as good as these are.
    prompt.report->Close(prompt.Name("greedy_top2_gap"), gaps, gap.values,
                         kModelLimit, scale);
  }
  for (const std::string& name : golden.Names(section)) {
    if (!absl::StartsWith(name, kAfterGreedy) ||
        !IsStateName(absl::StripPrefix(name, kAfterGreedy)))
      continue;
    const absl::Status status = CheckState(
        prompt, name, absl::StripPrefix(name, kAfterGreedy), sequence);
    if (!status.ok()) prompt.report->Fail(prompt.Name(name), status);
  }
  return absl::OkStatus();
}

// The greedy continuation: one by one against `golden`, and with drafts against
// that. `sequence` covers the prompt; `draft` may be null.
absl::Status CheckGreedy(const Prompt& prompt, const GoldenInts& golden,
                         absl::Span<const float> logits,
                         TargetSequence* sequence, DraftRunner* draft) {
  TargetRunner& runner = *prompt.runner;
  const int64_t count = golden.dim(0);
  const absl::Span<const float> last =
      logits.last(static_cast<size_t>(runner.vocab_size()));
  NullDrafter none;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const Continuation plain,
      Continue(runner, prompt.ids, last, count, sequence, &none, 0));
  prompt.report->Equal(
      prompt.Name("greedy"),
      std::vector<int64_t>(plain.tokens.begin(), plain.tokens.end()),
      golden.values);
  DELTAEDGE_RETURN_IF_ERROR(CheckGreedyTensors(prompt, plain, sequence));

  const int64_t capacity = prompt.rows() + count + kMaxBlockRows;
  const auto check = [&](absl::string_view how, TargetRunner& target,
                         BlockDrafter* drafter,
                         int32_t max_drafts) -> absl::Status {
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence other,
                               target.NewSequence(capacity));
    DELTAEDGE_RETURN_IF_ERROR(target.Prefill(prompt.ids, &other, drafter));
    DELTAEDGE_ASSIGN_OR_RETURN(
        const Continuation drafted,
        Continue(target, prompt.ids, last, count, &other, drafter, max_drafts));
    prompt.report->Equal(
        prompt.Name(absl::StrCat("greedy, ", how)),
        std::vector<int64_t>(drafted.tokens.begin(), drafted.tokens.end()),
        std::vector<int64_t>(plain.tokens.begin(), plain.tokens.end()));
    prompt.report->SameBits(prompt.Name(absl::StrCat("logits, ", how)),
                            drafted.logits, plain.logits);
    return absl::OkStatus();
  };
  HalfRightDrafter half_right(plain.tokens, prompt.rows(),
                              runner.config().vocab_size);
  DELTAEDGE_RETURN_IF_ERROR(
      check("scripted drafts", runner, &half_right, kMaxBlockRows - 1));
  if (draft == nullptr) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(auto drafter,
                             DFlashDrafter::Create(&draft->draft(), capacity));
  return check("with the draft", draft->target(), drafter.get(),
               draft->config().block_size - 1);
}

absl::Status CheckTargetPrompt(const Prompt& prompt, DraftRunner* draft) {
  TargetRunner& runner = *prompt.runner;
  GoldenTensors& golden = *prompt.golden;
  GoldenInts greedy;
  if (golden.Has(prompt.section, "greedy")) {
    DELTAEDGE_ASSIGN_OR_RETURN(greedy,
                               golden.Ints(prompt.section, "greedy", 1));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      TargetSequence sequence,
      runner.NewSequence(prompt.rows() + greedy.dim(0) + kMaxBlockRows));
  DELTAEDGE_ASSIGN_OR_RETURN(const TargetRunner::Outputs outputs,
                             runner.Run(prompt.ids, &sequence));
  for (const std::string& name : golden.Names(prompt.section)) {
    absl::Status status;
    if (IsOutputName(name)) {
      status = CheckOutput(prompt, name, outputs);
    } else if (IsStateName(name)) {
      status = CheckState(prompt, name, name, &sequence);
    } else if (IsRouterName(name)) {
      status = CheckRouter(prompt, name, outputs);
    }
    if (!status.ok()) prompt.report->Fail(prompt.Name(name), status);
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<float> state,
                             runner.WholeState(&sequence));
  DELTAEDGE_RETURN_IF_ERROR(CheckChunks(prompt, outputs.logits, state));
  DELTAEDGE_RETURN_IF_ERROR(CheckBlocks(prompt, outputs.logits, state));
  if (greedy.values.empty()) return absl::OkStatus();
  return CheckGreedy(prompt, greedy, outputs.logits, &sequence, draft);
}

// The states of one layer after every step, [steps, ...].
struct LayerState {
  std::string name, kind;
  int32_t layer;
  std::vector<float> ours;
};

// Decoding with given blocks.
class RiggedRun {
 public:
  explicit RiggedRun(const Prompt& prompt) : prompt_(prompt) {}

  // With a journal, compared with the golden.
  absl::Status Run() {
    Winner first;
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                               RunSteps(Rollback::kJournal, &first));
    return Compare(first, &sequence);
  }

  // With a state per row, compared with `journal` by bits.
  absl::Status RunSlots(const RiggedRun& journal) {
    Winner first;
    DELTAEDGE_RETURN_IF_ERROR(RunSteps(Rollback::kSlots, &first).status());
    Report& report = *prompt_.report;
    report.SameBits(prompt_.Name("logits, with slots"), logits_,
                    journal.logits_);
    for (size_t i = 0; i < states_.size(); ++i) {
      report.SameBits(
          prompt_.Name(absl::StrCat(states_[i].name, ", with slots")),
          states_[i].ours, journal.states_[i].ours);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<TargetSequence> RunSteps(Rollback rollback, Winner* first) {
    DELTAEDGE_RETURN_IF_ERROR(Read());
    TargetRunner& runner = *prompt_.runner;
    const int64_t steps = block_.dim(0), rows = block_.dim(1);
    DELTAEDGE_ASSIGN_OR_RETURN(
        TargetSequence sequence,
        runner.NewSequence(prompt_.rows() + (steps + 1) * rows, rollback));
    DELTAEDGE_ASSIGN_OR_RETURN(const TargetRunner::Outputs outputs,
                               runner.Run(prompt_.ids, &sequence));
    const absl::Span<const float> logits = outputs.logits;
    *first = FindWinner(logits.last(static_cast<size_t>(runner.vocab_size())));
    tokens_ = prompt_.ids;
    tokens_.push_back(static_cast<TokenId>(block_.values[0]));
    emitted_ = {first->token};
    for (int64_t s = 0; s < steps; ++s) {
      DELTAEDGE_RETURN_IF_ERROR(Step(s, &sequence));
    }
    return sequence;
  }

  absl::Status Read() {
    GoldenTensors& golden = *prompt_.golden;
    const int32_t vocab = prompt_.runner->config().vocab_size;
    DELTAEDGE_ASSIGN_OR_RETURN(block_, Ints("block", 2));
    DELTAEDGE_ASSIGN_OR_RETURN(accept_, Ints("accept", 1));
    DELTAEDGE_ASSIGN_OR_RETURN(posterior_, Ints("posterior", 2));
    const int64_t steps = block_.dim(0), rows = block_.dim(1);
    if (steps < 1 || rows < 1 || rows > kMaxBlockRows) {
      return absl::InvalidArgumentError(
          absl::StrCat("block has shape ", ShapeText(block_.shape),
                       "; a block is 1 to ", kMaxBlockRows, " rows"));
    }
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(accept_.shape, {steps}));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(posterior_.shape, {steps, rows}));
    DELTAEDGE_RETURN_IF_ERROR(ToTokens(block_.values, vocab).status());
    DELTAEDGE_RETURN_IF_ERROR(ToTokens(posterior_.values, vocab).status());
    for (const int64_t accept : accept_.values) {
      if (accept < 0 || accept >= rows) {
        return absl::InvalidArgumentError(absl::StrCat(
            "accept is ", accept, " in a block of ", rows, " rows"));
      }
    }
    for (const std::string& name : golden.Names(prompt_.section)) {
      const auto [kind, layer] = SplitNumber(name);
      if (layer >= 0 && (kind == "conv_state" || kind == "rec_state")) {
        states_.push_back({name, kind, layer, {}});
      }
    }
    return absl::OkStatus();
  }

  // One block, followed by what the golden says was kept of it, so that one
  // wrong step is one failure and not many.
  absl::Status Step(int64_t s, TargetSequence* sequence) {
    const int64_t rows = block_.dim(1);
    const int64_t vocab = prompt_.runner->vocab_size();
    starts_.push_back(sequence->cursor.length());
    anchors_.push_back(tokens_.back());
    drafter_.drafts.clear();
    for (const int64_t token : block_.row(s).subspan(1)) {
      drafter_.drafts.push_back(static_cast<TokenId>(token));
    }
    StepResult result;
    DELTAEDGE_RETURN_IF_ERROR(prompt_.runner->Step(
        tokens_, static_cast<int32_t>(rows - 1), sequence, &drafter_, &result));
    accepts_.push_back(result.accepted);
    emitted_.insert(emitted_.end(), result.tokens.begin(), result.tokens.end());
    logits_.insert(logits_.end(), prompt_.runner->logits(),
                   prompt_.runner->logits() + rows * vocab);

    const int64_t kept = accept_.values[s] + 1;
    for (const int64_t other : {rows, int64_t{0}, kept}) {
      DELTAEDGE_RETURN_IF_ERROR(
          sequence->cursor.Keep(static_cast<int32_t>(other)));
    }
    tokens_.insert(tokens_.end(), drafter_.drafts.begin(),
                   drafter_.drafts.begin() + kept - 1);
    tokens_.push_back(static_cast<TokenId>(posterior_.row(s)[kept - 1]));

    const TargetConfig& config = prompt_.runner->config();
    std::vector<float> state;
    for (LayerState& of : states_) {
      DELTAEDGE_RETURN_IF_ERROR(
          of.kind == "rec_state"
              ? ExportRecurrentState(config, of.layer, sequence, &state)
              : ExportConvColumns(config, of.layer, sequence, &state));
      of.ours.insert(of.ours.end(), state.begin(), state.end());
    }
    return absl::OkStatus();
  }

  absl::Status Compare(const Winner& first, TargetSequence* sequence) {
    Report& report = *prompt_.report;
    TargetRunner& runner = *prompt_.runner;
    const int64_t steps = block_.dim(0), rows = block_.dim(1);
    const int64_t vocab = runner.vocab_size();
    double error = 0;
    if (Has("logits")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden,
                                 Floats("logits", 3));
      DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {steps, rows, vocab}));
      report.Close(prompt_.Name("logits"), logits_, golden.values, kModelLimit);
      error = RelativeError(logits_, golden.values) * MaxAbs(golden.values);
    }
    if (Has("first_token")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts golden,
                                 Ints("first_token", 1));
      report.Equal(prompt_.Name("first_token"), {first.token}, golden.values);
    }
    if (Has("start")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts golden, Ints("start", 1));
      report.Equal(prompt_.Name("start"), starts_, golden.values);
    }
    std::vector<int64_t> anchors;
    for (int64_t s = 0; s < steps; ++s) anchors.push_back(block_.row(s)[0]);
    report.Equal(prompt_.Name("block, anchors"), anchors_, anchors);
    ComparePosterior(error);
    report.Equal(prompt_.Name("accept"), accepts_, accept_.values);
    if (Has("emitted")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts golden, Ints("emitted", 1));
      report.Equal(prompt_.Name("emitted"), emitted_, golden.values);
    }
    for (const LayerState& of : states_) {
      const absl::Status status = CompareState(of);
      if (!status.ok()) report.Fail(prompt_.Name(of.name), status);
    }
    return CompareFreshRun(sequence);
  }

  // What follows a wrong draft may be a near tie, which decides nothing.
  void ComparePosterior(double error) {
    const int64_t rows = block_.dim(1);
    const size_t vocab = static_cast<size_t>(prompt_.runner->vocab_size());
    std::vector<int64_t> ours, golden;
    int64_t ties = 0;
    for (size_t i = 0; i < posterior_.values.size(); ++i) {
      const Winner winner =
          FindWinner(absl::MakeConstSpan(logits_).subspan(i * vocab, vocab));
      const bool decides = static_cast<int64_t>(i) % rows <=
                           accept_.values[static_cast<int64_t>(i) / rows];
      if (!decides && winner.token >= 0 &&
          winner.token != posterior_.values[i] && winner.gap <= 4 * error) {
        ++ties;
        continue;
      }
      ours.push_back(winner.token);
      golden.push_back(posterior_.values[i]);
    }
    prompt_.report->Equal(prompt_.Name("posterior"), ours, golden);
    if (ties > 0) {
      prompt_.report->Note(absl::StrCat(
          prompt_.Name("posterior"), ": ", ties,
          " rows behind a wrong draft differ where two scores are within 4 "
          "times the error"));
    }
  }

  absl::Status CompareState(const LayerState& of) {
    const GdnConfig& gdn = prompt_.runner->config().gdn;
    const int64_t steps = block_.dim(0), channels = gdn.conv_channels();
    if (of.kind == "rec_state") {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden, Floats(of.name, 4));
      DELTAEDGE_RETURN_IF_ERROR(CheckShape(
          golden.shape, {steps, gdn.value_heads, gdn.key_dim, gdn.value_dim}));
      prompt_.report->Close(prompt_.Name(of.name), of.ours, golden.values,
                            kModelLimit);
      return absl::OkStatus();
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden, Floats(of.name, 3));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, {steps, channels, 4}));
    std::vector<float> columns;
    for (int64_t s = 0; s < steps; ++s) {
      const std::vector<float> newest =
          NewestConvColumns(golden.row(s), channels);
      columns.insert(columns.end(), newest.begin(), newest.end());
    }
    prompt_.report->Close(prompt_.Name(of.name), of.ours, columns, kModelLimit);
    return absl::OkStatus();
  }

  // All that blocks and rolling back have left behind, against tokens that
  // never were drafts.
  absl::Status CompareFreshRun(TargetSequence* sequence) {
    TargetRunner& runner = *prompt_.runner;
    const int64_t length = sequence->cursor.length();
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence fresh,
                               runner.NewSequence(length));
    const absl::Span<const TokenId> tokens =
        absl::MakeConstSpan(tokens_).first(static_cast<size_t>(length));
    NullDrafter none;
    const size_t chunk = static_cast<size_t>(runner.stepper().max_chunk());
    for (size_t i = 0; i < tokens.size(); i += chunk) {
      DELTAEDGE_RETURN_IF_ERROR(
          runner.Prefill(tokens.subspan(i, chunk), &fresh, &none));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<float> rolled_back,
                               runner.WholeState(sequence));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<float> never_drafted,
                               runner.WholeState(&fresh));
    prompt_.report->SameBits(prompt_.Name("state, as of a fresh run"),
                             rolled_back, never_drafted);
    return absl::OkStatus();
  }

  bool Has(absl::string_view name) const {
    return prompt_.golden->Has(prompt_.section, name);
  }
  absl::StatusOr<GoldenInts> Ints(absl::string_view name, size_t dims) const {
    return prompt_.golden->Ints(prompt_.section, name, dims);
  }
  absl::StatusOr<GoldenFloats> Floats(absl::string_view name,
                                      size_t dims) const {
    return prompt_.golden->Floats(prompt_.section, name, dims);
  }

  const Prompt& prompt_;
  GoldenInts block_, accept_, posterior_;
  ScriptedDrafter drafter_;
  std::vector<TokenId> tokens_;
  std::vector<int64_t> starts_, anchors_, accepts_, emitted_;
  std::vector<float> logits_;  // [steps, rows, vocab_size]
  std::vector<LayerState> states_;
};

// Length of the longest prompt among `sections`, at least 1.
int64_t LongestPrompt(const std::vector<std::string>& sections,
                      GoldenTensors* golden) {
  int64_t longest = 1;
  for (const std::string& section : sections) {
    const auto ids = golden->Ints(section, "ids", 1);
    if (ids.ok()) longest = std::max(longest, ids->dim(0));
  }
  return longest;
}

std::vector<std::string> SectionsThat(bool (*are)(const GoldenTensors&,
                                                  absl::string_view),
                                      const GoldenTensors& golden) {
  std::vector<std::string> sections = golden.Sections();
  sections.erase(std::remove_if(sections.begin(), sections.end(),
                                [&](const std::string& section) {
                                  return !are(golden, section);
                                }),
                 sections.end());
  return sections;
}

}  // namespace

bool IsTargetPrompt(const GoldenTensors& golden, absl::string_view prompt) {
  if (prompt.empty() || prompt[0] != 'p' || IsRiggedPrompt(golden, prompt)) {
    return false;
  }
  for (const std::string& name : golden.Names(prompt)) {
    if (IsOutputName(name) || IsStateName(name) || IsRouterName(name) ||
        name == "greedy") {
      return true;
    }
  }
  return false;
}

bool IsRiggedPrompt(const GoldenTensors& golden, absl::string_view prompt) {
  return absl::StartsWith(prompt, "p") && golden.Has(prompt, "block");
}

void CheckTargetPrompts(const ModelPair& pair, pthreadpool_t pool,
                        GoldenTensors* golden, Report* report) {
  const std::vector<std::string> sections =
      SectionsThat(IsTargetPrompt, *golden);
  const int64_t longest = LongestPrompt(sections, golden);
  std::vector<int32_t> all_layers(pair.target().target_config().layers.size());
  std::iota(all_layers.begin(), all_layers.end(), 0);
  auto runner = TargetRunner::Create(pair.target(), all_layers, longest, pool);
  if (!runner.ok()) return report->Fail("the target", runner.status());
  std::unique_ptr<DraftRunner> draft;
  if (pair.draft() != nullptr) {
    auto created =
        DraftRunner::Create(pair, WindowMode::kAsConfigured, longest, pool);
    if (!created.ok()) return report->Fail("the draft", created.status());
    draft = *std::move(created);
  }
  for (const std::string& section : sections) {
    const auto prompt = ReadPrompt(runner->get(), golden, section, report);
    const absl::Status status =
        prompt.ok() ? CheckTargetPrompt(*prompt, draft.get()) : prompt.status();
    if (!status.ok()) report->Fail(section, status);
  }
}

namespace {

absl::Status CheckRiggedPrompt(const Prompt& prompt) {
  RiggedRun journal(prompt);
  DELTAEDGE_RETURN_IF_ERROR(journal.Run());
  return RiggedRun(prompt).RunSlots(journal);
}

}  // namespace

void CheckRiggedPrompts(const ModelPair& pair, pthreadpool_t pool,
                        GoldenTensors* golden, Report* report) {
  const std::vector<std::string> sections =
      SectionsThat(IsRiggedPrompt, *golden);
  auto runner = TargetRunner::Create(pair.target(), {},
                                     LongestPrompt(sections, golden), pool);
  if (!runner.ok()) return report->Fail("the target", runner.status());
  for (const std::string& section : sections) {
    const auto prompt = ReadPrompt(runner->get(), golden, section, report);
    const absl::Status status =
        prompt.ok() ? CheckRiggedPrompt(*prompt) : prompt.status();
    if (!status.ok()) report->Fail(section, status);
  }
}

}  // namespace deltaedge
