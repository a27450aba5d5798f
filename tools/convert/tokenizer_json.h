// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_TOKENIZER_JSON_H_
#define DELTAEDGE_TOOLS_CONVERT_TOKENIZER_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/tokenizer_tables.h"

namespace deltaedge {

// Reads a Hugging Face tokenizer.json of the Qwen family:
//   model          BPE with vocab and merges ("a b" or ["a", "b"])
//   normalizer     null, NFC, or a Sequence of those
//   pre_tokenizer  Sequence of Split (Regex, Isolated) and ByteLevel without
//                  prefix space and expression of its own
//   post_processor null or ByteLevel
//   decoder        ByteLevel
//   added_tokens
// `vocab_size` of the result is the number of its ids; the caller raises it to
// the rows of the embedding table.
//
// Everything else could change ids in silence, so it is refused:
// Unimplemented names the key and its value. InvalidArgument: not JSON, a key
// that is missing or of another type, ids that clash. NotFound: no such file.
// All messages begin with `path`.
absl::StatusOr<TokenizerTables> ReadTokenizerJson(const std::string& path);

// The same for the text of such a file; `name` stands for it in messages.
absl::StatusOr<TokenizerTables> ParseTokenizerJson(absl::string_view json,
                                                   absl::string_view name);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_TOKENIZER_JSON_H_
