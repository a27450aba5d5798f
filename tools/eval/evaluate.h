// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_EVAL_EVALUATE_H_
#define DELTAEDGE_TOOLS_EVAL_EVALUATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_file.h"
#include "pthreadpool.h"
#include "tools/eval/divergence.h"
#include "tools/eval/scored_text.h"

namespace deltaedge {

// Runs the reference and all targets over the windows, and compares the scores
// of their rows: one result for each target. All models are in memory at the
// same time, and of their scores, [vocabulary] for each row, those of
// kEvalChunkRows rows; so memory does not grow with the text. `pool` may be
// null.
//
// InvalidArgument names the file: not a target, or, by its fingerprint, not of
// the reference's checkpoint; a window longer than the model takes. Internal:
// scores that are not numbers.
inline constexpr int kEvalChunkRows = 32;
absl::StatusOr<std::vector<Divergence>> Evaluate(
    const ModelFile& reference, absl::Span<const ModelFile* const> targets,
    absl::Span<const TextWindow> windows, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_EVAL_EVALUATE_H_
