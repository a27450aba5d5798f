// SPDX-License-Identifier: Apache-2.0
//
// Compares what DeltaEdge computes with what a reference implementation did:
//
//   golden_check --golden=FILE.safetensors|FILE.json|TOKENIZER_FOLDER
//       [--model=DIR_OR_FILE] [--draft=DIR_OR_FILE]
//       [--tokenizer=tokenizer.json]

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "tools/cli/flags.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/golden_check/golden_check.h"
#include "tools/golden_check/report.h"

ABSL_FLAG(std::string, golden, "",
          "the golden: a .safetensors or .json file, or a folder of tokenizer "
          "goldens. Required");
ABSL_FLAG(std::string, model, "",
          "the target, a checkpoint's folder or a model file. Required for "
          "goldens of models, drafts and conversations");
ABSL_FLAG(std::string, draft, "",
          "the draft, likewise. Required for goldens of drafts");
ABSL_FLAG(std::string, tokenizer, "",
          "the tokenizer.json of the full vocabulary, for the columns of "
          "tokenizer goldens that need it");
ABSL_FLAG(int, threads, 1, "threads; 0: as many as there are CPUs");

namespace deltaedge {
namespace {

absl::Status Run(const std::vector<char*>& arguments, Report* report) {
  DELTAEDGE_RETURN_IF_ERROR(CheckNoArguments(arguments));
  GoldenCheckOptions options;
  options.golden = UserPath(absl::GetFlag(FLAGS_golden));
  options.model = UserPath(absl::GetFlag(FLAGS_model));
  options.draft = UserPath(absl::GetFlag(FLAGS_draft));
  options.tokenizer = UserPath(absl::GetFlag(FLAGS_tokenizer));
  options.threads = absl::GetFlag(FLAGS_threads);
  return RunGoldenCheck(options, report);
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  const std::vector<char*> arguments = deltaedge::StartProgram(
      argc, argv,
      "compares what DeltaEdge computes with what a reference implementation "
      "did; the exit status is 0 only\nif there were checks and all passed:\n"
      "  golden_check --golden=FILE.safetensors|FILE.json|TOKENIZER_FOLDER\n"
      "      [--model=DIR_OR_FILE] [--draft=DIR_OR_FILE] "
      "[--tokenizer=tokenizer.json]");
  deltaedge::Report report(stdout);
  const absl::Status status = deltaedge::Run(arguments, &report);
  report.Summary();
  const int exit_status = deltaedge::EndProgram(status);
  return report.ok() ? exit_status : EXIT_FAILURE;
}
