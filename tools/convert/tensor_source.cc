// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tensor_source.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
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

}  // namespace deltaedge
