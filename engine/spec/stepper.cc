// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/stepper.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/cancel_flags.h"
#include "engine/base/fp_mode.h"
#include "engine/base/status_macros.h"
#include "engine/sampling/acceptance.h"

namespace deltaedge {

namespace {

class Stopwatch {
 public:
  // Time since the last call, or since construction.
  absl::Duration Lap() {
    const auto now = std::chrono::steady_clock::now();
    const absl::Duration lap = absl::FromChrono(now - last_);
    last_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

bool Cancelled(const StepItem& item) {
  return CancelFlags(item.cancel).cancelled();
}

bool IsChunk(const StepItem& item) { return !item.chunk.empty(); }

// Of a block: all of them, not just the best of each row.
bool WantsScores(const StepItem& item) {
  return !IsChunk(item) && (item.logits != nullptr || !item.sampler->greedy());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(TargetModel* target,
                                                         int64_t tap_floats,
                                                         int32_t max_block,
                                                         bool huge_pages) {
  const TargetConfig& config = target->config();
  DELTAEDGE_ASSIGN_OR_RETURN(
      SpareStates spare,
      SpareStates::Create(TargetRecurrentShape(
          config, /*block_rows=*/1, Rollback::kJournal, huge_pages)));
  std::unique_ptr<Stepper> stepper(
      new Stepper(target, tap_floats, max_block, std::move(spare)));
  DELTAEDGE_ASSIGN_OR_RETURN(
      stepper->logits_, AlignedArray<float>::Allocate(
                            int64_t{max_block} * config.vocab_size, "scores"));
  stepper->score_rows_ = max_block;
  DELTAEDGE_ASSIGN_OR_RETURN(
      stepper->taps_, AlignedArray<float>::Allocate(
                          target->max_rows() * tap_floats, "tapped rows"));
  stepper->best_.resize(std::max(max_block, kMaxSharedRows));
  return stepper;
}

int64_t Stepper::scratch_bytes() const {
  return (logits_.size() + taps_.size()) * static_cast<int64_t>(sizeof(float)) +
         spare_.bytes();
}

int32_t Stepper::MaxDrafts(const StepItem& item) const {
  const SequenceState& cursor = item.state->cursor;
  const int64_t most = std::min<int64_t>(
      {item.max_drafts, max_block_ - 1, cursor.block_rows() - 1,
       cursor.capacity() - cursor.length() - 1});
  return static_cast<int32_t>(std::max<int64_t>(0, most));
}

void Stepper::Grow(int32_t rows) {
  if (rows <= score_rows_) return;
  absl::StatusOr<AlignedArray<float>> more = AlignedArray<float>::Allocate(
      int64_t{rows} * target_->config().vocab_size, "scores");
  // Without it there are more passes, that is all.
  if (!more.ok()) return;
  logits_ = *std::move(more);
  score_rows_ = rows;
}

void Stepper::Step(absl::Span<StepItem> items) {
  const ScopedFpMode fp_mode;
  int64_t wanted = 0;
  for (const StepItem& item : items) {
    if (!IsChunk(item)) wanted += 1 + MaxDrafts(item);
  }
  int64_t most = best_.size();
  if (std::any_of(items.begin(), items.end(), WantsScores)) {
    Grow(static_cast<int32_t>(std::min<int64_t>(wanted, kMaxSharedRows)));
    most = score_rows_;
  }
  for (size_t begin = 0, end; begin < items.size(); begin = end) {
    int64_t rows = 0, score_rows = 0;
    bool has_chunk = false;
    for (end = begin; end < items.size(); ++end) {
      const StepItem& item = items[end];
      const int64_t more =
          IsChunk(item) ? item.chunk.size() : 1 + MaxDrafts(item);
      const bool fits =
          rows + more <= target_->max_rows() &&
          (IsChunk(item) ? !has_chunk : score_rows + more <= most);
      if (!fits && end > begin) break;
      rows += more;
      if (IsChunk(item)) {
        has_chunk = true;
      } else {
        score_rows += more;
      }
    }
    StepTogether(items.subspan(begin, end - begin));
  }
}

void Stepper::StepTogether(absl::Span<StepItem> items) {
  if (members_.size() < items.size()) {
    members_.resize(items.size());
    running_.reserve(items.size());
    requests_.reserve(items.size());
    asking_.reserve(items.size());
    flags_.reserve(items.size());
    passes_.reserve(items.size());
  }
  running_.clear();
  for (const bool chunk : {false, true}) {
    for (StepItem& item : items) {
      if (IsChunk(item) != chunk) continue;
      item.status = absl::OkStatus();
      if (Cancelled(item)) {
        item.status = absl::CancelledError("cancelled");
      } else {
        Member& member = members_[running_.size()];
        member.item = &item;
        member.asked = 0;
        member.drafts.clear();
        running_.push_back(&member);
      }
    }
  }
  if (running_.empty()) return;
  const auto drop_failed = [this] {
    running_.erase(
        std::remove_if(running_.begin(), running_.end(),
                       [](const Member* m) { return !m->item->status.ok(); }),
        running_.end());
  };
  Stopwatch watch;
  Draft();
  const absl::Duration draft_time = watch.Lap();
  drop_failed();
  Verify();
  drop_failed();
  const absl::Duration verify_time = watch.Lap();
  int64_t asked = 0, rows = 0;
  for (const Member* member : running_) {
    asked += member->asked;
    rows += member->pass.plan.rows;
  }
  const bool alone = items.size() == 1;
  if (alone && !running_.empty() && !IsChunk(items[0])) {
    verifying_.Add(static_cast<int32_t>(rows), verify_time);
  }
  for (Member* member : running_) {
    member->item->status = Finish(member);
    StepResult& result = *member->item->result;
    if (member->item->status.ok() && !IsChunk(*member->item)) {
      member->item->drafter->Learn(result.drafted, result.accepted,
                                   alone ? draft_time : absl::ZeroDuration());
    }
    result.draft_time =
        draft_time * member->asked / std::max<int64_t>(1, asked);
    result.verify_time = verify_time * member->pass.plan.rows / rows;
    result.accept_time = watch.Lap();
  }
}

void Stepper::Draft() {
  const int32_t vocab_size = target_->config().vocab_size;
  requests_.clear();
  asking_.clear();
  flags_.clear();
  for (Member* member : running_) {
    StepItem& item = *member->item;
    if (IsChunk(item)) continue;
    item.result->choice =
        item.drafter->Plan(item.sequence, MaxDrafts(item), verifying_);
    member->asked = item.result->choice.drafts;
    if (member->asked == 0) continue;
    member->drafts.reserve(max_block_);
    if (item.drafter->dflash() == nullptr) {
      item.status = item.drafter->Propose(item.sequence, member->asked,
                                          item.cancel, &member->drafts);
      continue;
    }
    requests_.push_back({item.drafter->dflash(), item.sequence, member->asked,
                         &member->drafts});
    asking_.push_back(member);
    if (item.cancel != nullptr) flags_.push_back(item.cancel);
  }
  if (!requests_.empty()) {
    const absl::Status status = DFlashDrafter::ProposeMany(
        requests_, flags_.size() == requests_.size() ? CancelFlags(flags_)
                                                     : CancelFlags());
    const bool retry = absl::IsResourceExhausted(status) && asking_.size() > 1;
    for (Member* member : asking_) {
      StepItem& item = *member->item;
      item.status = retry ? item.drafter->Propose(item.sequence, member->asked,
                                                  item.cancel, &member->drafts)
                          : status;
    }
  }
  for (Member* member : running_) {
    StepItem& item = *member->item;
    if (member->asked == 0 || !item.status.ok()) continue;
    if (static_cast<int32_t>(member->drafts.size()) > member->asked) {
      member->drafts.resize(member->asked);
    }
    member->drafts.erase(
        std::find_first_of(member->drafts.begin(), member->drafts.end(),
                           item.stop_tokens.begin(), item.stop_tokens.end()),
        member->drafts.end());
    item.drafter->Review(item.sequence, verifying_, &member->drafts);
    for (const TokenId draft : member->drafts) {
      if (draft >= 0 && draft < vocab_size) continue;
      item.status = absl::InvalidArgumentError(
          absl::StrCat("the drafter proposed token ", draft, "; ids are 0 to ",
                       vocab_size - 1));
      break;
    }
  }
}

void Stepper::Verify() {
  const int64_t vocab_size = target_->config().vocab_size;
  passes_.clear();
  // One product serves all, so what one of them needs, all get.
  const bool scores =
      std::any_of(running_.begin(), running_.end(),
                  [](const Member* m) { return WantsScores(*m->item); });
  int64_t row = 0;
  float* taps = taps_.data();
  for (Member* member : running_) {
    StepItem& item = *member->item;
    TargetPass pass;
    if (IsChunk(item)) {
      pass.tokens = item.chunk;
    } else {
      member->block.reserve(max_block_);
      member->block.assign(1, item.sequence.back());
      member->block.insert(member->block.end(), member->drafts.begin(),
                           member->drafts.end());
      pass.tokens = member->block;
    }
    absl::StatusOr<BlockPlan> plan =
        item.state->cursor.Plan(static_cast<int32_t>(pass.tokens.size()));
    if (!plan.ok()) {
      item.status = std::move(plan).status();
      continue;
    }
    pass.plan = *plan;
    pass.sequence = item.state;
    pass.cancel = item.cancel;
    if (IsChunk(item)) {
      pass.spare = &spare_;
      pass.logits = item.logits;
    } else {
      pass.best = best_.data() + row;
      if (scores) pass.logits = logits_.data() + row * vocab_size;
      row += pass.plan.rows;
    }
    if (item.drafter->wants_taps()) {
      pass.taps = taps;
      taps += pass.plan.rows * tap_floats_;
    }
    item.state->cursor.Begin(pass.plan);
    member->pass = pass;
    passes_.push_back(pass);
  }
  if (passes_.empty()) return;
  const absl::Status status = target_->Run(passes_);
  if (status.ok()) return;
  const bool retry = absl::IsResourceExhausted(status) && passes_.size() > 1;
  for (Member* member : running_) {
    if (!member->item->status.ok()) continue;
    member->item->status = retry ? target_->Run(member->pass) : status;
  }
}

absl::Status Stepper::Finish(Member* member) {
  const StepItem& item = *member->item;
  const TargetPass& pass = member->pass;
  SequenceState& cursor = item.state->cursor;
  // In company the pass went on without looking at this one's flag alone.
  if (Cancelled(item)) return absl::CancelledError("cancelled");
  if (IsChunk(item)) {
    DELTAEDGE_RETURN_IF_ERROR(
        item.drafter->ObservePrefill(pass.plan, pass.taps, item.cancel));
    item.state->recurrent.Adopt(pass.plan, cursor.column(), &spare_);
    cursor.PublishPrefill(pass.plan);
    return absl::OkStatus();
  }
  DELTAEDGE_RETURN_IF_ERROR(
      item.drafter->ObserveBlock(pass.plan, pass.taps, item.cancel));
  const int32_t vocab_size = target_->config().vocab_size;
  const Acceptance acceptance = AcceptDrafts(
      absl::MakeConstSpan(pass.best, pass.plan.rows), pass.logits, vocab_size,
      member->drafts, pass.plan.position + 1, item.sampler);
  if (acceptance.tokens.empty()) {
    return absl::InternalError(absl::StrCat(
        "the model's scores at position ", pass.plan.position + 1,
        " are not finite numbers; the weights or the state are broken"));
  }
  cursor.PublishBlock(pass.plan);
  item.result->drafted = static_cast<int32_t>(member->drafts.size());
  // Before broken scores the last token counts as the target's own, so that
  // there is one in every step.
  item.result->accepted = std::min(
      acceptance.accepted, static_cast<int32_t>(acceptance.tokens.size()) - 1);
  item.result->tokens.reserve(max_block_);
  item.result->tokens.assign(acceptance.tokens.begin(),
                             acceptance.tokens.end());
  if (item.logits != nullptr) {
    std::memcpy(item.logits, pass.logits,
                int64_t{pass.plan.rows} * vocab_size * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
