// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_GOLDEN_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_GOLDEN_H_

#include "absl/strings/string_view.h"
#include "pthreadpool.h"
#include "tools/golden_check/draft_runner.h"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/model_pair.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

// Whether section `prompt` of `golden` holds what a draft makes of a prompt.
bool IsDraftPrompt(const GoldenTensors& golden, absl::string_view prompt);

// Checks all such prompts: the target's features, the context, the first block
// layer by layer; the complete decoding run, step by step; and, to the bit, the
// context injected in pieces against at once, and the scores with drafts
// against those without. `pair` has a draft.
//
// Drafted tokens are compared where the draft's own lead of the best over the
// next is more than 4 times the error that was measured on the draft's scores.
// Where they differ below that, the run goes on with the golden's.
void CheckDraftPrompts(const ModelPair& pair, WindowMode window,
                       pthreadpool_t pool, GoldenTensors* golden,
                       Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_DRAFT_GOLDEN_H_
