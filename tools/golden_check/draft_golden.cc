// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/draft_golden.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/base/fp_mode.h"
#include "engine/base/status_macros.h"
#include "engine/graph/draft_model.h"
#include "engine/model/config.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/stepper.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"
#include "kernels/attn/attention.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {

namespace {

constexpr double kTieFactor = 4;  // Times the measured error: no tie.

// Keys and values of one layer, [Hkv, rows, D] each.
struct Kv {
  std::vector<float> keys, values;
};

Kv ReadKv(const DraftConfig& config, int32_t layer, int64_t rows,
          int64_t capacity, KvStore* store) {
  const int64_t heads = config.attention.kv_heads;
  const int64_t dim = config.attention.head_dim;
  std::vector<float> keys(rows * heads * dim), values(rows * heads * dim);
  const KvView view = {store->keys(layer), store->values(layer),
                       config.attention.kv_heads, config.attention.head_dim,
                       capacity};
  KvRead(view, 0, static_cast<int32_t>(rows), keys.data(), values.data());
  Kv kv;
  kv.keys.resize(keys.size());
  kv.values.resize(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = (row * heads + head) * dim;
      const int64_t to = (head * rows + row) * dim;
      std::copy_n(keys.data() + from, dim, kv.keys.data() + to);
      std::copy_n(values.data() + from, dim, kv.values.data() + to);
    }
  }
  return kv;
}

// The draft, and beside each proposal how sure it was. Follows the golden's
// blocks where the draft's own choice was a tie.
class TracedDrafter : public BlockDrafter {
 public:
  TracedDrafter(DraftModel* model, DFlashDrafter* drafter)
      : model_(model), drafter_(drafter) {}

  bool wants_taps() const override { return drafter_->wants_taps(); }
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags cancel,
                       std::vector<TokenId>* drafts) override {
    DELTAEDGE_RETURN_IF_ERROR(
        drafter_->Propose(sequence, max_drafts, cancel, drafts));
    // Once more for the scores; it writes what it wrote before.
    const size_t vocab = static_cast<size_t>(model_->config().vocab_size);
    std::vector<float> logits(drafts->size() * vocab);
    std::vector<TokenId> again(drafts->size());
    const DraftRequest request = {sequence.back(),
                                  static_cast<int64_t>(sequence.size()) - 1,
                                  static_cast<int32_t>(drafts->size()),
                                  drafter_->context()->capacity,
                                  &drafter_->context()->kv,
                                  logits.data(),
                                  again.data()};
    DELTAEDGE_RETURN_IF_ERROR(model_->Draft({&request, 1}, cancel));
    if (again != *drafts) {
      return absl::InternalError("the same block was drafted differently");
    }
    own = *drafts;
    gaps.clear();
    for (size_t i = 0; i < drafts->size(); ++i) {
      const Winner winner =
          FindWinner(absl::MakeConstSpan(logits).subspan(i * vocab, vocab));
      gaps.push_back(winner.token < 0 ? -1 : winner.gap);
    }
    drafts->assign(instead.begin(), instead.end());
    return absl::OkStatus();
  }
  absl::Status ObserveBlock(const BlockPlan& plan, const float* taps,
                            CancelFlags cancel) override {
    return drafter_->ObserveBlock(plan, taps, cancel);
  }
  absl::Status ObservePrefill(const BlockPlan& plan, const float* taps,
                              CancelFlags cancel) override {
    return drafter_->ObservePrefill(plan, taps, cancel);
  }
  void Reset() override { drafter_->Reset(); }

  std::vector<TokenId> instead;  // What Propose() answers.
  std::vector<TokenId> own;      // What it would have answered.
  std::vector<double> gaps;      // [drafts]; -1: the scores are not numbers.

 private:
  DraftModel* const model_;
  DFlashDrafter* const drafter_;
};

class DraftPrompt {
 public:
  DraftPrompt(DraftRunner* runner, GoldenTensors* golden, std::string section,
              Report* report)
      : runner_(*runner),
        config_(runner->config()),
        golden_(*golden),
        section_(std::move(section)),
        report_(*report) {}

  // The prompt and the first block; measures the error of the draft's scores.
  absl::Status CheckStart() {
    DELTAEDGE_RETURN_IF_ERROR(Read());
    DELTAEDGE_RETURN_IF_ERROR(CheckFirstBlock());
    const absl::Status status = CheckPieces();
    outputs_ = {};
    kv_.clear();
    return status;
  }

  // After CheckStart(). The whole run, as DFlash decodes: a first token from
  // the prompt, then blocks of an anchor and drafts. `draft_error`: how far off
  // the draft's scores may be.
  absl::Status CheckTrace(double draft_error);

  // max |ours - golden| of the first block's scores.
  double draft_error() const { return draft_error_; }

  const std::string& section() const { return section_; }

 private:
  absl::Status Read() {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts ids, Ints("ids", 1));
    DELTAEDGE_ASSIGN_OR_RETURN(ids_, ToTokens(ids.values, config_.vocab_size));
    if (ids_.empty()) {
      return absl::InvalidArgumentError("a prompt of no tokens");
    }
    rows_ = static_cast<int64_t>(ids_.size());
    block_ = config_.block_size;
    if (Has("first_block_in")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts first,
                                 Ints("first_block_in", 1));
      block_ = first.dim(0);
    } else if (Has("trace.block")) {
      DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts trace,
                                 Ints("trace.block", 2));
      block_ = trace.dim(1);
    }
    if (block_ < 2 || block_ > config_.block_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("a block of ", block_, " rows; the draft takes 2 to ",
                       config_.block_size));
    }
    return absl::OkStatus();
  }

  // Everything on the way from the prompt to the first block's scores.
  absl::Status CheckFirstBlock() {
    TargetRunner& target = runner_.target();
    capacity_ = rows_ + block_ + 1;
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                               target.NewSequence(capacity_));
    DELTAEDGE_ASSIGN_OR_RETURN(outputs_, target.Run(ids_, &sequence));
    const absl::Span<const float> logits = outputs_.logits;
    const Winner first =
        FindWinner(logits.last(static_cast<size_t>(target.vocab_size())));
    if (first.token < 0) {
      return absl::InternalError("the target's scores are not numbers");
    }
    anchor_ = first.token;

    const ScopedFpMode fp_mode;
    DELTAEDGE_ASSIGN_OR_RETURN(
        KvStore kv, KvStore::Create(DraftKvShape(config_, capacity_)));
    DraftModel& draft = runner_.draft();
    const int64_t drafts = block_ - 1;
    std::vector<float> scores(drafts * config_.vocab_size);
    std::vector<TokenId> tokens(drafts);
    DraftModel::Trace trace;
    draft.set_trace(&trace);
    const DraftInjection context = {
        outputs_.taps.data(), 0, static_cast<int32_t>(rows_), capacity_, &kv};
    const DraftRequest block = {
        anchor_,      rows_, static_cast<int32_t>(drafts),
        capacity_,    &kv,   scores.data(),
        tokens.data()};
    absl::Status status = draft.Inject({&context, 1}, {});
    if (status.ok()) status = draft.Draft({&block, 1}, {});
    draft.set_trace(nullptr);
    DELTAEDGE_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      kv_.push_back(ReadKv(config_, static_cast<int32_t>(i), rows_ + block_,
                           capacity_, &kv));
    }

    const int64_t hidden = config_.hidden_size;
    const int64_t taps = static_cast<int64_t>(config_.target_layers.size());
    for (const std::string& name : golden_.Names(section_)) {
      const auto [kind, layer] = SplitNumber(name);
      const bool known = layer >= 0 && layer < static_cast<int32_t>(kv_.size());
      const std::vector<int64_t> kv_shape = {config_.attention.kv_heads,
                                             rows_ + block_,
                                             config_.attention.head_dim};
      absl::Status checked;
      if (name == "target_hidden") {
        checked = Close(name, outputs_.taps.span(), {rows_, taps * hidden});
      } else if (name == "ctx") {
        checked = Close(name, trace.context, {rows_, hidden});
      } else if (name == "draft_out") {
        checked = Close(name, trace.final_hidden, {block_, hidden});
      } else if (name == "draft_logits") {
        checked = Close(name, scores, {drafts, config_.vocab_size});
      } else if (name == "first_block_in") {
        std::vector<int64_t> first_block(block_, config_.mask_token);
        first_block[0] = anchor_;
        checked = Equal(name, first_block);
      } else if (kind == "draft_hidden" || kind == "draft_k" ||
                 kind == "draft_v") {
        if (!known) {
          checked = absl::InvalidArgumentError(
              absl::StrCat("the draft has ", kv_.size(), " layers"));
        } else if (kind == "draft_hidden") {
          checked = Close(name, trace.hidden[layer], {block_, hidden});
        } else {
          checked = Close(
              name, kind == "draft_k" ? kv_[layer].keys : kv_[layer].values,
              kv_shape);
        }
      }
      if (!checked.ok()) report_.Fail(Name(name), checked);
    }
    if (draft_error_ < 0) {
      // No scores to measure on: as far off as they may be.
      draft_error_ = kModelLimit * MaxAbs(scores);
    }
    return absl::OkStatus();
  }

  // The context in pieces of 1, 2, 3, 5 ... rows instead of all at once.
  absl::Status CheckPieces() {
    const ScopedFpMode fp_mode;
    DELTAEDGE_ASSIGN_OR_RETURN(
        KvStore kv, KvStore::Create(DraftKvShape(config_, capacity_)));
    const int64_t width = static_cast<int64_t>(outputs_.taps.size()) / rows_;
    int64_t size = 1, next = 2;
    for (int64_t first = 0; first < rows_;) {
      const int64_t rows = std::min(size, rows_ - first);
      const DraftInjection piece = {outputs_.taps.data() + first * width, first,
                                    static_cast<int32_t>(rows), capacity_, &kv};
      DELTAEDGE_RETURN_IF_ERROR(runner_.draft().Inject({&piece, 1}, {}));
      first += rows;
      size = std::exchange(next, size + next);
    }
    std::vector<TokenId> tokens(block_ - 1);
    const DraftRequest block = {
        anchor_, rows_,        static_cast<int32_t>(block_ - 1), capacity_, &kv,
        nullptr, tokens.data()};
    DELTAEDGE_RETURN_IF_ERROR(runner_.draft().Draft({&block, 1}, {}));
    std::vector<float> ours, at_once;
    for (size_t i = 0; i < kv_.size(); ++i) {
      const Kv pieces = ReadKv(config_, static_cast<int32_t>(i), rows_ + block_,
                               capacity_, &kv);
      for (const auto* part : {&pieces.keys, &pieces.values}) {
        ours.insert(ours.end(), part->begin(), part->end());
      }
      for (const auto* part : {&kv_[i].keys, &kv_[i].values}) {
        at_once.insert(at_once.end(), part->begin(), part->end());
      }
    }
    report_.SameBits(Name("draft_k, draft_v, in pieces"), ours, at_once);
    return absl::OkStatus();
  }

  // The same tokens and scores come without a draft.
  absl::Status CheckWithout(const std::vector<TokenId>& tokens,
                            const std::vector<float>& logits) {
    TargetRunner& target = runner_.target();
    const size_t vocab = static_cast<size_t>(target.vocab_size());
    DELTAEDGE_ASSIGN_OR_RETURN(
        TargetSequence sequence,
        target.NewSequence(static_cast<int64_t>(tokens.size()) + 1));
    NullDrafter none;
    DELTAEDGE_RETURN_IF_ERROR(target.Prefill(ids_, &sequence, &none));
    std::vector<TokenId> plain = ids_;
    plain.push_back(anchor_);
    std::vector<float> plain_logits;
    StepResult result;
    while (plain.size() < tokens.size()) {
      DELTAEDGE_RETURN_IF_ERROR(
          target.Step(plain, 0, &sequence, &none, &result));
      DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(1));
      plain.push_back(result.tokens[0]);
      plain_logits.insert(plain_logits.end(), target.logits(),
                          target.logits() + vocab);
    }
    report_.Equal(Name("tokens, without drafts"),
                  std::vector<int64_t>(plain.begin(), plain.end()),
                  std::vector<int64_t>(tokens.begin(), tokens.end()));
    report_.SameBits(Name("logits, without drafts"), plain_logits, logits);
    return absl::OkStatus();
  }

  std::string Name(absl::string_view what) const {
    return absl::StrCat(section_, ".", what);
  }
  bool Has(absl::string_view name) const { return golden_.Has(section_, name); }
  absl::StatusOr<GoldenInts> Ints(absl::string_view name, size_t dims) const {
    return golden_.Ints(section_, name, dims);
  }

  absl::Status Close(const std::string& name, absl::Span<const float> ours,
                     const std::vector<int64_t>& shape) {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenFloats golden,
                               golden_.Floats(section_, name, shape.size()));
    DELTAEDGE_RETURN_IF_ERROR(CheckShape(golden.shape, shape));
    const double error =
        report_.Close(Name(name), ours, golden.values, kModelLimit);
    if (name == "draft_logits") draft_error_ = error * MaxAbs(golden.values);
    return absl::OkStatus();
  }

  absl::Status Equal(const std::string& name,
                     const std::vector<int64_t>& ours) {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts golden, Ints(name, 1));
    report_.Equal(Name(name), ours, golden.values);
    return absl::OkStatus();
  }

  DraftRunner& runner_;
  const DraftConfig& config_;
  GoldenTensors& golden_;
  const std::string section_;
  Report& report_;

  std::vector<TokenId> ids_;
  int64_t rows_ = 0;      // Of the prompt.
  int64_t block_ = 0;     // Rows of a block.
  int64_t capacity_ = 0;  // For prompt and first block.
  TokenId anchor_ = -1;
  TargetRunner::Outputs outputs_;  // Of the prompt as one chunk.
  std::vector<Kv> kv_;             // [layers], prompt and first block.
  double draft_error_ = -1;        // Of the draft's scores; -1: not known.
};

absl::Status DraftPrompt::CheckTrace(double draft_error) {
  if (!Has("trace.block")) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts blocks, Ints("trace.block", 2));
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts accept, Ints("trace.accept", 1));
  DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts posterior,
                             Ints("trace.posterior", 2));
  const int64_t steps = blocks.dim(0);
  if (steps < 1) return absl::InvalidArgumentError("trace.block is empty");
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(blocks.shape, {steps, block_}));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(posterior.shape, {steps, block_}));
  DELTAEDGE_RETURN_IF_ERROR(CheckShape(accept.shape, {steps}));
  DELTAEDGE_RETURN_IF_ERROR(
      ToTokens(blocks.values, config_.vocab_size).status());

  TargetRunner& target = runner_.target();
  const size_t vocab = static_cast<size_t>(target.vocab_size());
  const int64_t capacity = rows_ + (steps + 1) * block_ + 1;
  DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                             target.NewSequence(capacity));
  DELTAEDGE_ASSIGN_OR_RETURN(auto drafter,
                             DFlashDrafter::Create(&runner_.draft(), capacity));
  TracedDrafter traced(&runner_.draft(), drafter.get());
  DELTAEDGE_RETURN_IF_ERROR(target.Prefill(ids_, &sequence, &traced));
  std::vector<TokenId> tokens = ids_;
  tokens.push_back(anchor_);

  std::vector<int64_t> starts, accepts, anchors, golden_anchors;
  std::vector<int64_t> drafts, golden_drafts, winners, golden_winners;
  std::vector<float> logits;  // Of the tokens that stay.
  int64_t draft_ties = 0, target_ties = 0;
  StepResult result;
  for (int64_t s = 0; s < steps; ++s) {
    const absl::Span<const int64_t> block = blocks.row(s);
    starts.push_back(sequence.cursor.length());
    anchors.push_back(tokens.back());
    golden_anchors.push_back(block[0]);
    traced.instead.assign(block.begin() + 1, block.end());
    DELTAEDGE_RETURN_IF_ERROR(target.Step(
        tokens, static_cast<int32_t>(block_ - 1), &sequence, &traced, &result));
    accepts.push_back(result.accepted);
    // Fewer than asked for, or scores that are not numbers, are wrong.
    traced.own.resize(block_ - 1, -1);
    traced.gaps.resize(block_ - 1, -1);
    for (int64_t i = 0; i < block_ - 1; ++i) {
      const double gap = traced.gaps[i];
      if (traced.own[i] != block[i + 1] && gap >= 0 &&
          gap <= kTieFactor * draft_error) {
        ++draft_ties;
        continue;
      }
      drafts.push_back(gap < 0 ? -1 : traced.own[i]);
      golden_drafts.push_back(block[i + 1]);
    }
    const absl::Span<const float> scores(target.logits(), block_ * vocab);
    const double target_error = kModelLimit * MaxAbs(scores);
    for (int64_t i = 0; i < block_; ++i) {
      const Winner winner = FindWinner(scores.subspan(i * vocab, vocab));
      if (i > result.accepted && winner.token >= 0 &&
          winner.token != posterior.row(s)[i] && winner.gap <= target_error) {
        ++target_ties;
        continue;
      }
      winners.push_back(winner.token);
      golden_winners.push_back(posterior.row(s)[i]);
    }
    const size_t kept = result.tokens.size();
    DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(static_cast<int32_t>(kept)));
    tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
    logits.insert(logits.end(), target.logits(),
                  target.logits() + kept * vocab);
  }
  if (Has("trace.start")) {
    DELTAEDGE_RETURN_IF_ERROR(Equal("trace.start", starts));
  }
  report_.Equal(Name("trace.block, anchors"), anchors, golden_anchors);
  report_.Equal(Name("trace.block, drafts"), drafts, golden_drafts);
  report_.Equal(Name("trace.posterior"), winners, golden_winners);
  report_.Equal(Name("trace.accept"), accepts, accept.values);
  if (draft_ties > 0) {
    report_.Note(absl::StrCat(Name("trace.block"), ": ", draft_ties,
                              " drafts differ where the draft's lead is "
                              "within 4 times its error"));
  }
  if (target_ties > 0) {
    report_.Note(absl::StrCat(
        Name("trace.posterior"), ": ", target_ties,
        " rows behind a wrong draft differ where two scores are within the "
        "limit of the logits"));
  }
  if (Has("output")) {
    DELTAEDGE_ASSIGN_OR_RETURN(const GoldenInts output, Ints("output", 1));
    const size_t length = std::min(output.values.size(), tokens.size());
    report_.Equal(Name("output"),
                  std::vector<int64_t>(tokens.begin(), tokens.begin() + length),
                  output.values);
  }
  return CheckWithout(tokens, logits);
}

}  // namespace

bool IsDraftPrompt(const GoldenTensors& golden, absl::string_view prompt) {
  if (!absl::StartsWith(prompt, "p")) return false;
  for (const std::string& name : golden.Names(prompt)) {
    if (absl::StartsWith(name, "draft_") || absl::StartsWith(name, "trace.") ||
        name == "target_hidden" || name == "ctx") {
      return true;
    }
  }
  return false;
}

void CheckDraftPrompts(const ModelPair& pair, WindowMode window,
                       pthreadpool_t pool, GoldenTensors* golden,
                       Report* report) {
  int64_t longest = 1;
  std::vector<std::string> sections;
  for (const std::string& section : golden->Sections()) {
    if (!IsDraftPrompt(*golden, section)) continue;
    sections.push_back(section);
    const auto ids = golden->Ints(section, "ids", 1);
    if (ids.ok()) longest = std::max(longest, ids->dim(0));
  }
  auto runner = DraftRunner::Create(pair, window, longest, pool);
  if (!runner.ok()) return report->Fail("the draft", runner.status());
  // The error is known when all prompts have been measured.
  double draft_error = 0;
  std::vector<std::unique_ptr<DraftPrompt>> started;
  for (const std::string& section : sections) {
    auto prompt =
        std::make_unique<DraftPrompt>(runner->get(), golden, section, report);
    const absl::Status status = prompt->CheckStart();
    if (!status.ok()) {
      report->Fail(section, status);
      continue;
    }
    draft_error = std::max(draft_error, prompt->draft_error());
    started.push_back(std::move(prompt));
  }
  for (const std::unique_ptr<DraftPrompt>& prompt : started) {
    const absl::Status status = prompt->CheckTrace(draft_error);
    if (!status.ok()) report->Fail(prompt->section(), status);
  }
}

}  // namespace deltaedge
