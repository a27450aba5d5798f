// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_EVAL_SCORED_TEXT_H_
#define DELTAEDGE_TOOLS_EVAL_SCORED_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_file.h"
#include "engine/types.h"

namespace deltaedge {

// Tokens that a model reads from the beginning of a sequence.
struct TextWindow {
  std::vector<TokenId> tokens;  // At least 2.
  // Rows whose scores count: row i is of the token after tokens[i], and is
  // below tokens.size() - 1. Ascending, at least one.
  std::vector<int32_t> scored;
};

// The text in `path` as the tokenizer of `model` reads it, in windows of at
// most `context` tokens, the first of which have `tokens` scored rows in all
// (0: all windows).
//
//   *.jsonl    a conversation a line, [{"role": "user", "content": "..."},
//   ...],
//              rendered by the chat format of `model`; each begins a window,
//              and what the assistant says counts, up to the token that ends it
//   any other  plain text, of which all counts; markers such as
//              "<|endoftext|>" are the tokens that they spell
//
// InvalidArgument: the text is not UTF-8, no conversations (names the line), or
// too short to score any of it; the model has no tokenizer or chat format.
// Others: the file cannot be read.
absl::StatusOr<std::vector<TextWindow>> ReadScoredText(const std::string& path,
                                                       const ModelFile& model,
                                                       int32_t context,
                                                       int64_t tokens);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_EVAL_SCORED_TEXT_H_
