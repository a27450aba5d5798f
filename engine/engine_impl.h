// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_ENGINE_IMPL_H_
#define DELTAEDGE_ENGINE_ENGINE_IMPL_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/base/thread_pool.h"
#include "engine/chat_format.h"
#include "engine/engine.h"
#include "engine/graph/draft_model.h"
#include "engine/graph/target_model.h"
#include "engine/model/model_file.h"
#include "engine/ops/packed_cache.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/spec/stepper.h"
#include "engine/stats.h"
#include "engine/tokenizer.h"

namespace deltaedge {

// What an engine and its sessions share. Members are in the order in which they
// depend on one another.
class EngineImpl {
 public:
  // Prompts run in chunks of this many rows. More rows reuse a weight more
  // often and take longer to cancel.
  static constexpr int32_t kChunkRows = 256;
  // Beside blocks of other sessions.
  static constexpr int32_t kSharedChunkRows =
      kChunkRows - Stepper::kMaxSharedRows;

  // Session options with everything unset filled in for this model.
  struct Limits {
    int64_t max_context = 0;
    int32_t draft_tokens = 0;  // At most.
    DraftSource source = DraftSource::kNone;
    bool lookup = false;  // Whether it is asked too, or alone.
    Rollback rollback = Rollback::kJournal;
  };
  absl::StatusOr<Limits> Resolve(const SessionOptions& options) const;
  absl::StatusOr<SessionMemory> EstimateMemory(
      const SessionOptions& options) const;

  absl::StatusOr<std::unique_ptr<BlockDrafter>> MakeDrafter(
      const SessionOptions& options, const Limits& limits);

  // Defined with Session.
  static absl::StatusOr<std::unique_ptr<Session>> NewSession(
      std::shared_ptr<EngineImpl> engine, const SessionOptions& options);
  absl::StatusOr<std::vector<absl::Status>> StepMany(
      absl::Span<Session* const> sessions);

  // Whether this thread is inside a step of this engine. An application's
  // Drafter runs there, and step_mutex is held: what would lock it must refuse.
  absl::Status CheckOutsideStep() const;
  // Runs `items` with the models. The caller is outside a step.
  void Step(absl::Span<StepItem> items);
  // The workers sleep until there is something to do.
  void Rest();

  // Constant after Engine::Open.
  std::unique_ptr<ModelFile> target_file, draft_file;  // draft_file may be null
  // What is mapped of packed weights; null: they are in memory.
  std::unique_ptr<PackedCache> packed_target, packed_draft;
  bool huge_pages = true;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatFormat> chat;
  ModelInfo info;

  // A step uses all threads and the buffers of a pass, so steps of different
  // sessions take turns: held for one block or one prompt chunk, never across a
  // callback.
  absl::Mutex step_mutex;
  std::unique_ptr<TargetModel> target ABSL_GUARDED_BY(step_mutex);
  std::unique_ptr<DraftModel> draft ABSL_GUARDED_BY(step_mutex);
  std::unique_ptr<Stepper> stepper ABSL_GUARDED_BY(step_mutex);
  // What sessions saw of each source of drafts. Used within steps.
  std::map<DraftSource, DraftHistory> draft_histories
      ABSL_GUARDED_BY(step_mutex);
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_ENGINE_IMPL_H_
