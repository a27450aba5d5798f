// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TOKENIZER_H_
#define DELTAEDGE_ENGINE_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/types.h"

namespace deltaedge {

// Text to ids and back. Immutable after construction: const methods may be
// called from any thread. An application may bring its own.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // How text that spells a special token ("<|im_end|>") is read.
  enum class Special {
    kAsText,   // As ordinary characters. Use this for what a user typed.
    kAsToken,  // As the token. Only for text the application wrote.
  };

  // The ids of `text`; nothing is added in front or behind.
  // InvalidArgument if `text` is not UTF-8 (the message names the byte) or
  // longer than the tokenizer takes.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(
      absl::string_view text, Special special) const = 0;

  // The bytes of one token, perhaps part of a character; empty for ids that
  // only pad the vocabulary. The view lives as long as the tokenizer.
  // OutOfRange unless 0 <= id < vocab_size().
  virtual absl::StatusOr<absl::string_view> Bytes(TokenId id) const = 0;

  // Whether `id` is a special token: one that steers the model and that a
  // reader is not meant to see. False for ids outside the vocabulary.
  virtual bool IsSpecial(TokenId id) const = 0;

  virtual int32_t vocab_size() const = 0;
};

// Joins the bytes of successive tokens into whole UTF-8 characters: what comes
// out is always UTF-8, and joined it is the text of all tokens decoded at once.
// Bytes that can never become a character come out as U+FFFD, one for each
// group that could have begun one (the Unicode standard's "maximal subpart").
// Thread-compatible. `tokenizer` must outlive it.
class StreamDecoder {
 public:
  // Whether special tokens are part of the text.
  enum class SpecialTokens { kKeep, kSkip };

  explicit StreamDecoder(const Tokenizer* tokenizer,
                         SpecialTokens special_tokens = SpecialTokens::kKeep);

  // Text completed by `id`, often none; valid until the next call.
  // OutOfRange: not an id of the tokenizer; nothing has changed.
  absl::StatusOr<absl::string_view> Push(TokenId id);

  // What is left, a broken tail as U+FFFD, and starts over.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_tokens_;
  std::string pending_;  // The beginning of a character: at most 3 bytes.
  std::string ready_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TOKENIZER_H_
