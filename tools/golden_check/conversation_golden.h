// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_CONVERSATION_GOLDEN_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_CONVERSATION_GOLDEN_H_

#include "nlohmann/json.hpp"
#include "pthreadpool.h"
#include "tools/golden_check/model_pair.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

// Whether `golden` is an object with a list of conversations.
bool IsConversationGolden(const nlohmann::json& golden);

// Checks every turn of every conversation of `golden`:
//
//   {"conversations": [{
//      "messages": [{"role": ..., "content": ...}, ...],
//      "enable_thinking": null or a bool; it is the last turn's,
//      "turns": [{"prompt_ids": [...], "answer_ids": [...], "answer": text,
//                 "accepted": [...], "margin": m, "draft_margin": m}, ...]}]}
//
//   prompt     the messages up to the turn's question, in the model's own chat
//              format, are prompt_ids;
//   answer     greedy decoding after prompt_ids gives answer_ids, the stop
//              token included, and the text;
//   accepted   every step brings as many tokens as `accepted` says: the first
//              token of an answer comes from a step without drafts, each later
//              step drafts as many as the draft can. Without a draft in `pair`
//              this is not run.
//
// The first difference of a turn is excused, and listed, where the reference
// itself was that close to a tie: `margin` for the answer, and that or
// `draft_margin` for `accepted`, below 1e-3. Nothing behind it is compared.
void CheckConversations(const ModelPair& pair, pthreadpool_t pool,
                        const nlohmann::json& golden, Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_CONVERSATION_GOLDEN_H_
