// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_
#define DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_

#include <cstdint>

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

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_BASE_ARGUMENT_ERROR_H_
