// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_
#define DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace deltaedge {

// What a kernel's Check function found: the first unsound argument, its value
// and what would have been allowed. Kernels themselves cannot fail; a caller
// that does not trust its arguments asks the Check function first. All strings
// are literals, so an error owns nothing and may be copied freely.
struct ArgumentError {
  const char* argument;  // as spelt in the header, e.g. "sequence[].fold_rows"
  int64_t index;         // of the element in "[]"; -1: there is only one
  int64_t value;  // the value found; of a null pointer 0; else see `allowed`
  const char* allowed;  // e.g. "at least 0"
};

// For Check functions: tells `*error`, which may be null, what is unsound.
// Returns false.
inline bool FailArgument(ArgumentError* error, const char* argument,
                         int64_t index, int64_t value, const char* allowed) {
  if (error != nullptr) *error = {argument, index, value, allowed};
  return false;
}

// The error as a sentence, the index in its brackets, e.g.
// "sequence[3].fold_rows is -1; allowed: at least 0".
inline std::string ToString(const ArgumentError& error) {
  std::string text = error.argument;
  const std::size_t bracket = text.find("[]");
  if (error.index >= 0 && bracket != std::string::npos) {
    text.insert(bracket + 1, std::to_string(error.index));
  }
  return text + " is " + std::to_string(error.value) +
         "; allowed: " + error.allowed;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_
