// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CLI_FLAGS_H_
#define DELTAEDGE_TOOLS_CLI_FLAGS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// The type of a flag whose default gives way to what it is for: tells it from
// the same value given by hand, which does not.
template <class T>
struct FlagValue {
  FlagValue(T initial) : value(std::move(initial)) {}  // NOLINT: a default.

  T value;
  bool is_given = false;  // On the command line.
};

template <class T>
bool AbslParseFlag(absl::string_view text, FlagValue<T>* flag,
                   std::string* error) {
  flag->is_given = true;
  return absl::ParseFlag(text, &flag->value, error);
}

template <class T>
std::string AbslUnparseFlag(const FlagValue<T>& flag) {
  return absl::UnparseFlag(flag.value);
}

// Checks of what flags say. All errors are InvalidArgument and name the flag,
// its value and what is allowed.

// That `value` of the flag `name` is not one of `allowed`.
absl::Status BadFlag(absl::string_view name, absl::string_view value,
                     absl::string_view allowed);

// That flags do not go together, or that one is missing.
absl::Status UsageError(absl::string_view message);

// `value` is to be in [least, most].
absl::Status CheckRange(absl::string_view name, int64_t value, int64_t least,
                        int64_t most);

// A list is to have elements, and none of them twice.
absl::Status CheckList(absl::string_view name,
                       const std::vector<std::string>& elements);

// A list's elements as numbers of [least, most].
absl::StatusOr<std::vector<int32_t>> Numbers(
    absl::string_view name, const std::vector<std::string>& elements,
    int32_t least, int32_t most);

// The same, or 0 and nothing else, for which the answer is empty: what the list
// is about is not wanted. least > 0.
absl::StatusOr<std::vector<int32_t>> NumbersOrNone(
    absl::string_view name, const std::vector<std::string>& elements,
    int32_t least, int32_t most);

// Which of `words`, its index.
absl::StatusOr<int> Word(absl::string_view name, absl::string_view value,
                         const std::vector<std::string>& words);

// Of a tool whose flags say all: nothing is to stand behind its name.
absl::Status CheckNoArguments(const std::vector<char*>& arguments);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CLI_FLAGS_H_
