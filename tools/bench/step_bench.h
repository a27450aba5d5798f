// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_STEP_BENCH_H_
#define DELTAEDGE_TOOLS_BENCH_STEP_BENCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_file.h"
#include "tools/bench/report.h"
#include "tools/bench/session_bench.h"

namespace deltaedge {

// Where a sequence stands when steps with many rows are timed, if the model
// has room for so many positions.
inline constexpr int32_t kRowsPosition = 256;
// What BenchRows() needs a model to have room for.
inline constexpr int32_t kRowsLeastContext = 66;

// Whole steps of the target with so many rows, 1 to kMaxBlockRows, for each way
// of rolling back: a session that verifies drafts which cost nothing and are
// never right. Scores of all rows are computed and a token is picked from each.
// n: rows; ms: of a step; tokens_per_second: rows. "r": the time over that of
// one row, which is measured whether it was asked for or not.
absl::StatusOr<std::vector<Result>> BenchRows(const SessionBench& bench,
                                              const std::vector<int32_t>& rows);

// Prompts of so many rows, one token longer, as the last token of a prompt is
// part of the answer's first step. "share_of_product_rate": the time of the
// model's products alone (layer_products.h), all rows at once, over that of the
// prompt; not told of models with experts, where it depends on who is chosen.
absl::StatusOr<std::vector<Result>> BenchPrefill(
    const SessionBench& bench, const std::vector<int32_t>& rows,
    const ModelFile& target);

// Tokens as good as any, the same every time.
std::vector<TokenId> RandomTokens(int32_t vocab_size, int64_t count,
                                  uint64_t seed);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_STEP_BENCH_H_
