// SPDX-License-Identifier: Apache-2.0

#include "engine/text/nfc.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "utf8proc.h"

namespace deltaedge {

absl::StatusOr<std::string> Nfc(absl::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
  if (ascii) return std::string(text);

  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &composed,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(composed,
                                                                 std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM || bytes == UTF8PROC_ERROR_OVERFLOW) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to normalise a text of ", text.size(), " bytes"));
  }
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot normalise the text: ", utf8proc_errmsg(bytes)));
  }
  return std::string(reinterpret_cast<const char*>(composed),
                     static_cast<size_t>(bytes));
}

}  // namespace deltaedge
