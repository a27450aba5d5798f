// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/byte_alphabet.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"

namespace deltaedge {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) ||
                           (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    byte_of_[printable ? byte : next++] = byte;
  }
}

bool ByteAlphabet::Decode(absl::string_view text, std::string* bytes) const {
  bytes->clear();
  while (!text.empty()) {
    const size_t length = NextUtf8(text).bytes;
    if (length > 2) return false;
    const unsigned lead = static_cast<unsigned char>(text[0]);
    if (length == 1 && lead >= 0x80) return false;  // No character.
    const unsigned code =
        length == 1
            ? lead
            : (lead & 0x1F) << 6 | (static_cast<unsigned>(text[1]) & 0x3F);
    if (code >= byte_of_.size() || byte_of_[code] < 0) return false;
    bytes->push_back(static_cast<char>(byte_of_[code]));
    text.remove_prefix(length);
  }
  return true;
}

std::string ByteAlphabet::Encode(absl::string_view bytes) const {
  std::string text;
  for (const char c : bytes) {
    const auto code =
        static_cast<unsigned>(std::find(byte_of_.begin(), byte_of_.end(),
                                        static_cast<unsigned char>(c)) -
                              byte_of_.begin());
    if (code < 0x80) {
      text.push_back(static_cast<char>(code));
    } else {
      text.push_back(static_cast<char>(0xC0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
  }
  return text;
}

}  // namespace deltaedge
