// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_PARTIAL_FILE_H_
#define DELTAEDGE_ENGINE_BASE_PARTIAL_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace deltaedge {

// Where a large file is written before it takes its place by being renamed:
// "PATH.partial-PID-N" beside `path`. Makes it, empty, open for reading and
// writing and close-on-exec, and gives its descriptor; both are the caller's,
// who renames or removes it. `*partial` becomes its path.
//
// Files of this kind and for this `path` that a killed process left are removed
// first, with a warning in the log: those whose process is gone or had this
// one's number, on this system and, by a lock that a partial file is under as
// long as it is open, on all others that share the folder, as far as their file
// system locks.
//
// Errors are what absl::ErrnoToStatus() makes of the system's. May be called
// from any thread of any process at any time.
absl::StatusOr<int> CreatePartialFile(const std::string& path,
                                      std::string* partial);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_PARTIAL_FILE_H_
