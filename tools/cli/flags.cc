// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/flags.h"

#include <cstddef>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

absl::Status BadFlag(absl::string_view name, absl::string_view value,
                     absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", value, "\"; allowed is ", allowed));
}

absl::Status UsageError(absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(message, " (--help lists all flags)"));
}

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return BadFlag(name, absl::StrCat(value), absl::StrCat(least, " to ", most));
}

absl::Status CheckList(absl::string_view name,
                       const std::vector<std::string>& elements) {
  if (elements.empty()) return BadFlag(name, "", "at least one");
  absl::flat_hash_set<std::string> seen;
  for (const std::string& element : elements) {
    if (seen.insert(element).second) continue;
    return BadFlag(name, absl::StrJoin(elements, ","),
                   absl::StrCat("\"", element, "\" once"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Numbers(
    absl::string_view name, const std::vector<std::string>& elements,
    int32_t least, int32_t most) {
  DELTAEDGE_RETURN_IF_ERROR(CheckList(name, elements));
  std::vector<int32_t> numbers;
  for (const std::string& element : elements) {
    int32_t number;
    if (!absl::SimpleAtoi(element, &number) || number < least ||
        number > most) {
      return BadFlag(name, element, absl::StrCat(least, " to ", most));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<int32_t>> NumbersOrNone(
    absl::string_view name, const std::vector<std::string>& elements,
    int32_t least, int32_t most) {
  if (elements == std::vector<std::string>{"0"}) return std::vector<int32_t>();
  return Numbers(name, elements, least, most);
}

absl::StatusOr<int> Word(absl::string_view name, absl::string_view value,
                         const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (value == words[i]) return static_cast<int>(i);
  }
  return BadFlag(name, value, absl::StrJoin(words, " or "));
}

absl::Status CheckNoArguments(const std::vector<char*>& arguments) {
  if (arguments.size() <= 1) return absl::OkStatus();
  return UsageError(absl::StrCat("\"", arguments[1],
                                 "\" is not expected: all is said by flags"));
}

}  // namespace deltaedge
