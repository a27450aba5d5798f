// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_CHECK_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

struct GoldenCheckOptions {
  // A golden: a .safetensors or .json file, or a folder of tokenizer goldens.
  std::string golden;
  // The target: a checkpoint's folder or a model file. Needed for goldens of
  // targets, drafts and conversations.
  std::string model;
  // The draft, likewise. Needed for goldens of drafts; makes the others check
  // more.
  std::string draft;
  // A tokenizer.json, for the columns of tokenizer goldens whose tokenizer is
  // not in the folder.
  std::string tokenizer;
  // 0: as many as there are CPUs. The numbers do not depend on it.
  int threads = 1;
};

// Runs every check that the golden supports, as the headers beside this one
// say, and reports each. What the golden holds and nobody understands is
// listed; if nothing is understood, that is a failure. Files that a golden's
// meaning depends on are looked for beside it: golden_meta.json (window_mode of
// a draft with sliding layers; null: no window), ops_meta.json.
//
// InvalidArgument: an option is missing. Else an error of reading the golden or
// the models. Checks that fail are no error; `report` tells.
absl::Status RunGoldenCheck(const GoldenCheckOptions& options, Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_CHECK_H_
