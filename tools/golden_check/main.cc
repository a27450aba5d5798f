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
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", arguments[1],
                     "\" is not expected: all is said by flags"
                     " (--help lists them)"));
  }
  GoldenCheckOptions options;
  options.golden = absl::GetFlag(FLAGS_golden);
  options.model = absl::GetFlag(FLAGS_model);
  options.draft = absl::GetFlag(FLAGS_draft);
  options.tokenizer = absl::GetFlag(FLAGS_tokenizer);
  options.threads = absl::GetFlag(FLAGS_threads);
  return RunGoldenCheck(options, report);
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "compares what DeltaEdge computes with what a reference implementation "
      "did; the exit status is 0 only if there were checks and all passed:\n"
      "  golden_check --golden=FILE.safetensors|FILE.json|TOKENIZER_FOLDER\n"
      "      [--model=DIR_OR_FILE] [--draft=DIR_OR_FILE] "
      "[--tokenizer=tokenizer.json]");
  deltaedge::Report report(stdout);
  const absl::Status status =
      deltaedge::Run(absl::ParseCommandLine(argc, argv), &report);
  if (!status.ok()) {
    absl::FPrintF(stderr, "error: %s\n", status.message());
  }
  report.Summary();
  if (!status.ok()) return EXIT_FAILURE;
  return report.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
