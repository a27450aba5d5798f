// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_ENGINE_H_
#define DELTAEDGE_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/chat_format.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "engine/tokenizer.h"
#include "engine/types.h"

namespace deltaedge {

struct ModelInfo {
  std::string name;
  int32_t vocab_size = 0;
  int32_t max_context = 0;
  int32_t draft_block = 0;   // Rows of the draft model's block; 0: none.
  int64_t weight_bytes = 0;  // In the files, of both models.
  int32_t threads = 0;       // That one step uses.
  // How many those are, where they run and why; for people.
  std::string thread_placement;
  std::string cpu_target;  // The instruction set chosen for our kernels.
  bool has_tokenizer = false;
  // Where the packed weights of the target are and why; for people.
  std::string packed_weights;
};

// Bytes a session would need, before making one.
struct SessionMemory {
  int64_t kv_bytes = 0;         // Keys and values; used as the sequence grows.
  int64_t recurrent_bytes = 0;  // States, journals and convolution windows.
  // The draft model's context and what the look-up remembers; used as the
  // sequence grows.
  int64_t draft_bytes = 0;
  // Scores of a block; taken by the first Start() that wants
  // GenerateOptions::logits.
  int64_t score_bytes = 0;
  int64_t token_bytes = 0;  // The sequence's ids; used as it grows.
  int64_t total() const {
    return kv_bytes + recurrent_bytes + draft_bytes + score_bytes + token_bytes;
  }
};

// Weights, packed once, and the threads that run them. Heavy: make one.
// Immutable after Open; every method may be called from any thread.
//
//   auto engine = deltaedge::Engine::Open({target_path, draft_path});
//   if (!engine.ok()) return engine.status();
//   auto session = (*engine)->NewSession();
//   if (!session.ok()) return session.status();
//   auto ids = (*engine)->chat().Render({{Role::kUser, "Hello"}});
//   if (!ids.ok()) return ids.status();
//   if (auto s = (*session)->Prefill(*ids); !s.ok()) return s;
//   auto result = (*session)->Generate({}, [](const TokenEvent& t) {
//     std::cout << t.text << std::flush;
//     return true;
//   });
class Engine {
 public:
  // NotFound, PermissionDenied: a file cannot be read.
  // DataLoss: a file is cut short or damaged.
  // Unimplemented: a valid file that needs a newer library.
  // InvalidArgument: bad options, a file that is no model file, or a draft made
  // for another target. ResourceExhausted: no memory, or no threads.
  // Never ends the process, whatever the files hold.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(
      const ModelFiles& files, const EngineOptions& options = {});

  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A session with an empty sequence. InvalidArgument: bad options.
  // ResourceExhausted: no memory, or more than options.memory_limit_bytes.
  absl::StatusOr<std::unique_ptr<Session>> NewSession(
      const SessionOptions& options = {}) const;
  // What NewSession(options) would take. InvalidArgument: bad options.
  absl::StatusOr<SessionMemory> EstimateMemory(
      const SessionOptions& options = {}) const;

  // Runs the models once for all of `sessions`, of this engine, so that they
  // share each weight that is read: a chunk of a prompt for a session with one
  // (Session::StartPrefill), a step for one in a loop since Start() that has no
  // token waiting, whether it drafts or not; nothing for one with tokens
  // waiting, a finish_reason() or a prompt of which StartPrefill() left
  // nothing. Next() then gives the tokens:
  //
  //   while (!active.empty()) {
  //     auto each = engine->StepMany(active);
  //     ...
  //     for (Session* s : active) {
  //       while (s->waiting() > 0) Show(s->Next());
  //     }
  //     // Remove from `active` whose finish_reason() is set.
  //   }
  //
  // Tokens and scores of every session are those that it would have alone, bit
  // for bit, whatever the company.
  //
  // One status per session, in order: what its Prefill or Next would have
  // returned; FailedPrecondition: nothing to run, or inside a call. A session
  // with an error is where it was; the others have done their part.
  // InvalidArgument: a null, a session of another engine, one that is there
  // twice; nothing has run. As long as it runs it counts as a call of each
  // session. Ends early when all of them are cancelled; one that was cancelled
  // alone ends with the others.
  absl::StatusOr<std::vector<absl::Status>> StepMany(
      absl::Span<Session* const> sessions) const;

  const ModelInfo& info() const;
  // Owned; live as long as the engine. Of a model file without a tokenizer or a
  // chat table every call fails with FailedPrecondition that says so.
  const Tokenizer& tokenizer() const;
  const ChatFormat& chat() const;

 private:
  explicit Engine(std::shared_ptr<EngineImpl> impl);
  std::shared_ptr<EngineImpl> impl_;  // Shared with the sessions.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_ENGINE_H_
