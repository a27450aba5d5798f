// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_GGUF_TOKENIZER_H_
#define DELTAEDGE_TOOLS_CONVERT_GGUF_TOKENIZER_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "tools/convert/gguf.h"

namespace deltaedge {

// What tokenizer.json of the same model says, from the keys under "tokenizer."
// of a GGUF file:
//   ggml.model      "gpt2", which is byte-level BPE; absent, "none" or
//                   "no_vocab": there is no tokenizer
//   ggml.pre        "qwen2" or "qwen35": which regular expression cuts texts
//   ggml.tokens     in the byte alphabet, by id
//   ggml.token_type 1 a token of the merges, 3 a special one, 4 one that is cut
//                   out of texts but not special, 5 an id without a token
//   ggml.merges     "a b", in order of rank
//   ggml.normalizer.nfc  absent: true, as all tokenizers of these models have
//   it
// `vocab_size` of the result is the number of tokens.
//
// Whether a token is special is not told one to one: what writes these files
// takes every added token of the form <|...|> for one.
//
// Other keys are ReadGgufConfig()'s to refuse.
//
// Unimplemented: another model or pre-tokenizer, or a token that is to be put
// before or behind every text. InvalidArgument: a key that is missing or of
// another type, tokens and merges that do not fit together. All messages name
// file and key.
absl::StatusOr<std::optional<TokenizerTables>> ReadGgufTokenizer(
    const Gguf& file);

// The chat table that tokenizer.chat_template comes to, whose tokenizer is
// `tables`, with `stop_tokens` first among its own. Unset: there is no
// template. Errors are those of RecogniseChatTemplate().
absl::StatusOr<std::optional<ChatTable>> ReadGgufChatTable(
    const Gguf& file, const TokenizerTables& tables,
    absl::Span<const TokenId> stop_tokens);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_GGUF_TOKENIZER_H_
