// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace deltaedge {

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::Status TemporaryFolder::Make(const std::string& name) {
  std::error_code error;
  const std::filesystem::path parent =
      std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("no folder for temporary files: ", error.message()));
  }
  std::string path = (parent / (name + ".XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", std::strerror(errno)));
  }
  path_ = path;
  return absl::OkStatus();
}

}  // namespace deltaedge
