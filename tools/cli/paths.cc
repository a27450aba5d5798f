// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/paths.h"

#include <cstdlib>
#include <string>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/cpp/runfiles/runfiles.h"

namespace deltaedge {

std::string UserPath(const std::string& path) {
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr || path.empty() || path[0] == '/') return path;
  return absl::StrCat(folder, "/", path);
}

absl::StatusOr<std::string> RunfilePath(const char* program,
                                        const std::string& runfile,
                                        absl::string_view what,
                                        absl::string_view otherwise) {
  std::string error;
  const auto runfiles = absl::WrapUnique(
      bazel::tools::cpp::runfiles::Runfiles::Create(program, &error));
  if (runfiles == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(what, " is not beside this program; start it with ",
                     "`bazel run`, or ", otherwise));
  }
  return runfiles->Rlocation("deltaedge/" + runfile);
}

}  // namespace deltaedge
