// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_TOKENIZER_GOLDEN_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_TOKENIZER_GOLDEN_H_

#include <string>

#include "tools/golden_check/report.h"

namespace deltaedge {

// Whether `folder` holds one of the files below.
bool IsTokenizerGolden(const std::string& folder);

// Checks what `folder` holds:
//
//   encode.json       texts to ids, with control tokens read as such and as
//                     text, and back, with control tokens shown and hidden
//   decode_ids.json   ids to text, also broken ones, and every prefix, streamed
//   pretokenize.json  pieces of a text by the expressions of regex.json
//   chat.json         conversations to text, and to ids
//
// A column NAME belongs to the tokenizer NAME.tokenizer.json in the folder.
// Those of the full vocabulary, which the folder does not hold, belong to
// `tokenizer`: "qwen3" to that file as it is, "qwen35_regex" to its vocabulary
// with the expression "qwen35_regex" of regex.json; the ids of chat.json to
// "qwen3". Empty: they are not run. Conversations with tools are not run
// either.
//
// chat.json is Qwen3's. Its template drops the reasoning of turns that are
// over; here that is up to whoever builds a conversation, so the check does it.
void CheckTokenizer(const std::string& folder, const std::string& tokenizer,
                    Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_TOKENIZER_GOLDEN_H_
