// SPDX-License-Identifier: Apache-2.0
//
// Shows what a model file holds:
//
//   inspect FILE.gdn [--tensor=NAME] [--verify] [--json]

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "tools/cli/flags.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/inspect/inspect.h"

ABSL_FLAG(std::string, tensor, "",
          "look at the numbers of this tensor: least, greatest, mean, root of "
          "the mean square, zeros, infinities, NaNs");
ABSL_FLAG(bool, verify, false,
          "read the whole file and compare it with its checksums");
ABSL_FLAG(bool, json, false, "print JSON");

namespace deltaedge {
namespace {

absl::Status Run(const std::vector<char*>& arguments) {
  if (arguments.size() != 2) {
    return UsageError("exactly one model file is expected");
  }
  InspectOptions options;
  options.path = UserPath(arguments[1]);
  options.tensor = absl::GetFlag(FLAGS_tensor);
  options.verify = absl::GetFlag(FLAGS_verify);
  options.json = absl::GetFlag(FLAGS_json);
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text, Inspect(options));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  return deltaedge::EndProgram(deltaedge::Run(deltaedge::StartProgram(
      argc, argv,
      "shows what a model file holds:\n"
      "  inspect FILE.gdn [--tensor=NAME] [--verify] [--json]")));
}
