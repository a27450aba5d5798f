// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_TEMPORARY_FOLDER_H_
#define DELTAEDGE_TOOLS_CONVERT_TEMPORARY_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace deltaedge {

// A new empty folder where the system keeps temporary files, removed with the
// object and all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Once; `name` is the beginning of the folder's. FailedPrecondition: it
  // cannot be made.
  absl::Status Make(const std::string& name);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_TEMPORARY_FOLDER_H_
