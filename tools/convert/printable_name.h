// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_PRINTABLE_NAME_H_
#define DELTAEDGE_TOOLS_CONVERT_PRINTABLE_NAME_H_

#include <string>

#include "absl/strings/string_view.h"

namespace deltaedge {

// A name from a file (of a tensor, of a key), made fit for a message: escaped
// as in C, so that it is printable ASCII whatever its bytes are, and cut when
// it is long.
std::string PrintableName(absl::string_view name);

// The same in double quotes.
std::string QuotedName(absl::string_view name);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_PRINTABLE_NAME_H_
