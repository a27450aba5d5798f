// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_NFC_H_
#define DELTAEDGE_ENGINE_TEXT_NFC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// `text` in Unicode's normalisation form C: canonical composition, so that "e"
// followed by a combining acute accent is "é". `text` must be UTF-8; NUL is a
// character like others.
// ResourceExhausted: no memory.
absl::StatusOr<std::string> Nfc(absl::string_view text);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_NFC_H_
