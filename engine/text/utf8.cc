// SPDX-License-Identifier: Apache-2.0

#include "engine/text/utf8.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deltaedge {
namespace {

uint8_t Byte(absl::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// Of a valid character.
uint32_t CodePoint(absl::string_view character) {
  const uint32_t lead = Byte(character, 0);
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    code = code << 6 | (Byte(character, i) & 0x3Fu);
  }
  return code;
}

bool IsPythonSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) ||
         code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace

Utf8Step NextUtf8(absl::string_view text) {
  const uint8_t lead = Byte(text, 0);
  if (lead < 0x80) return {Utf8Step::Kind::kCharacter, 1};

  size_t length;
  uint8_t low = 0x80, high = 0xBF;  // Of the second byte.
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // Overlong below.
    if (lead == 0xED) high = 0x9F;  // Surrogates above.
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // Overlong below.
    if (lead == 0xF4) high = 0x8F;  // Beyond U+10FFFF above.
  } else {
    return {Utf8Step::Kind::kBroken, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kCut, i};
    const uint8_t byte = Byte(text, i);
    if (byte < low || byte > high) return {Utf8Step::Kind::kBroken, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Kind::kCharacter, length};
}

absl::Status CheckUtf8(absl::string_view text, absl::string_view what) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " is not UTF-8: ",
          step.kind == Utf8Step::Kind::kCut ? "cut short" : "broken",
          " character at byte ", i, " (0x",
          absl::Hex(Byte(text, i), absl::kZeroPad2), ")"));
    }
    i += step.bytes;
  }
  return absl::OkStatus();
}

absl::string_view StripUnicodeSpace(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = NextUtf8(text).bytes;
    if (!IsPythonSpace(CodePoint(text.substr(0, bytes)))) break;
    text.remove_prefix(bytes);
  }
  while (!text.empty()) {
    size_t bytes = 1;
    while (bytes < 4 && bytes < text.size() &&
           (Byte(text, text.size() - bytes) & 0xC0) == 0x80) {
      ++bytes;
    }
    if (!IsPythonSpace(CodePoint(text.substr(text.size() - bytes)))) break;
    text.remove_suffix(bytes);
  }
  return text;
}

}  // namespace deltaedge
