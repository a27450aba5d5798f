// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_PRETOKENIZER_H_
#define DELTAEDGE_ENGINE_TEXT_PRETOKENIZER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// Cuts text into the pieces that a tokenizer's merges stay within: the matches
// of a regular expression, and what lies between them.
//
// The expression is PCRE2's, over Unicode characters and classes, with `\s` and
// `\S` read as the Unicode property White_Space, as the expressions of
// tokenizer.json files mean it (PCRE2's own `\s` adds U+180E).
//
// Immutable: Split may be called from any thread.
class Pretokenizer {
 public:
  // InvalidArgument: not a sound expression (where, and why), longer than
  // kMaxExpressionBytes, or `\S` inside a bracketed class.
  // ResourceExhausted: no memory.
  static absl::StatusOr<Pretokenizer> Make(absl::string_view expression);

  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  // The pieces in order: none is empty, joined they are `text`, which they
  // point into. `text` must be UTF-8.
  // ResourceExhausted: the expression needs more steps or memory for this text
  // than the limits allow, which grow with the text; no sound expression of a
  // published model comes near them.
  absl::StatusOr<std::vector<absl::string_view>> Split(
      absl::string_view text) const;

  static constexpr int kMaxExpressionBytes = 1 << 16;

 private:
  struct Compiled;
  explicit Pretokenizer(std::unique_ptr<const Compiled> compiled);
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_PRETOKENIZER_H_
