// SPDX-License-Identifier: Apache-2.0

#include "engine/text/nfc.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "utf8proc.h"

namespace deltaedge {
namespace {

constexpr auto kOptions =
    static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Writes what fits into `out` [capacity]. Returns the number of characters that
// the text decomposes to, or an error below 0.
utf8proc_ssize_t Decompose(absl::string_view text, utf8proc_int32_t* out,
                           utf8proc_ssize_t capacity) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto end = static_cast<utf8proc_ssize_t>(text.size());
  utf8proc_ssize_t length = 0;
  int boundary = 0;
  for (utf8proc_ssize_t at = 0; at < end;) {
    utf8proc_int32_t character;
    const utf8proc_ssize_t read =
        utf8proc_iterate(bytes + at, end - at, &character);
    if (read < 0) return read;
    at += read;
    const utf8proc_ssize_t room =
        std::max<utf8proc_ssize_t>(0, capacity - length);
    const utf8proc_ssize_t written =
        utf8proc_decompose_char(character, room == 0 ? nullptr : out + length,
                                room, kOptions, &boundary);
    if (written < 0) return written;
    length += written;
  }
  return length;
}

// Canonical order. utf8proc's own takes time that is quadratic in the marks
// that follow one another, and users type what they like.
void OrderMarks(utf8proc_int32_t* begin, utf8proc_int32_t* end) {
  const auto mark_class = [](utf8proc_int32_t character) {
    return utf8proc_get_property(character)->combining_class;
  };
  const auto less = [&](utf8proc_int32_t a, utf8proc_int32_t b) {
    return mark_class(a) < mark_class(b);
  };
  const auto is_mark = [&](utf8proc_int32_t c) { return mark_class(c) != 0; };
  while (begin != end) {
    begin = std::find_if(begin, end, is_mark);
    utf8proc_int32_t* const marks = begin;
    begin = std::find_if_not(begin, end, is_mark);
    std::stable_sort(marks, begin, less);
  }
}

}  // namespace

absl::StatusOr<std::string> Nfc(absl::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
  if (ascii) return std::string(text);

  const utf8proc_ssize_t length = Decompose(text, nullptr, 0);
  const utf8proc_ssize_t most =
      std::numeric_limits<utf8proc_ssize_t>::max() / 8;
  const std::unique_ptr<utf8proc_int32_t, void (*)(void*)> characters(
      length < 0 || length > most ? nullptr
                                  : static_cast<utf8proc_int32_t*>(std::malloc(
                                        length * sizeof(utf8proc_int32_t) + 1)),
      std::free);
  if (length >= 0 && characters == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to normalise a text of ", text.size(), " bytes"));
  }
  utf8proc_ssize_t bytes = length;
  if (length >= 0) {
    Decompose(text, characters.get(), length);
    OrderMarks(characters.get(), characters.get() + length);
    bytes = utf8proc_reencode(characters.get(), length, kOptions);
  }
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot normalise the text: ", utf8proc_errmsg(bytes)));
  }
  return std::string(reinterpret_cast<const char*>(characters.get()),
                     static_cast<size_t>(bytes));
}

}  // namespace deltaedge
