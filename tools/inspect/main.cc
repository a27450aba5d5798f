// SPDX-License-Identifier: Apache-2.0
//
// Shows what a model file holds:
//
//   inspect FILE.gdn [--tensor=NAME] [--verify] [--json]

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "tools/inspect/inspect.h"

ABSL_FLAG(std::string, tensor, "",
          "look at the numbers of this tensor: least, greatest, mean, root of "
          "the mean square, zeros, infinities, NaNs");
ABSL_FLAG(bool, verify, false,
          "read the whole file and compare it with its checksums");
ABSL_FLAG(bool, json, false, "print JSON");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "shows what a model file holds:\n"
      "  inspect FILE.gdn [--tensor=NAME] [--verify] [--json]");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() != 2) {
    absl::FPrintF(stderr,
                  "error: exactly one model file is expected (--help lists all "
                  "flags)\n");
    return EXIT_FAILURE;
  }
  deltaedge::InspectOptions options;
  options.path = arguments[1];
  options.tensor = absl::GetFlag(FLAGS_tensor);
  options.verify = absl::GetFlag(FLAGS_verify);
  options.json = absl::GetFlag(FLAGS_json);
  const absl::StatusOr<std::string> text = deltaedge::Inspect(options);
  if (!text.ok()) {
    absl::FPrintF(stderr, "error: %s\n", text.status().message());
    return EXIT_FAILURE;
  }
  // A pipe that closes or a disk that is full is a failure too.
  if (std::fputs(text->c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    absl::FPrintF(stderr, "error: cannot write to standard output\n");
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
