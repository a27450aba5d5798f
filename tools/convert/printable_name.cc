// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/printable_name.h"

#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

std::string PrintableName(absl::string_view name) {
  constexpr size_t kMaxLength = 120;
  return absl::StrCat(absl::CEscape(name.substr(0, kMaxLength)),
                      name.size() > kMaxLength ? "..." : "");
}

std::string QuotedName(absl::string_view name) {
  return absl::StrCat("\"", PrintableName(name), "\"");
}

}  // namespace deltaedge
