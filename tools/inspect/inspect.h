// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_INSPECT_INSPECT_H_
#define DELTAEDGE_TOOLS_INSPECT_INSPECT_H_

#include <string>

#include "absl/status/statusor.h"

namespace deltaedge {

struct InspectOptions {
  std::string path;  // A model file.
  // Name of one tensor: its numbers are looked at instead of the file. Empty:
  // the file.
  std::string tensor;
  // Read all of the file and compare it with its checksums. False: header and
  // index only, and the tensor that is asked for.
  bool verify = false;
  // JSON instead of tables. Numbers that are no numbers are null there, 64-bit
  // identities are hexadecimal text.
  bool json = false;
};

// What a model file holds, as text for people or programs, printable whatever
// stands in the file. Errors are ModelFile::Open()'s; NotFound also: no such
// tensor, with the names that come near.
//
// Of a file: header, config, tokenizer, chat, fingerprints, bytes by part and
// type, all tensors. Of a tensor, dequantised, in double: least, greatest,
// mean, root of the mean square, how many are zero, infinite, or NaN; the first
// four are of finite numbers only.
absl::StatusOr<std::string> Inspect(const InspectOptions& options);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_INSPECT_INSPECT_H_
