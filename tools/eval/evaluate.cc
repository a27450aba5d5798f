// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/evaluate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/graph/target_sequence.h"
#include "engine/spec/block_drafter.h"
#include "engine/types.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {

namespace {

absl::Status CheckTarget(const ModelFile& model, const ModelFile& reference) {
  if (model.kind() != ModelKind::kTarget) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.path(), ": a draft; only targets can be compared"));
  }
  if (model.fingerprint() != reference.fingerprint()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: of another checkpoint (fingerprint %016x) than the reference %s "
        "(%016x)",
        model.path(), model.fingerprint(), reference.path(),
        reference.fingerprint()));
  }
  return absl::OkStatus();
}

// A model at work, and its scores of one chunk.
struct Runner {
  std::unique_ptr<TargetRunner> model;
  std::unique_ptr<TargetSequence> sequence;
  std::vector<float> scores;  // [kEvalChunkRows, vocab_size]

  absl::Span<const float> Row(int64_t row) const {
    const size_t vocab = static_cast<size_t>(model->vocab_size());
    return absl::MakeConstSpan(scores).subspan(static_cast<size_t>(row) * vocab,
                                               vocab);
  }
};

absl::StatusOr<Runner> MakeRunner(const ModelFile& file, pthreadpool_t pool) {
  Runner runner;
  DELTAEDGE_ASSIGN_OR_RETURN(
      runner.model,
      TargetRunner::Create(file, /*taps=*/{}, kEvalChunkRows, pool));
  file.EvictWeights();
  runner.scores.resize(
      static_cast<size_t>(kEvalChunkRows * runner.model->vocab_size()));
  return runner;
}

// What the rows of a chunk that count are compared by.
struct Chunk {
  const Runner* reference;
  const Runner* target;
  const TextWindow* window;
  int32_t begin;  // Of the chunk.
  absl::Span<const int32_t> scored;
  RowDivergence* results;
};

void CompareRow(void* context, size_t i) {
  const Chunk& chunk = *static_cast<const Chunk*>(context);
  const int32_t row = chunk.scored[i];
  chunk.results[i] =
      CompareScores(chunk.reference->Row(row - chunk.begin),
                    chunk.target->Row(row - chunk.begin),
                    chunk.window->tokens[static_cast<size_t>(row) + 1]);
}

}  // namespace

absl::StatusOr<std::vector<Divergence>> Evaluate(
    const ModelFile& reference, absl::Span<const ModelFile* const> targets,
    absl::Span<const TextWindow> windows, pthreadpool_t pool) {
  std::vector<const ModelFile*> files = {&reference};
  files.insert(files.end(), targets.begin(), targets.end());
  int64_t context = 0;
  for (const TextWindow& window : windows) {
    context = std::max(context, static_cast<int64_t>(window.tokens.size()));
  }
  for (const ModelFile* file : files) {
    DELTAEDGE_RETURN_IF_ERROR(CheckTarget(*file, reference));
  }
  const int64_t most = reference.target_config().max_context;
  if (context > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows of ", context, " tokens; ", reference.path(),
                     " was made for at most ", most));
  }
  std::vector<Runner> runners;
  for (const ModelFile* file : files) {
    DELTAEDGE_ASSIGN_OR_RETURN(Runner runner, MakeRunner(*file, pool));
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                               runner.model->NewSequence(context));
    runner.sequence = std::make_unique<TargetSequence>(std::move(sequence));
    runners.push_back(std::move(runner));
  }

  std::vector<std::vector<RowDivergence>> rows(targets.size());
  NullDrafter no_drafts;
  for (const TextWindow& window : windows) {
    for (Runner& runner : runners) {
      runner.sequence->cursor.Reset();
      runner.sequence->recurrent.Reset();
    }
    const absl::Span<const TokenId> tokens(window.tokens);
    const int32_t last = window.scored.back();
    auto scored = window.scored.begin();
    for (int32_t begin = 0; begin <= last; begin += kEvalChunkRows) {
      const int32_t end = std::min(begin + kEvalChunkRows, last + 1);
      const auto first = std::exchange(
          scored, std::lower_bound(scored, window.scored.end(), end));
      for (Runner& runner : runners) {
        DELTAEDGE_RETURN_IF_ERROR(runner.model->Prefill(
            tokens.subspan(static_cast<size_t>(begin),
                           static_cast<size_t>(end - begin)),
            runner.sequence.get(), &no_drafts,
            first == scored ? nullptr : runner.scores.data()));
      }
      const auto counting =
          absl::MakeConstSpan(window.scored)
              .subspan(static_cast<size_t>(first - window.scored.begin()),
                       static_cast<size_t>(scored - first));
      for (size_t i = 0; i < targets.size(); ++i) {
        std::vector<RowDivergence> results(counting.size());
        Chunk chunk = {&runners[0], &runners[i + 1], &window,
                       begin,       counting,        results.data()};
        pthreadpool_parallelize_1d(pool, CompareRow, &chunk, counting.size(),
                                   /*flags=*/0);
        for (const RowDivergence& row : results) {
          if (row.finite) continue;
          return absl::InternalError(absl::StrCat(targets[i]->path(), " or ",
                                                  reference.path(),
                                                  ": scores are not numbers"));
        }
        rows[i].insert(rows[i].end(), results.begin(), results.end());
      }
    }
  }
  std::vector<Divergence> all;
  for (const auto& of_target : rows) all.push_back(Summarise(of_target));
  return all;
}

}  // namespace deltaedge
