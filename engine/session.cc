// SPDX-License-Identifier: Apache-2.0

#include "engine/session.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/graph/target_sequence.h"
#include "engine/sampling/sampler.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/custom_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/drafter_wrapper.h"
#include "engine/spec/stepper.h"
#include "engine/text/stop_text.h"

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

// The loop since Start(): its rules and where it stands.
struct Run {
  explicit Run(const Tokenizer* tokenizer)
      : decoder(tokenizer, StreamDecoder::SpecialTokens::kSkip) {}

  bool started = false;
  FinishReason reason = FinishReason::kNone;
  GenerateOptions options;
  std::vector<TokenId> stop_tokens;
  uint64_t seed = 0;
  int32_t produced = 0;
  Sampler sampler;
  StreamDecoder decoder;
  StopTextMatcher stop_text;
};

// A seed nobody asked for.
uint64_t DrawSeed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed)) {
    seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }
  return seed;
}

}  // namespace

struct Snapshot::Rep {
  std::shared_ptr<EngineImpl> engine;
  std::vector<TokenId> tokens;
  std::unique_ptr<TargetSequence> state;
  std::unique_ptr<DFlashContext> draft;  // Null: without.
  Run run;
  int64_t bytes = 0;
};

Snapshot::Snapshot(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}
int64_t Snapshot::position() const {
  return static_cast<int64_t>(rep_->tokens.size());
}
int64_t Snapshot::bytes() const { return rep_->bytes; }

class Session::Impl {
 public:
  Impl(std::shared_ptr<EngineImpl> engine, const SessionOptions& options,
       const EngineImpl::Limits& limits, TargetSequence state,
       std::unique_ptr<BlockDrafter> drafter)
      : engine_(std::move(engine)),
        options_(options),
        limits_(limits),
        state_(std::move(state)),
        drafter_(std::move(drafter)),
        run_(engine_->tokenizer.get()) {
    tokens_.reserve(static_cast<size_t>(limits_.max_context));
    ClearStats();
  }

  absl::Status Prefill(absl::Span<const TokenId> tokens) {
    DELTAEDGE_RETURN_IF_ERROR(StartPrefill(tokens));
    const Occupied occupied(&busy_);
    while (PromptLeft() > 0) {
      StepItem item = PrefillItem(EngineImpl::kChunkRows);
      StepAlone(&item);
      DELTAEDGE_RETURN_IF_ERROR(FinishPrefill(item));
    }
    DropPrompt();
    return absl::OkStatus();
  }

  absl::Status StartPrefill(absl::Span<const TokenId> tokens) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    DELTAEDGE_RETURN_IF_ERROR(CheckPrompt(tokens));
    cancel_.store(false, std::memory_order_relaxed);
    EndRun(FinishReason::kNone);
    run_.started = false;
    prefill_start_ = Clock::now();
    awaiting_first_token_ = true;
    // The state lacks the sequence's last token, so that goes first; the last
    // of the new ones stays behind in turn.
    DropPrompt();
    if (tokens_.empty()) {
      tokens_.push_back(tokens[0]);
      ++stats_.prefill_tokens;
      tokens.remove_prefix(1);
    }
    prompt_.push_back(tokens_.back());
    prompt_.insert(prompt_.end(), tokens.begin(), tokens.end());
    return absl::OkStatus();
  }

  int64_t prefill_left() const { return cancelled() ? 0 : PromptLeft(); }

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
        run_.reason = FinishReason::kCancelled;
        result.reason = run_.reason;
        return result;
      }
      if (!go_on && run_.reason == FinishReason::kNone) {
        EndRun(FinishReason::kCancelled);
      }
    }
    result.reason = run_.reason;
    result.tail = TakeTail();
    return result;
  }

  absl::Status Start(const GenerateOptions& options) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    DELTAEDGE_RETURN_IF_ERROR(CheckPrefilled());
    DELTAEDGE_RETURN_IF_ERROR(Validate(options));
    DELTAEDGE_RETURN_IF_ERROR(CheckAgainstModel(options));
    if (tokens_.empty()) {
      return absl::FailedPreconditionError(
          "nothing to continue: the session is empty; call Prefill first");
    }
    if (options.logits) DELTAEDGE_RETURN_IF_ERROR(ReserveLogits());
    cancel_.store(false, std::memory_order_relaxed);
    EndRun(FinishReason::kNone);
    run_.options = options;
    run_.stop_tokens = options.stop_tokens;
    if (!options.ignore_model_stop_tokens) {
      const std::vector<TokenId>& own = engine_->target_file->stop_tokens();
      run_.stop_tokens.insert(run_.stop_tokens.end(), own.begin(), own.end());
    }
    run_.seed =
        options.sampling.seed.has_value() ? *options.sampling.seed : DrawSeed();
    stats_.seed = run_.seed;
    run_.sampler.Start(options.sampling, run_.seed, tokens_);
    run_.decoder.Flush();
    run_.stop_text = StopTextMatcher(options.stop_texts);
    run_.produced = 0;
    run_.started = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<TokenEvent>> Next() {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    DELTAEDGE_RETURN_IF_ERROR(CheckPrefilled());
    if (!run_.started) {
      return absl::FailedPreconditionError("Next() needs Start() first");
    }
    const Occupied occupied(&busy_);
    if (WantsStep()) {
      StepItem item = BlockItem();
      StepAlone(&item);
      DELTAEDGE_RETURN_IF_ERROR(FinishBlock(item));
    }
    if (run_.reason != FinishReason::kNone) return std::nullopt;
    return Deliver();
  }

  // The parts of Engine::StepMany(), between which its caller holds the session
  // as being inside a call.
  //
  // Whether there is something to run, which `*item` then describes. An error
  // is the session's outcome.
  absl::StatusOr<bool> PrepareStep(StepItem* item) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    if (PromptLeft() > 0) {
      *item = PrefillItem(EngineImpl::kSharedChunkRows);
      return true;
    }
    const bool prompt_is_there = !prompt_.empty();
    DropPrompt();
    if (!run_.started) {
      if (prompt_is_there) return false;
      return absl::FailedPreconditionError(
          "nothing to run: call StartPrefill or Start first");
    }
    if (!WantsStep()) return false;
    *item = BlockItem();
    return true;
  }
  absl::Status FinishStep(const StepItem& item) {
    return item.chunk.empty() ? FinishBlock(item) : FinishPrefill(item);
  }
  void set_busy(bool busy) { busy_ = busy; }

  absl::StatusOr<std::unique_ptr<Session>> Fork() {
    DELTAEDGE_RETURN_IF_ERROR(engine_->CheckOutsideStep());
    DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<Session> fork,
                               EngineImpl::NewSession(engine_, options_));
    Impl& other = *fork->impl_;
    if (run_.options.logits) DELTAEDGE_RETURN_IF_ERROR(other.ReserveLogits());
    CopyModels(&state_, DeliveredCursor(), drafter_->context(), &other.state_,
               other.drafter_->context());
    other.tokens_ = tokens_;
    other.run_ = run_;
    other.stats_.seed = run_.seed;
    return fork;
  }

  absl::StatusOr<std::shared_ptr<const Snapshot::Rep>> Take() {
    DELTAEDGE_RETURN_IF_ERROR(engine_->CheckOutsideStep());
    const SequenceState cursor = DeliveredCursor();
    const int64_t capacity = std::max<int64_t>(1, cursor.length());
    const TargetConfig& config = engine_->target_file->target_config();
    auto rep = std::make_shared<Snapshot::Rep>(
        Snapshot::Rep{engine_, tokens_, nullptr, nullptr, run_});
    DELTAEDGE_ASSIGN_OR_RETURN(
        TargetSequence state,
        MakeTargetSequence(config, capacity, /*block_rows=*/1,
                           Rollback::kJournal, engine_->huge_pages));
    rep->state = std::make_unique<TargetSequence>(std::move(state));
    rep->bytes = TargetKvShape(config, capacity).bytes() +
                 rep->state->recurrent.shape().bytes();
    if (drafter_->context() != nullptr) {
      const DraftConfig& draft = engine_->draft_file->draft_config();
      DELTAEDGE_ASSIGN_OR_RETURN(DFlashContext context,
                                 DFlashContext::Create(draft, capacity));
      rep->draft = std::make_unique<DFlashContext>(std::move(context));
      rep->bytes += DFlashContext::Bytes(draft, capacity);
    }
    CopyModels(&state_, cursor, drafter_->context(), rep->state.get(),
               rep->draft.get());
    return rep;
  }

  absl::Status Restore(const Snapshot::Rep& from) {
    DELTAEDGE_RETURN_IF_ERROR(CheckFree());
    if (from.engine != engine_) {
      return absl::InvalidArgumentError(
          "the snapshot was taken from a session of another engine");
    }
    if (static_cast<int64_t>(from.tokens.size()) > limits_.max_context) {
      return absl::InvalidArgumentError(
          absl::StrCat("the snapshot holds ", from.tokens.size(),
                       " tokens; max_context is ", limits_.max_context));
    }
    if (drafter_->context() != nullptr && from.draft == nullptr &&
        from.tokens.size() > 1) {
      return absl::InvalidArgumentError(
          "the snapshot was taken from a session that does not use the draft "
          "model, and this one does; make one with draft_tokens 0");
    }
    if (from.run.options.logits) DELTAEDGE_RETURN_IF_ERROR(ReserveLogits());
    EndRun(FinishReason::kNone);
    DropPrompt();
    cancel_.store(false, std::memory_order_relaxed);
    drafter_->Reset();
    CopyModels(from.state.get(), from.state->cursor, from.draft.get(), &state_,
               drafter_->context());
    tokens_ = from.tokens;
    run_ = from.run;
    stats_.seed = run_.seed;
    awaiting_first_token_ = false;
    return absl::OkStatus();
  }

  void Reset() {
    if (busy_) {
      reset_wanted_ = true;
      return;
    }
    reset_wanted_ = false;
    step_.tokens.clear();
    taken_ = 0;
    tokens_.clear();
    DropPrompt();
    run_ = Run(engine_->tokenizer.get());
    state_.cursor.Reset();
    state_.recurrent.Reset();
    drafter_->Reset();
    awaiting_first_token_ = false;
    ClearStats();
  }

  void Cancel() { cancel_.store(true, std::memory_order_relaxed); }
  FinishReason finish_reason() const { return run_.reason; }
  int32_t waiting() const {
    return static_cast<int32_t>(step_.tokens.size() - taken_);
  }
  // Inside a callback the matcher holds TokenEvent::text.
  std::string TakeTail() {
    if (busy_) return std::string();
    const std::string broken = run_.decoder.Flush();
    const StopTextMatcher::Result result = run_.stop_text.Push(broken);
    std::string tail(result.text);
    const std::string held = run_.stop_text.Flush();
    return result.stopped ? tail : tail + held;
  }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int64_t max_context() const { return limits_.max_context; }
  const SessionStats& stats() const { return stats_; }
  const EngineImpl* engine() const { return engine_.get(); }

 private:
  bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

  void ClearStats() {
    stats_ = {};
    stats_.tried_at.resize(limits_.draft_tokens);
    stats_.accepted_at.resize(limits_.draft_tokens);
  }

  absl::Status CheckFree() {
    if (!busy_) {
      DELTAEDGE_RETURN_IF_ERROR(engine_->CheckOutsideStep());
      if (reset_wanted_) Reset();  // Asked for by a drafter.
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        "the session is inside a call; from a callback only Cancel(), Reset() "
        "and const methods may be called");
  }

  // Tokens of a prompt in progress, also of one that is about to be dropped.
  int64_t PromptLeft() const {
    return prompt_.empty()
               ? 0
               : static_cast<int64_t>(prompt_.size()) - 1 - prompt_done_;
  }

  absl::Status CheckPrefilled() {
    if (cancelled()) DropPrompt();
    if (PromptLeft() == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        PromptLeft(), " tokens of a prompt are left for Engine::StepMany"));
  }

  // `what` says where `id` stands, up to the number itself.
  template <class... What>
  absl::Status CheckId(TokenId id, const What&... what) const {
    const int32_t vocab_size = engine_->info.vocab_size;
    if (id >= 0 && id < vocab_size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what..., id, "; ids are 0 to ", vocab_size - 1));
  }

  absl::Status CheckPrompt(absl::Span<const TokenId> tokens) {
    DELTAEDGE_RETURN_IF_ERROR(CheckPrefilled());
    if (tokens.empty()) {
      return absl::InvalidArgumentError("no tokens to prefill");
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      DELTAEDGE_RETURN_IF_ERROR(CheckId(tokens[i], "token ", i, " is "));
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

  // What depends on the model.
  absl::Status CheckAgainstModel(const GenerateOptions& options) const {
    for (size_t i = 0; i < options.stop_tokens.size(); ++i) {
      DELTAEDGE_RETURN_IF_ERROR(
          CheckId(options.stop_tokens[i], "stop_tokens[", i, "] is "));
    }
    const std::vector<LogitBias>& biases = options.sampling.logit_bias;
    for (size_t i = 0; i < biases.size(); ++i) {
      DELTAEDGE_RETURN_IF_ERROR(
          CheckId(biases[i].token, "logit_bias[", i, "] is for token "));
    }
    if (!options.stop_texts.empty() && !engine_->info.has_tokenizer) {
      return absl::FailedPreconditionError(
          "stop_texts need text, and the model file has no tokenizer; use "
          "stop_tokens");
    }
    return absl::OkStatus();
  }

  absl::Status ReserveLogits() {
    if (!logits_.empty()) return absl::OkStatus();
    DELTAEDGE_ASSIGN_OR_RETURN(
        logits_, AlignedArray<float>::Allocate(
                     {limits_.draft_tokens + 1, engine_->info.vocab_size},
                     "scores of delivered tokens"));
    return absl::OkStatus();
  }

  // The cursor as of the last delivered token.
  SequenceState DeliveredCursor() const {
    SequenceState cursor = state_.cursor;
    if (!step_.tokens.empty()) {
      cursor.Keep(static_cast<int32_t>(taken_)).IgnoreError();
    }
    return cursor;
  }

  // Makes `to` what `from` is as of `cursor`, and the draft's context likewise
  // if both sides have one.
  void CopyModels(TargetSequence* from, const SequenceState& cursor,
                  const DFlashContext* draft_from, TargetSequence* to,
                  DFlashContext* draft_to) const {
    {
      absl::MutexLock lock(&engine_->step_mutex);
      CopyTargetSequence(engine_->target_file->target_config(), from, cursor,
                         to, engine_->pool->get());
    }
    if (draft_from != nullptr && draft_to != nullptr) {
      draft_to->CopyFrom(*draft_from, cursor.length());
    }
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
    run_.reason = reason;
    if (reason != FinishReason::kNone && !rested_) engine_->Rest();
    rested_ = true;
  }

  void DropPrompt() {
    prompt_.clear();
    prompt_done_ = 0;
  }

  void StepAlone(StepItem* item) { engine_->Step(absl::MakeSpan(item, 1)); }

  StepItem NewItem() {
    StepItem item;
    item.state = &state_;
    item.drafter = drafter_.get();
    item.sampler = &run_.sampler;
    item.cancel = &cancel_;
    item.result = &step_;
    return item;
  }

  StepItem PrefillItem(int32_t max_rows) {
    StepItem item = NewItem();
    item.chunk = absl::MakeConstSpan(prompt_).subspan(
        prompt_done_, std::min<int64_t>(max_rows, PromptLeft()));
    return item;
  }

  absl::Status FinishPrefill(const StepItem& item) {
    if (!item.status.ok()) {
      DropPrompt();
      if (!absl::IsCancelled(item.status)) return item.status;
      return absl::CancelledError(
          absl::StrCat("prefill was cancelled; the session holds ",
                       tokens_.size(), " tokens"));
    }
    prompt_done_ += item.chunk.size();
    tokens_.insert(tokens_.end(), item.chunk.begin() + 1, item.chunk.end());
    tokens_.push_back(prompt_[prompt_done_]);
    stats_.prefill_tokens += item.chunk.size();
    stats_.prefill_time += step_.verify_time + step_.accept_time;
    if (PromptLeft() == 0) DropPrompt();
    return absl::OkStatus();
  }

  // Whether the loop goes on with a step; if it ends, says why.
  bool WantsStep() {
    if (run_.reason != FinishReason::kNone) return false;
    if (cancelled()) {
      EndRun(FinishReason::kCancelled);
      return false;
    }
    if (waiting() > 0) return false;
    if (static_cast<int64_t>(tokens_.size()) >= limits_.max_context) {
      EndRun(FinishReason::kContextFull);
      return false;
    }
    return true;
  }

  StepItem BlockItem() {
    KeepDelivered();
    const int64_t room =
        limits_.max_context - static_cast<int64_t>(tokens_.size());
    StepItem item = NewItem();
    item.sequence = tokens_;
    item.stop_tokens = run_.stop_tokens;
    item.max_drafts = static_cast<int32_t>(std::min<int64_t>(
        {limits_.draft_tokens, run_.options.max_new_tokens - run_.produced - 1,
         room - 1}));
    if (run_.options.logits) item.logits = logits_.data();
    return item;
  }

  absl::Status FinishBlock(const StepItem& item) {
    if (absl::IsCancelled(item.status)) {
      EndRun(FinishReason::kCancelled);
      return absl::OkStatus();
    }
    DELTAEDGE_RETURN_IF_ERROR(item.status);
    rested_ = false;
    ++stats_.steps;
    if (step_.drafted > 0) ++stats_.draft_steps;
    // A drafter that is always asked does not know whose it is.
    if (step_.choice.reason == DraftReason::kPinned) {
      step_.choice.source = limits_.source;
    }
    if (step_.choice.reason != DraftReason::kNoRoom) {
      stats_.last_choice = step_.choice;
    }
    switch (step_.choice.reason) {
      case DraftReason::kPlain:
        ++stats_.plain_by_choice;
        break;
      case DraftReason::kProbe:
      case DraftReason::kMeasure:
        ++stats_.probes;
        break;
      default:
        break;
    }
    if (step_.choice.source == DraftSource::kLookup) {
      stats_.lookup_drafted += step_.drafted;
      stats_.lookup_accepted += step_.accepted;
    }
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

  absl::StatusOr<TokenEvent> Deliver() {
    TokenEvent event;
    event.id = step_.tokens[taken_];
    event.position = static_cast<int64_t>(tokens_.size());
    event.source = static_cast<int32_t>(taken_) < step_.accepted
                       ? TokenSource::kDraft
                       : TokenSource::kTarget;
    if (run_.options.logits) {
      const int64_t vocab_size = engine_->info.vocab_size;
      event.logits =
          absl::MakeConstSpan(logits_.data() + taken_ * vocab_size, vocab_size);
    }
    const bool stop_token =
        std::find(run_.stop_tokens.begin(), run_.stop_tokens.end(), event.id) !=
        run_.stop_tokens.end();
    bool stop_text = false;
    if (!stop_token && engine_->info.has_tokenizer) {
      DELTAEDGE_ASSIGN_OR_RETURN(const absl::string_view text,
                                 run_.decoder.Push(event.id));
      const StopTextMatcher::Result result = run_.stop_text.Push(text);
      event.text = result.text;
      stop_text = result.stopped;
    }
    tokens_.push_back(event.id);
    run_.sampler.Push(event.id);
    ++taken_;
    ++run_.produced;
    ++stats_.delivered_tokens;
    if (awaiting_first_token_) {
      awaiting_first_token_ = false;
      stats_.time_to_first_token = Since(prefill_start_);
    }
    if (stop_token) {
      EndRun(FinishReason::kStopToken);
    } else if (stop_text) {
      EndRun(FinishReason::kStopText);
    } else if (run_.produced == run_.options.max_new_tokens) {
      EndRun(FinishReason::kMaxTokens);
    } else if (static_cast<int64_t>(tokens_.size()) == limits_.max_context) {
      EndRun(FinishReason::kContextFull);
    }
    return event;
  }

  const std::shared_ptr<EngineImpl> engine_;
  const SessionOptions options_;
  const EngineImpl::Limits limits_;

  // The sequence. state_ covers all of tokens_ but the last, and beyond it the
  // block of step_, of which the first taken_ tokens have been delivered.
  std::vector<TokenId> tokens_;  // With room for max_context.
  TargetSequence state_;
  const std::unique_ptr<BlockDrafter> drafter_;
  StepResult step_;
  size_t taken_ = 0;
  AlignedArray<float> logits_;  // [1 + draft_tokens, vocab_size], of step_

  // A prompt in progress: the anchor and the new tokens, of which the first
  // prompt_done_ are covered by the state. Empty: none. One token: nothing is
  // left, which the next StepMany() takes note of.
  std::vector<TokenId> prompt_;
  int64_t prompt_done_ = 0;

  Run run_;
  bool rested_ = true;  // No step since an answer ended.
  bool busy_ = false;
  bool reset_wanted_ = false;
  std::atomic<bool> cancel_{false};

  SessionStats stats_;
  Clock::time_point prefill_start_;
  bool awaiting_first_token_ = false;
};

absl::StatusOr<std::unique_ptr<Session>> EngineImpl::NewSession(
    std::shared_ptr<EngineImpl> engine, const SessionOptions& options) {
  DELTAEDGE_RETURN_IF_ERROR(engine->CheckOutsideStep());
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
                         limits.max_context, 1 + limits.draft_tokens,
                         limits.rollback, engine->huge_pages));
  DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<BlockDrafter> drafter,
                             engine->MakeDrafter(options, limits));
  auto impl = std::make_unique<Session::Impl>(
      std::move(engine), options, limits, std::move(state),
      ScopedDrafterWrapper::Apply(std::move(drafter)));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

absl::StatusOr<std::vector<absl::Status>> EngineImpl::StepMany(
    absl::Span<Session* const> sessions) {
  DELTAEDGE_RETURN_IF_ERROR(CheckOutsideStep());
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("sessions[", i, "] is null"));
    }
    if (sessions[i]->impl_->engine() != this) {
      return absl::InvalidArgumentError(
          absl::StrCat("sessions[", i, "] belongs to another engine"));
    }
  }
  // More sessions than this allocate.
  constexpr size_t kFew = 16;
  absl::InlinedVector<Session*, kFew> sorted(sessions.begin(), sessions.end());
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
      twice != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sessions[",
        std::find(sessions.begin(), sessions.end(), *twice) - sessions.begin(),
        "] is there twice"));
  }

  std::vector<absl::Status> outcomes(sessions.size());
  absl::InlinedVector<StepItem, kFew> items;
  absl::InlinedVector<size_t, kFew> owners;
  for (size_t i = 0; i < sessions.size(); ++i) {
    StepItem item;
    const absl::StatusOr<bool> runs = sessions[i]->impl_->PrepareStep(&item);
    outcomes[i] = runs.status();
    if (!runs.ok()) continue;
    sessions[i]->impl_->set_busy(true);
    if (!*runs) continue;
    items.push_back(item);
    owners.push_back(i);
  }
  Step(absl::MakeSpan(items));
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (outcomes[i].ok()) sessions[i]->impl_->set_busy(false);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    outcomes[owners[i]] = sessions[owners[i]]->impl_->FinishStep(items[i]);
  }
  return outcomes;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::Status Session::Prefill(absl::Span<const TokenId> tokens) {
  return impl_->Prefill(tokens);
}
absl::Status Session::StartPrefill(absl::Span<const TokenId> tokens) {
  return impl_->StartPrefill(tokens);
}
int64_t Session::prefill_left() const { return impl_->prefill_left(); }
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
int32_t Session::waiting() const { return impl_->waiting(); }
FinishReason Session::finish_reason() const { return impl_->finish_reason(); }
std::string Session::TakeTail() { return impl_->TakeTail(); }
absl::StatusOr<std::unique_ptr<Session>> Session::Fork() const {
  return impl_->Fork();
}
absl::StatusOr<Snapshot> Session::Take() const {
  DELTAEDGE_ASSIGN_OR_RETURN(std::shared_ptr<const Snapshot::Rep> rep,
                             impl_->Take());
  return Snapshot(std::move(rep));
}
absl::Status Session::Restore(const Snapshot& snapshot) {
  return impl_->Restore(*snapshot.rep_);
}
void Session::Reset() { impl_->Reset(); }
void Session::Cancel() { impl_->Cancel(); }
int64_t Session::position() const {
  return static_cast<int64_t>(impl_->tokens().size());
}
int64_t Session::max_context() const { return impl_->max_context(); }
const std::vector<TokenId>& Session::tokens() const { return impl_->tokens(); }
SessionStats Session::stats() const { return impl_->stats(); }

}  // namespace deltaedge
