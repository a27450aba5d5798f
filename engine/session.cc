// SPDX-License-Identifier: Apache-2.0

#include "engine/session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/graph/target_sequence.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/custom_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/stepper.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

absl::Duration Since(Clock::time_point start) {
  return absl::FromChrono(Clock::now() - start);
}

// Marks a session as being inside a call.
class Occupied {
 public:
  explicit Occupied(bool* flag) : flag_(flag) { *flag_ = true; }
  ~Occupied() { *flag_ = false; }
  Occupied(const Occupied&) = delete;
  Occupied& operator=(const Occupied&) = delete;

 private:
  bool* const flag_;
};

}  // namespace

class Session::Impl {
 public:
  Impl(std::shared_ptr<EngineImpl> engine, const EngineImpl::Limits& limits,
       TargetSequence state, std::unique_ptr<BlockDrafter> drafter)
      : engine_(std::move(engine)),
        limits_(limits),
        state_(std::move(state)),
        drafter_(std::move(drafter)),
        decoder_(engine_->tokenizer.get(),
                 StreamDecoder::SpecialTokens::kSkip) {
    ClearStats();
  }

  absl::Status Prefill(absl::Span<const TokenId> tokens) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    DELTAEDGE_RETURN_IF_ERROR(CheckPrompt(tokens));
    const Occupied occupied(&busy_);
    cancel_.store(false, std::memory_order_relaxed);
    EndRun(FinishReason::kNone);
    started_ = false;
    prefill_start_ = Clock::now();
    awaiting_first_token_ = true;

    // The state lacks the sequence's last token, so that goes first; the last
    // of the new ones stays behind in turn.
    std::vector<TokenId> rows;
    if (!tokens_.empty()) rows.push_back(tokens_.back());
    rows.insert(rows.end(), tokens.begin(), tokens.end());
    if (rows.size() == 1) {
      tokens_.push_back(rows[0]);
      ++stats_.prefill_tokens;
    }
    size_t done = 0;
    while (done + 1 < rows.size()) {
      const auto start = Clock::now();
      const size_t chunk =
          std::min<size_t>(EngineImpl::kChunkRows, rows.size() - 1 - done);
      absl::Status status;
      {
        absl::MutexLock lock(&engine_->step_mutex);
        status = cancel_.load(std::memory_order_relaxed)
                     ? absl::CancelledError("")
                     : engine_->stepper->Prefill(
                           absl::MakeConstSpan(rows).subspan(done, chunk),
                           &state_, drafter_.get(), &cancel_);
      }
      if (absl::IsCancelled(status)) {
        return absl::CancelledError(
            absl::StrCat("prefill was cancelled; the session holds ",
                         tokens_.size(), " tokens"));
      }
      DELTAEDGE_RETURN_IF_ERROR(status);
      done += chunk;
      const size_t before = tokens_.size();
      const size_t first = before == 0 ? 0 : done - chunk + 1;
      tokens_.insert(tokens_.end(), rows.begin() + first,
                     rows.begin() + done + 1);
      stats_.prefill_tokens += tokens_.size() - before;
      stats_.prefill_time += Since(start);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GenerateResult> Generate(
      const GenerateOptions& options,
      absl::FunctionRef<bool(const TokenEvent&)> on_token) {
    DELTAEDGE_RETURN_IF_ERROR(Start(options));
    GenerateResult result;
    while (true) {
      absl::StatusOr<std::optional<TokenEvent>> event = Next();
      if (!event.ok()) return std::move(event).status();
      if (!event->has_value()) break;
      ++result.delivered;
      bool go_on;
      {
        const Occupied occupied(&busy_);
        go_on = on_token(**event);
      }
      if (reset_wanted_) {
        Reset();
        reason_ = FinishReason::kCancelled;
        result.reason = reason_;
        return result;
      }
      if (!go_on && reason_ == FinishReason::kNone) {
        EndRun(FinishReason::kCancelled);
      }
    }
    result.reason = reason_;
    result.tail = decoder_.Flush();
    return result;
  }

  absl::Status Start(const GenerateOptions& options) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    DELTAEDGE_RETURN_IF_ERROR(Validate(options));
    const int32_t vocab_size = engine_->info.vocab_size;
    for (size_t i = 0; i < options.stop_tokens.size(); ++i) {
      const TokenId id = options.stop_tokens[i];
      if (id < 0 || id >= vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(
            "stop_tokens[", i, "] is ", id, "; ids are 0 to ", vocab_size - 1));
      }
    }
    if (tokens_.empty()) {
      return absl::FailedPreconditionError(
          "nothing to continue: the session is empty; call Prefill first");
    }
    if (options.logits && logits_.empty()) {
      DELTAEDGE_ASSIGN_OR_RETURN(
          logits_,
          AlignedArray<float>::Allocate({limits_.draft_tokens + 1, vocab_size},
                                        "scores of delivered tokens"));
    }
    cancel_.store(false, std::memory_order_relaxed);
    EndRun(FinishReason::kNone);
    decoder_.Flush();
    run_ = options;
    stop_tokens_ = options.stop_tokens;
    if (!options.ignore_model_stop_tokens) {
      const std::vector<TokenId>& own = engine_->target_file->stop_tokens();
      stop_tokens_.insert(stop_tokens_.end(), own.begin(), own.end());
    }
    produced_ = 0;
    started_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<TokenEvent>> Next() {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    if (!started_) {
      return absl::FailedPreconditionError("Next() needs Start() first");
    }
    const Occupied occupied(&busy_);
    if (reason_ != FinishReason::kNone) return std::nullopt;
    if (cancel_.load(std::memory_order_relaxed)) {
      EndRun(FinishReason::kCancelled);
      return std::nullopt;
    }
    if (taken_ == step_.tokens.size()) {
      if (static_cast<int64_t>(tokens_.size()) >= limits_.max_context) {
        EndRun(FinishReason::kContextFull);
        return std::nullopt;
      }
      const absl::Status status = RunStep();
      if (absl::IsCancelled(status)) {
        EndRun(FinishReason::kCancelled);
        return std::nullopt;
      }
      DELTAEDGE_RETURN_IF_ERROR(status);
    }
    return Deliver();
  }

  void Reset() {
    if (busy_) {
      reset_wanted_ = true;
      return;
    }
    reset_wanted_ = false;
    started_ = false;
    reason_ = FinishReason::kNone;
    step_.tokens.clear();
    taken_ = 0;
    tokens_.clear();
    decoder_.Flush();
    state_.cursor.Reset();
    state_.recurrent.Reset();
    drafter_->Reset();
    awaiting_first_token_ = false;
    ClearStats();
  }

  void Cancel() { cancel_.store(true, std::memory_order_relaxed); }
  FinishReason finish_reason() const { return reason_; }
  // Inside a callback the decoder holds TokenEvent::text.
  std::string TakeTail() { return busy_ ? std::string() : decoder_.Flush(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int64_t max_context() const { return limits_.max_context; }
  const SessionStats& stats() const { return stats_; }

 private:
  void ClearStats() {
    stats_ = {};
    stats_.tried_at.resize(limits_.draft_tokens);
    stats_.accepted_at.resize(limits_.draft_tokens);
  }

  absl::Status CheckFree() {
    if (!busy_) {
      if (reset_wanted_) Reset();  // Asked for by a drafter.
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        "the session is inside a call; from a callback only Cancel(), Reset() "
        "and const methods may be called");
  }

  absl::Status CheckPrompt(absl::Span<const TokenId> tokens) const {
    if (tokens.empty()) {
      return absl::InvalidArgumentError("no tokens to prefill");
    }
    const int32_t vocab_size = engine_->info.vocab_size;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(
            "token ", i, " is ", tokens[i], "; ids are 0 to ", vocab_size - 1));
      }
    }
    const int64_t room =
        limits_.max_context - static_cast<int64_t>(tokens_.size());
    if (static_cast<int64_t>(tokens.size()) > room) {
      return absl::OutOfRangeError(
          absl::StrCat("a prompt of ", tokens.size(),
                       " tokens does not fit: the session "
                       "holds ",
                       tokens_.size(), " of at most ", limits_.max_context));
    }
    return absl::OkStatus();
  }

  // The state goes back to where the last delivered token left it; what was
  // verified beyond that is forgotten. Does nothing a second time: Keep() is
  // absolute, so it must hear one number for a block.
  void KeepDelivered() {
    if (step_.tokens.empty()) return;
    // Cannot fail: the block has at least as many rows as tokens came of it.
    state_.cursor.Keep(static_cast<int32_t>(taken_)).IgnoreError();
    stats_.discarded += step_.tokens.size() - taken_;
    step_.tokens.clear();
    taken_ = 0;
  }

  void EndRun(FinishReason reason) {
    KeepDelivered();
    reason_ = reason;
  }

  absl::Status RunStep() {
    KeepDelivered();
    const int64_t room =
        limits_.max_context - static_cast<int64_t>(tokens_.size());
    const int32_t max_drafts = static_cast<int32_t>(std::min<int64_t>(
        {limits_.draft_tokens, run_.max_new_tokens - produced_ - 1, room - 1}));
    absl::MutexLock lock(&engine_->step_mutex);
    if (cancel_.load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled");
    }
    DELTAEDGE_RETURN_IF_ERROR(engine_->stepper->Step(
        tokens_, max_drafts, &state_, drafter_.get(), &cancel_, &step_));
    if (run_.logits) {
      std::memcpy(
          logits_.data(), step_.logits,
          step_.tokens.size() * engine_->info.vocab_size * sizeof(float));
    }
    ++stats_.steps;
    if (step_.drafted > 0) ++stats_.draft_steps;
    stats_.drafted += step_.drafted;
    stats_.accepted += step_.accepted;
    for (int32_t i = 0; i < step_.drafted; ++i) {
      ++stats_.tried_at[i];
      if (i < step_.accepted) ++stats_.accepted_at[i];
    }
    stats_.draft_time += step_.draft_time;
    stats_.verify_time += step_.verify_time;
    stats_.accept_time += step_.accept_time;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<TokenEvent>> Deliver() {
    TokenEvent event;
    event.id = step_.tokens[taken_];
    event.position = static_cast<int64_t>(tokens_.size());
    event.source = static_cast<int32_t>(taken_) < step_.accepted
                       ? TokenSource::kDraft
                       : TokenSource::kTarget;
    if (run_.logits) {
      const int64_t vocab_size = engine_->info.vocab_size;
      event.logits =
          absl::MakeConstSpan(logits_.data() + taken_ * vocab_size, vocab_size);
    }
    const bool stop = std::find(stop_tokens_.begin(), stop_tokens_.end(),
                                event.id) != stop_tokens_.end();
    if (!stop && engine_->info.has_tokenizer) {
      DELTAEDGE_ASSIGN_OR_RETURN(event.text, decoder_.Push(event.id));
    }
    tokens_.push_back(event.id);
    ++taken_;
    ++produced_;
    ++stats_.delivered_tokens;
    if (awaiting_first_token_) {
      awaiting_first_token_ = false;
      stats_.time_to_first_token = Since(prefill_start_);
    }
    if (stop) {
      EndRun(FinishReason::kStopToken);
    } else if (produced_ == run_.max_new_tokens) {
      EndRun(FinishReason::kMaxTokens);
    } else if (static_cast<int64_t>(tokens_.size()) == limits_.max_context) {
      EndRun(FinishReason::kContextFull);
    }
    return event;
  }

  const std::shared_ptr<EngineImpl> engine_;
  const EngineImpl::Limits limits_;

  // The sequence. state_ covers all of tokens_ but the last, and beyond it the
  // block of step_, of which the first taken_ tokens have been delivered.
  std::vector<TokenId> tokens_;
  TargetSequence state_;
  const std::unique_ptr<BlockDrafter> drafter_;
  StepResult step_;
  size_t taken_ = 0;
  AlignedArray<float> logits_;  // [1 + draft_tokens, vocab_size], of step_

  // The run since Start().
  bool started_ = false;
  FinishReason reason_ = FinishReason::kNone;
  GenerateOptions run_;
  std::vector<TokenId> stop_tokens_;
  int32_t produced_ = 0;
  StreamDecoder decoder_;

  bool busy_ = false;
  bool reset_wanted_ = false;
  std::atomic<bool> cancel_{false};

  SessionStats stats_;
  Clock::time_point prefill_start_;
  bool awaiting_first_token_ = false;
};

absl::StatusOr<std::unique_ptr<Session>> EngineImpl::NewSession(
    std::shared_ptr<EngineImpl> engine, const SessionOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(const Limits limits, engine->Resolve(options));
  DELTAEDGE_ASSIGN_OR_RETURN(const SessionMemory memory,
                             engine->EstimateMemory(options));
  if (options.memory_limit_bytes > 0 &&
      memory.total() > options.memory_limit_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a session needs ", memory.total(),
                     " bytes at max_context ", limits.max_context,
                     "; memory_limit_bytes is ", options.memory_limit_bytes));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      TargetSequence state,
      MakeTargetSequence(engine->target_file->target_config(),
                         limits.max_context, 1 + limits.draft_tokens));
  std::unique_ptr<BlockDrafter> drafter = std::make_unique<NullDrafter>();
  if (limits.draft_tokens > 0) {
    if (options.drafter != nullptr) {
      drafter = std::make_unique<CustomDrafter>(options.drafter);
    } else {
      absl::MutexLock lock(&engine->step_mutex);
      DELTAEDGE_ASSIGN_OR_RETURN(
          drafter,
          DFlashDrafter::Create(engine->draft.get(), limits.max_context));
    }
  }
  auto impl = std::make_unique<Session::Impl>(
      std::move(engine), limits, std::move(state), std::move(drafter));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::Status Session::Prefill(absl::Span<const TokenId> tokens) {
  return impl_->Prefill(tokens);
}
absl::StatusOr<GenerateResult> Session::Generate(
    const GenerateOptions& options,
    absl::FunctionRef<bool(const TokenEvent&)> on_token) {
  return impl_->Generate(options, on_token);
}
absl::Status Session::Start(const GenerateOptions& options) {
  return impl_->Start(options);
}
absl::StatusOr<std::optional<TokenEvent>> Session::Next() {
  return impl_->Next();
}
FinishReason Session::finish_reason() const { return impl_->finish_reason(); }
std::string Session::TakeTail() { return impl_->TakeTail(); }
void Session::Reset() { impl_->Reset(); }
void Session::Cancel() { impl_->Cancel(); }
int64_t Session::position() const {
  return static_cast<int64_t>(impl_->tokens().size());
}
int64_t Session::max_context() const { return impl_->max_context(); }
const std::vector<TokenId>& Session::tokens() const { return impl_->tokens(); }
SessionStats Session::stats() const { return impl_->stats(); }

}  // namespace deltaedge
