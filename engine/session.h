// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SESSION_H_
#define DELTAEDGE_ENGINE_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/options.h"
#include "engine/stats.h"
#include "engine/types.h"

namespace deltaedge {

class EngineImpl;  // Not for users.

struct GenerateResult {
  FinishReason reason = FinishReason::kNone;
  int32_t delivered = 0;
  // Text that no token delivered: what a stop text might have begun with, and a
  // character that was never completed, as U+FFFD.
  std::string tail;
};

// An immutable copy of all that a session was after its last delivered token:
// the sequence, the state of the target and what the draft model knows of it,
// and where the loop since Start() stands, rules, random numbers and history
// of the sampler included. Holds keys and values of position() tokens and one
// recurrent state per layer, no weights. Not: tokens that were verified and not
// yet delivered (they come again), what is left of StartPrefill(), counters, an
// application's Drafter.
//
// A value that is cheap to copy, because copies share it; may be used by many
// threads, because nobody changes it. Keeps the engine alive.
class Snapshot {
 public:
  int64_t position() const;  // Tokens in the sequence.
  int64_t bytes() const;     // Memory held.

 private:
  friend class Session;
  struct Rep;
  explicit Snapshot(std::shared_ptr<const Rep> rep);
  std::shared_ptr<const Rep> rep_;
};

// One sequence of tokens and the state the models keep for it.
//
// The sequence is what was prefilled and what was delivered, nothing more:
// drafted tokens that were rejected, or accepted but not yet delivered, can
// never be observed, whatever the draft length, the stop rule or the moment of
// a Cancel(). Acceptance and rollback happen inside.
//
// Lifetime: keeps the engine's weights and threads alive; may outlive the
// Engine object.
//
// Threads: thread-compatible. One call at a time, from any thread; only
// Cancel() may be called while another call runs. Steps of all sessions of one
// engine take turns on its threads.
//
// Errors: a call that fails leaves the session at its last completed chunk or
// token, as position() tells, and usable. Arguments are checked before anything
// runs, so InvalidArgument, OutOfRange and FailedPrecondition change nothing.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Appends `tokens`. May be called again and again, also after Generate; split
  // as you like: the result is the same, bit for bit. Nothing is sampled. Ends
  // a loop of Next(). InvalidArgument: empty, or an id outside the vocabulary.
  // OutOfRange: does not fit max_context.
  // Cancelled: the session holds the chunks done so far; see position().
  absl::Status Prefill(absl::Span<const TokenId> tokens);

  // Prefill() for Engine::StepMany(): takes over a copy of `tokens`, of which
  // every StepMany() with this session appends a chunk, until prefill_left() is
  // 0. Same bits, same errors; until then Prefill, Start, Generate and Next
  // give FailedPrecondition. Cancel() and Reset() drop what is left. The first
  // token of a sequence needs no model: of a prompt of one nothing is left at
  // once, and one StepMany() without Start() is OK and runs nothing.
  absl::Status StartPrefill(absl::Span<const TokenId> tokens);
  int64_t prefill_left() const;  // Tokens.

  // Picks tokens until something ends it; `on_token` is called on this thread,
  // in order, for each delivered token, with no lock held. It may return false
  // to stop, and may call Cancel() and the const methods; other calls on this
  // session from inside it return FailedPrecondition. Must not throw. A stop, a
  // Cancel() and a full context are results, not errors. FailedPrecondition:
  // nothing was prefilled. InvalidArgument: bad options.
  absl::StatusOr<GenerateResult> Generate(
      const GenerateOptions& options,
      absl::FunctionRef<bool(const TokenEvent&)> on_token);

  // The same, one token a call, for callers with a loop of their own. Start()
  // sets the rules; Next() gives a token, or nullopt once finish_reason() is
  // set. Most calls take a verified token from a queue; about one in
  // tokens_per_step() runs the models. Next() without Start():
  // FailedPrecondition.
  absl::Status Start(const GenerateOptions& options);
  absl::StatusOr<std::optional<TokenEvent>> Next();
  // Verified tokens that Next() gives without running the models.
  int32_t waiting() const;
  // Why the last Generate or loop of Next() ended; kNone while it has not.
  FinishReason finish_reason() const;
  // The text that no token delivered so far (GenerateResult::tail), after which
  // it is empty: no stop text can begin in it any more. From inside a callback:
  // empty, and nothing changes.
  std::string TakeTail();

  // A second session, with the same options, that goes on from here by itself.
  // Copies state, shares weights; this one is not changed. A loop since Start()
  // goes on in both, with the same seed, so they say the same; call Start()
  // with another seed to hear something else. May be called from inside a
  // callback, and in the middle of a verified block: both go on as if there had
  // been no fork, bit for bit. Counters of the new one are 0. What is left of
  // StartPrefill(), and a Cancel() or Reset() still to be done, stay with this
  // one. An application's Drafter is shared. ResourceExhausted: no memory for
  // it.
  absl::StatusOr<std::unique_ptr<Session>> Fork() const;

  // The same as a value, from which any session of this engine can go on, now
  // or later, as often as wanted. ResourceExhausted: no memory for it.
  absl::StatusOr<Snapshot> Take() const;
  // Makes this session what the other was when `snapshot` was taken; what it
  // held before is gone, its counters and options stay. FailedPrecondition: the
  // session is inside a call. InvalidArgument: the snapshot is of another
  // engine, does not fit max_context, or lacks what this session's draft model
  // has to know of the sequence (it was taken from a session without it).
  // ResourceExhausted. On an error nothing has changed.
  absl::Status Restore(const Snapshot& snapshot);

  // Back to the empty sequence. Keeps the memory. Cannot fail. From inside a
  // callback it is put off until the callback has returned, and ends the
  // Generate as Cancel() does.
  void Reset();

  // Asks the running Prefill or Generate, or the loop of Next() since Start(),
  // to end, or what is left of StartPrefill() to be dropped. A running step or
  // prefill chunk is abandoned at the next layer; nothing of it is kept.
  // Forgotten when the next Prefill, StartPrefill, Start, Generate or Restore
  // begins.
  void Cancel();

  int64_t position() const;     // Tokens in the sequence.
  int64_t max_context() const;  // The most it can hold.
  // The sequence. Valid until the next call that changes it.
  const std::vector<TokenId>& tokens() const;
  SessionStats stats() const;

 private:
  friend class EngineImpl;
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SESSION_H_
