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
  std::string tail;  // Text that no token completed: a broken character.
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

  // Picks tokens until something ends it; `on_token` is called on this thread,
  // in order, for each delivered token, with no lock held. It may return false
  // to stop, and may call Cancel() and the const methods; other calls on this
  // session from inside it return FailedPrecondition. A stop, a Cancel() and a
  // full context are results, not errors. FailedPrecondition: nothing was
  // prefilled. InvalidArgument: bad options.
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
  // Why the last Generate or loop of Next() ended; kNone while it has not.
  FinishReason finish_reason() const;
  // The text that no token completed so far: a broken character. Empties it.
  // From inside a callback: empty, and nothing changes.
  std::string TakeTail();

  // Back to the empty sequence. Keeps the memory. Cannot fail. From inside a
  // callback it is put off until the callback has returned, and ends the
  // Generate as Cancel() does.
  void Reset();

  // Asks the running Prefill or Generate, or the loop of Next() since Start(),
  // to end. A running step or prefill chunk is abandoned at the next layer;
  // nothing of it is kept. Forgotten when the next Prefill, Start or Generate
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
