// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/paths.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

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

absl::Status CheckNotRead(const std::string& output,
                          const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (input.empty() || !std::filesystem::equivalent(output, input, error)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(output, ": is to be written, but is read as ", input));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunfilePath(const char* program,
                                        const std::string& runfile,
                                        absl::string_view what,
                                        absl::string_view otherwise) {
  using bazel::tools::cpp::runfiles::Runfiles;
  std::string error;
  // By the name the program was called by or, called through a link or from
  // $PATH, by where it really is.
  std::error_code failed;
  const std::string self =
      std::filesystem::read_symlink("/proc/self/exe", failed).string();
  for (const auto& runfiles :
       {absl::WrapUnique(Runfiles::Create(program, &error)),
        absl::WrapUnique(Runfiles::Create(self, "", "", &error))}) {
    if (runfiles == nullptr) continue;
    const std::string path = runfiles->Rlocation("deltaedge/" + runfile);
    if (!path.empty() && access(path.c_str(), R_OK) == 0) return path;
  }
  return absl::NotFoundError(
      absl::StrCat(what, " is not beside this program; start it with ",
                   "`bazel run`, or ", otherwise));
}

}  // namespace deltaedge
