// SPDX-License-Identifier: Apache-2.0
//
// Writes a model file of random weights:
//
//   make_random --config=config.json --seed=1 --output=FILE.gdn
//               [--target=TARGET.gdn]

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "tools/convert/hf_config.h"
#include "tools/convert/random_access_file.h"
#include "tools/make_random/make_random.h"

ABSL_FLAG(std::string, config, "",
          "a Hugging Face config.json of a target or a draft. Required");
ABSL_FLAG(uint64_t, seed, 1, "of the weights");
ABSL_FLAG(std::string, output, "", "the model file to write. Required");
ABSL_FLAG(std::string, target, "",
          "the model file of a draft's target. Required for drafts");
ABSL_FLAG(std::string, name, "", "the model's name, for people");
ABSL_FLAG(bool, no_tokenizer, false,
          "leave out the tokenizer of bytes and its chat format, which targets "
          "get whose vocabulary has room for them");
ABSL_FLAG(bool, quiet, false, "print errors only");

namespace deltaedge {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

absl::Status UsageError(absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(message, " (--help lists all flags)"));
}

absl::Status Run(const std::vector<char*>& arguments) {
  const std::string path = absl::GetFlag(FLAGS_config);
  const std::string output = absl::GetFlag(FLAGS_output);
  const std::string target_path = absl::GetFlag(FLAGS_target);
  if (arguments.size() > 1) {
    return UsageError(absl::StrCat("\"", arguments[1],
                                   "\" is not expected: all is said by flags"));
  }
  if (path.empty()) return UsageError("--config is missing");
  if (output.empty()) return UsageError("--output is missing");
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, kMaxConfigBytes));
  DELTAEDGE_ASSIGN_OR_RETURN(HfConfig config, ParseHfConfig(text, path));

  RandomModelOptions options;
  options.seed = absl::GetFlag(FLAGS_seed);
  options.byte_tokenizer = !absl::GetFlag(FLAGS_no_tokenizer);
  if (auto* const draft = std::get_if<HfDraft>(&config.model)) {
    if (target_path.empty()) {
      return UsageError(
          absl::StrCat(path, ": is a draft's, and --target is missing"));
    }
    draft->config.name = absl::GetFlag(FLAGS_name);
    DELTAEDGE_RETURN_IF_ERROR(
        MakeRandomDraft(draft->config, target_path, output, options));
  } else {
    if (!target_path.empty()) {
      return UsageError(absl::StrCat(path,
                                     ": is a target's; --target is for "
                                     "drafts only"));
    }
    auto& target = std::get<HfTarget>(config.model);
    target.config.name = absl::GetFlag(FLAGS_name);
    options.stop_tokens = target.eos_tokens;
    DELTAEDGE_RETURN_IF_ERROR(MakeRandomTarget(target.config, output, options));
  }
  if (absl::GetFlag(FLAGS_quiet)) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const auto model, ModelFile::Open(output));
  absl::FPrintF(stderr,
                "%s: random %s, %d tensors, %d parameters, "
                "fingerprint %016x\n",
                output, ModelKindName(model->kind()), model->tensors().size(),
                model->weight_bytes() / static_cast<int64_t>(sizeof(float)),
                model->fingerprint());
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "writes a model file of seeded random weights:\n"
      "  make_random --config=config.json --seed=1 --output=FILE.gdn "
      "[--target=TARGET.gdn]");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  std::signal(SIGXFSZ, SIG_IGN);  // A file too large is an error to report.
  const absl::Status status = deltaedge::Run(arguments);
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "error: %s\n", status.message());
  return EXIT_FAILURE;
}
