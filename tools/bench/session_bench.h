// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_
#define DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/types.h"
#include "tools/bench/report.h"

namespace deltaedge {

// What the benchmarks of sessions share. Each compares ways to the same tokens:
// candidates alternate, and a result's ratio is over the first of its group.
struct SessionBench {
  const Engine* engine = nullptr;
  // One for each session; reused in turn where there are more sessions.
  std::vector<std::vector<TokenId>> prompts;
  int32_t new_tokens = 0;
  // Whether an answer ends at the model's stop tokens.
  bool stop_tokens = false;
  std::vector<Rollback> rollbacks;  // At least one.
  int32_t repetitions = 0;
};

// Plain decoding of one session, for each way of rolling back.
absl::StatusOr<std::vector<Result>> BenchDecode(const SessionBench& bench);

// One session with the model's drafts, for each way of rolling back, against
// plain decoding.
absl::StatusOr<std::vector<Result>> BenchSpec(const SessionBench& bench);

// So many sessions one after another against all of them by
// Engine::StepMany(), without drafts and, if there is a draft model, with; the
// first way of rolling back.
absl::StatusOr<std::vector<Result>> BenchSessions(const SessionBench& bench,
                                                  int32_t sessions);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_
