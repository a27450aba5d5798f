// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace deltaedge {

const SourceTensor* TensorSource::Find(absl::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

absl::Status TensorSource::CheckRange(const SourceTensor& entry, int64_t first,
                                      int64_t count) const {
  if (first >= 0 && first <= entry.elements &&
      count <= entry.elements - first) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrCat(PathOf(entry), ": ", count, " elements from ", first,
                   " asked of a tensor that has ", entry.elements));
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string QuotedName(absl::string_view name) {
  constexpr size_t kMaxLength = 120;
  return absl::StrCat("\"", absl::Utf8SafeCEscape(name.substr(0, kMaxLength)),
                      name.size() > kMaxLength ? "...\"" : "\"");
}

}  // namespace deltaedge
