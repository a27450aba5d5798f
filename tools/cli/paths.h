// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CLI_PATHS_H_
#define DELTAEDGE_TOOLS_CLI_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace deltaedge {

// A path as the user meant it: `bazel run` starts programs in a folder of its
// own and says where it was called. Empty and absolute ones stay as they are.
std::string UserPath(const std::string& path);

// That the file `output` is none of `inputs`, by whatever name: replacing one
// that is read would lose it. Empty names are none. InvalidArgument otherwise.
absl::Status CheckNotRead(const std::string& output,
                          const std::vector<std::string>& inputs);

// Where `runfile`, a path from the workspace's root, lies beside the program
// that was started as `program`. NotFound: nothing does; the message calls
// it `what` and ends in `otherwise`, what else the user may do.
absl::StatusOr<std::string> RunfilePath(const char* program,
                                        const std::string& runfile,
                                        absl::string_view what,
                                        absl::string_view otherwise);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CLI_PATHS_H_
