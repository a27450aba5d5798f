// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_UTF8_H_
#define DELTAEDGE_ENGINE_TEXT_UTF8_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// UTF-8 as the Unicode standard defines it (chapter 3, table 3-7): no overlong
// forms, no surrogates, nothing above U+10FFFF.

// What stands for bytes that are no character: U+FFFD.
inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What the first bytes of a text are.
struct Utf8Step {
  enum class Kind {
    kCharacter,  // A whole character.
    kBroken,     // Can never become one.
    kCut,        // The beginning of one, and the text ends there.
  };
  Kind kind = Kind::kCharacter;
  // Bytes it takes, at least 1. Of kBroken, as many as could have begun a
  // character ("maximal subpart"): each such group counts as one U+FFFD.
  size_t bytes = 1;
};

// `text` must not be empty.
Utf8Step NextUtf8(absl::string_view text);

// InvalidArgument unless `text` is UTF-8; names `what`, the offset and the
// first bad byte. Never quotes the text.
absl::Status CheckUtf8(absl::string_view text, absl::string_view what);

// `text` without white space at its ends: the characters for which Python's
// str.isspace() holds. `text` must be UTF-8.
absl::string_view StripUnicodeSpace(absl::string_view text);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_UTF8_H_
