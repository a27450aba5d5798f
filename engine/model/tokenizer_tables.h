// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_TOKENIZER_TABLES_H_
#define DELTAEDGE_ENGINE_MODEL_TOKENIZER_TABLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/types.h"

namespace deltaedge {

// A token that stands beside the merges: it is cut out of a text before
// anything else looks at it.
struct AddedToken {
  TokenId id = 0;
  std::string text;  // UTF-8, never empty.
  // A control token ("<|im_end|>"). Only these are demoted by
  // Tokenizer::Special::kAsText; others ("<think>") are vocabulary like any
  // other and are recognised in every text.
  bool special = false;
  // The next three are kept so that a file that asks for them is refused by
  // name rather than misread: MakeBpeTokenizer takes none of them.
  bool lstrip = false;
  bool rstrip = false;
  bool single_word = false;
  // Looked for in the normalised text instead of the text as given.
  bool normalized = false;
};

// A byte-level BPE tokenizer as plain data: what the converter reads from
// tokenizer.json, the model file stores and MakeBpeTokenizer() takes.
//
// Nothing here is checked; MakeBpeTokenizer() does that, so these may come from
// a file that nobody trusts.
struct TokenizerTables {
  // [id]: the raw bytes of the token, mapped back from the printable alphabet
  // that tokenizer.json uses; for added tokens their text. An empty entry is an
  // id without a token: it decodes to nothing and is never produced. No token
  // is empty otherwise.
  std::vector<std::string> token_bytes;

  // `left` followed by `right` becomes `result`, whose bytes are theirs joined.
  struct Merge {
    TokenId left = 0, right = 0, result = 0;
  };
  std::vector<Merge> merges;  // Rank = index; lower ranks are applied first.

  std::vector<AddedToken> added;

  // The regular expression whose matches are the pieces that merges stay
  // within; text between matches is a piece too. As in tokenizer.json (Split,
  // Isolated), over Unicode.
  std::string pretokenizer;

  bool nfc = false;            // Text is brought to Unicode's form NFC first.
  bool ignore_merges = false;  // A piece that is a token stays whole.

  // Rows of the embedding table, at least token_bytes.size(). Ids from there on
  // are padding: valid, without text.
  int32_t vocab_size = 0;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_TOKENIZER_TABLES_H_
