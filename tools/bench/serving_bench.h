// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SERVING_BENCH_H_
#define DELTAEDGE_TOOLS_BENCH_SERVING_BENCH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/report.h"
#include "tools/bench/session_bench.h"

namespace deltaedge {

// All prompts, one after the other, from the first token of a prompt to the
// last of its answer, without drafts and with each way of drafting; the first
// way of rolling back. Says what benchmarks of servers say:
//
//   tokens_per_second   output tokens over all the time, prompts' included;
//   output_tokens       of all answers;
//   time_to_first_token_ms  mean of the prompts, spread of the repetitions;
//   time_per_output_token_ms  the same of tokens after the first;
//   acceptance_rate     of all drafts; acceptance_at[i]: how often an i-th
//   draft
//                       was accepted where there was one. With drafts only.
absl::StatusOr<std::vector<Result>> BenchServing(const SessionBench& bench);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SERVING_BENCH_H_
