// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_BYTE_ALPHABET_H_
#define DELTAEDGE_TOOLS_CONVERT_BYTE_ALPHABET_H_

#include <array>
#include <string>

#include "absl/strings/string_view.h"

namespace deltaedge {

// How files of tokenizers write the bytes of a token as printable characters:
// those of Latin-1 that are printable stand for themselves, the other 68 for
// U+0100 and on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet();

  // The bytes that `text`, in UTF-8, stands for. False: it is not UTF-8, or one
  // of its characters is not of the alphabet.
  bool Decode(absl::string_view text, std::string* bytes) const;

  // The other way round.
  std::string Encode(absl::string_view bytes) const;

 private:
  std::array<int, 256 + 68> byte_of_;  // -1: no byte.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_BYTE_ALPHABET_H_
