// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_GOLDEN_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_GOLDEN_H_

#include "absl/strings/string_view.h"
#include "pthreadpool.h"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/model_pair.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

// Whether section `prompt` of `golden` holds what a target makes of a prompt:
// logits, hidden states, states, or a greedy continuation.
bool IsTargetPrompt(const GoldenTensors& golden, absl::string_view prompt);

// Whether it holds a decoding run with given blocks, rolled back to what was
// accepted of each.
bool IsRiggedPrompt(const GoldenTensors& golden, absl::string_view prompt);

// Checks all prompts of the first kind: as one chunk; and, to the bit, in
// chunks of other sizes, in blocks of which only some rows are kept, greedily
// one by one and with drafts that are right for a while. With `pair.draft()`,
// also greedily with that.
void CheckTargetPrompts(const ModelPair& pair, pthreadpool_t pool,
                        GoldenTensors* golden, Report* report);

// Checks all prompts of the second kind, driving the stepper with a drafter
// that proposes the golden's blocks; at the end the state, to the bit, against
// that of a fresh run over the tokens that stayed.
void CheckRiggedPrompts(const ModelPair& pair, pthreadpool_t pool,
                        GoldenTensors* golden, Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_TARGET_GOLDEN_H_
