// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_
#define DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/types.h"
#include "tools/bench/machine.h"
#include "tools/bench/measure.h"
#include "tools/bench/model_facts.h"
#include "tools/bench/report.h"
#include "tools/bench/synthetic_acceptance.h"

namespace deltaedge {

// What the benchmarks of sessions share. Each compares ways to the same tokens:
// candidates alternate, and a result's ratio is over the first of its group.
struct SessionBench {
  const Engine* engine = nullptr;
  // One for each session; reused in turn where there are more sessions.
  std::vector<std::vector<TokenId>> prompts;
  // Answers end with the step that brings the last of them, or goes beyond.
  int32_t new_tokens = 0;
  // Whether an answer ends at the model's stop tokens.
  bool stop_tokens = false;
  // Ways of drafting, if there is a draft model: tokens of a step; unset: the
  // engine's choice.
  std::vector<std::optional<int32_t>> draft_tokens;
  std::vector<Rollback> rollbacks;  // At least one.
  // Null: drafts are as right as they are.
  const SyntheticAcceptance* synthetic = nullptr;
  int32_t repetitions = 0;
  const std::atomic<bool>* stop = nullptr;  // Ends it; may be null.
};

// A session with drafts as `bench` wants them.
absl::StatusOr<std::unique_ptr<Session>> NewSession(
    const SessionBench& bench, const SessionOptions& options);

// Internal: drafts are synthetic, and the sequence is not the one that it
// would be without.
absl::Status CheckAnswer(const SessionBench& bench, const Session& session);

// What a result with these members is called; with synthetic drafts it says so.
Result Labels(const SessionBench& bench, const char* test, const char* way,
              std::optional<int32_t> draft_tokens, int32_t n);

// Candidates and what their results are called.
class Comparison {
 public:
  explicit Comparison(const SessionBench& bench) : bench_(bench) {}

  // How many percent of its time a candidate spends outside of launches.
  using Share = std::function<absl::StatusOr<double>()>;

  // Without `bookkeeping` its result does not say.
  void Add(Result labels, Rollback rollback, Candidate candidate,
           Share bookkeeping = nullptr);
  absl::StatusOr<std::vector<Result>> Run() const;

 private:
  const SessionBench& bench_;
  std::vector<Candidate> candidates_;
  std::vector<Share> bookkeeping_;
  std::vector<Result> results_;
};

// Plain decoding of one session, for each way of rolling back.
// "share_of_roofline": the time in which all bytes that a token needs, at the
// middle of the answer, could be read, over the time of a token;
// "read_gb_per_second": how fast `stream` read them in the same repetitions;
// "bookkeeping_percent": of the time, what is not spent inside of kernels and
// products (launch_time.h), measured by repetitions of its own.
absl::StatusOr<std::vector<Result>> BenchDecode(const SessionBench& bench,
                                                const TokenBytes& bytes,
                                                ReadStream* stream);

// One session with the model's drafts, for each way of drafting and of rolling
// back, against plain decoding. "bookkeeping_percent" as of BenchDecode().
absl::StatusOr<std::vector<Result>> BenchSpec(const SessionBench& bench);

// So many sessions one after another against all of them by
// Engine::StepMany(), without drafts and, if there is a draft model, with each
// way of drafting; the first way of rolling back.
absl::StatusOr<std::vector<Result>> BenchSessions(const SessionBench& bench,
                                                  int32_t sessions);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SESSION_BENCH_H_
