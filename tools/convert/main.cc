// SPDX-License-Identifier: Apache-2.0
//
// Converts a checkpoint, a Hugging Face folder or a GGUF file, into a model
// file:
//
//   convert --input=DIR|FILE.gguf --output=FILE.gdn [--target=TARGET.gdn]
//           [--weights=q8] [--head=q8] [--gdn=q8] [--experts=q8]

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/convert/convert.h"
#include "tools/convert/recipe_flags.h"
#include "tools/convert/weight_recipe.h"

ABSL_FLAG(std::string, input, "",
          "the checkpoint's folder, or a GGUF file. Required");
ABSL_FLAG(std::string, output, "", "the model file to write. Required");
ABSL_FLAG(std::string, target, "",
          "the model file of a draft's target. Required for drafts");
ABSL_FLAG(std::string, name, "",
          "the model's name, for people. Default: the folder's or the file's");
ABSL_FLAG(bool, no_chat, false,
          "leave out the chat format, for templates that are not recognised");
ABSL_FLAG(std::string, sliding_mask, "",
          "how sliding layers of a draft see its block, instead of what "
          "config.json says: causal or symmetric");
ABSL_FLAG(
    bool, ignore_unknown_keys, false,
    "convert although the checkpoint's config has keys that are not known");
ABSL_FLAG(bool, quiet, false, "print errors only");

namespace deltaedge {
namespace {

absl::StatusOr<ConvertOptions> OptionsFromFlags(
    const std::vector<char*>& arguments) {
  DELTAEDGE_RETURN_IF_ERROR(CheckNoArguments(arguments));
  ConvertOptions options;
  options.input = UserPath(absl::GetFlag(FLAGS_input));
  options.output = UserPath(absl::GetFlag(FLAGS_output));
  options.target = UserPath(absl::GetFlag(FLAGS_target));
  options.name = absl::GetFlag(FLAGS_name);
  options.chat = !absl::GetFlag(FLAGS_no_chat);
  options.ignore_unknown_keys = absl::GetFlag(FLAGS_ignore_unknown_keys);
  if (options.input.empty()) return UsageError("--input is missing");
  if (options.output.empty()) return UsageError("--output is missing");
  const absl::StatusOr<WeightRecipe> recipe = RecipeFromFlags();
  if (!recipe.ok()) return UsageError(recipe.status().message());
  options.recipe = *recipe;
  const std::string mask = absl::GetFlag(FLAGS_sliding_mask);
  if (!mask.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const int which, Word("sliding_mask", mask, {"causal", "symmetric"}));
    options.sliding_mask =
        which == 0 ? SlidingMask::kCausal : SlidingMask::kSymmetric;
  }
  return options;
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// A bar that redraws itself on a terminal, else a line for every tenth and no
// more than one a second.
class ProgressLine {
 public:
  bool Show(absl::string_view tensor, int64_t done, int64_t total) {
    const int percent = static_cast<int>(100.0 * static_cast<double>(done) /
                                         static_cast<double>(total));
    const absl::Time now = absl::Now();
    if (terminal_) {
      if (done == total || now - last_shown_ >= absl::Milliseconds(50)) {
        constexpr int kWidth = 30;
        const int filled = kWidth * percent / 100;
        absl::FPrintF(stderr, "\r[%s%s] %3d %% of %s  %-28s",
                      std::string(filled, '#'),
                      std::string(kWidth - filled, '.'), percent,
                      Mebibytes(total), tensor.substr(0, 28));
        last_shown_ = now;
        open_ = true;
      }
    } else if (percent / 10 > last_tenth_ &&
               now - last_shown_ >= absl::Seconds(1)) {
      last_tenth_ = percent / 10;
      last_shown_ = now;
      absl::FPrintF(stderr, "%3d %% of %s\n", percent, Mebibytes(total));
    }
    return !Interrupted().load();
  }

  // Leaves the bar's line.
  void End() {
    if (open_) absl::FPrintF(stderr, "\n");
    open_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool open_ = false;
  int last_tenth_ = 0;
  absl::Time last_shown_ = absl::Now();
};

void PrintSummary(const ConvertOptions& options, const ConvertSummary& summary,
                  absl::Duration time) {
  absl::FPrintF(stderr, "%s: %s \"%s\" from %s\n", options.output,
                ModelKindName(summary.kind), summary.name, options.input);
  absl::FPrintF(stderr, "  tensors      %d, %d parameters\n", summary.tensors,
                summary.parameters);
  absl::FPrintF(stderr, "  size         %s from %s\n",
                Mebibytes(summary.file_bytes), Mebibytes(summary.source_bytes));
  for (const StoredWeights& stored : summary.stored) {
    absl::FPrintF(stderr, "  weights      %s\n", StoredText(stored));
  }
  for (const TensorMap::Skipped& skipped : summary.skipped) {
    absl::FPrintF(stderr, "  skipped      %d tensors, %s: %s\n",
                  skipped.tensors, Mebibytes(skipped.bytes), skipped.what);
  }
  absl::FPrintF(stderr, "  fingerprint  %016x\n", summary.fingerprint);
  if (summary.kind == ModelKind::kDraft) {
    absl::FPrintF(stderr, "  for target   %016x\n", summary.target_fingerprint);
  }
  absl::FPrintF(stderr, "  time         %.1f s\n", absl::ToDoubleSeconds(time));
  for (const std::string& note : summary.notes) {
    absl::FPrintF(stderr, "  note         %s\n", note);
  }
}

absl::Status Run(const std::vector<char*>& arguments) {
  const absl::StatusOr<ConvertOptions> options = OptionsFromFlags(arguments);
  if (!options.ok()) return options.status();
  const bool quiet = absl::GetFlag(FLAGS_quiet);
  const ScopedInterrupts interrupts;

  const absl::Time begin = absl::Now();
  ProgressLine line;
  const auto summary = ConvertCheckpoint(
      *options, [&](absl::string_view tensor, int64_t done, int64_t total) {
        return quiet ? !Interrupted().load() : line.Show(tensor, done, total);
      });
  line.End();
  if (!summary.ok()) return summary.status();
  if (!quiet) PrintSummary(*options, *summary, absl::Now() - begin);
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  return deltaedge::EndProgram(deltaedge::Run(deltaedge::StartProgram(
      argc, argv,
      "converts a checkpoint, a Hugging Face folder or a GGUF file (a Qwen3.5 "
      "or Qwen3-Next target or a\nDFlash draft), into a DeltaEdge model file:\n"
      "  convert --input=DIR|FILE.gguf --output=FILE.gdn "
      "[--target=TARGET.gdn] [--weights=q8]")));
}
