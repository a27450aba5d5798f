// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_BPE_TOKENIZER_H_
#define DELTAEDGE_ENGINE_TEXT_BPE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/tokenizer.h"

namespace deltaedge {

// Byte-level byte-pair encoding. A text is cut at its added tokens (the longest
// at the leftmost place first), what lies between is normalised, cut into
// pieces by the pretokenizer, and each piece, beginning as single bytes, is
// merged: of all neighbours that have a merge, those of the lowest rank and
// among them the leftmost, until none is left.
//
// A piece of n bytes takes O(n log n) time and O(n) memory, so the length of a
// run of letters is no danger. Texts of up to 256 MiB.
//
// Takes `tables` apart and checks all of them. InvalidArgument names the first
// that is unsound: an id outside the table, a byte without a token, a merge
// whose result is not its parts joined, an added token that asks for a rule
// that is not supported (lstrip, rstrip, single_word), an unsound expression.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(
    TokenizerTables tables);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_BPE_TOKENIZER_H_
