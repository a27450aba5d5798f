// SPDX-License-Identifier: Apache-2.0
//
// Measures what narrower weights cost in quality:
//
//   eval --reference=F32.gdn --target=Q8.gdn [MORE.gdn ...]
//   eval --checkpoint=FOLDER --recipes=q8,q4,"q4 head=q8 gdn=q8"
//        [--text=FILE] [--tokens=N] [--context=N] [--format=table|json]

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
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
#include "engine/base/thread_pool.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "nlohmann/json.hpp"
#include "tools/cli/paths.h"
#include "tools/convert/convert.h"
#include "tools/convert/temporary_folder.h"
#include "tools/convert/weight_recipe.h"
#include "tools/eval/divergence.h"
#include "tools/eval/evaluate.h"
#include "tools/eval/scored_text.h"

ABSL_FLAG(std::string, reference, "",
          "the model file to compare with, usually one of f32");
ABSL_FLAG(std::vector<std::string>, target, {},
          "model files of the same checkpoint; more may follow the flags");
ABSL_FLAG(std::string, checkpoint, "",
          "instead of files: a checkpoint's folder, which is converted to f32 "
          "and each of --recipes. Default: that of the dictionary of "
          "//examples/chat");
ABSL_FLAG(std::vector<std::string>, recipes,
          std::vector<std::string>({"q8", "q8w", "q4", "q4 head=q8 gdn=q8"}),
          "types of the weights: of all, then perhaps of head and delta "
          "layers, as in \"q4 head=q8 gdn=q8\"");
ABSL_FLAG(std::string, text, "",
          "the text that is scored: conversations, if its name ends in "
          ".jsonl, else plain text. Default: questions to the dictionary and "
          "its answers");
ABSL_FLAG(int64_t, tokens, 0, "tokens that are scored, at most. 0: all");
ABSL_FLAG(int32_t, context, 512,
          "tokens of a window, which the models read from its beginning");
ABSL_FLAG(int, threads, 0, "threads; 0: as many as there are CPUs");
ABSL_FLAG(std::string, format, "table", "table or json (one object a line)");

namespace deltaedge {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Lets a conversion end by itself, so that its files are removed.
void Interrupt(int) { interrupted.store(true); }

absl::Status UsageError(absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(message, " (--help lists all flags)"));
}

// `path`, which the user gave, or else what lies beside this program.
absl::StatusOr<std::string> PathOr(const std::string& path,
                                   const std::string& runfile,
                                   const char* program,
                                   absl::string_view flag) {
  if (!path.empty()) return UserPath(path);
  return RunfilePath(program, runfile, "the dictionary",
                     absl::StrCat("say --", flag));
}

struct Model {
  std::string name;  // For people.
  std::unique_ptr<ModelFile> file;
  int64_t file_bytes = 0;
};

absl::StatusOr<Model> OpenModel(const std::string& path, std::string name) {
  Model model;
  DELTAEDGE_ASSIGN_OR_RETURN(model.file, ModelFile::Open(path));
  std::error_code error;
  model.file_bytes =
      static_cast<int64_t>(std::filesystem::file_size(path, error));
  model.name = std::move(name);
  return model;
}

// The file is mapped and has no name any more.
absl::StatusOr<Model> ConvertModel(const std::string& checkpoint,
                                   const std::string& recipe) {
  TemporaryFolder folder;
  DELTAEDGE_RETURN_IF_ERROR(folder.Make("eval"));
  ConvertOptions options;
  options.input = checkpoint;
  options.output = absl::StrCat(folder.path(), "/model.gdn");
  DELTAEDGE_ASSIGN_OR_RETURN(options.recipe, ParseRecipe(recipe));
  DELTAEDGE_ASSIGN_OR_RETURN(
      const ConvertSummary summary,
      ConvertCheckpoint(options, [](absl::string_view, int64_t, int64_t) {
        return !interrupted.load();
      }));
  if (summary.kind != ModelKind::kTarget) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint, ": a draft; only targets can be compared"));
  }
  return OpenModel(options.output, recipe);
}

// The reference and what is compared with it.
absl::StatusOr<std::vector<Model>> Models(const char* program,
                                          const std::vector<char*>& arguments) {
  const std::string reference = absl::GetFlag(FLAGS_reference);
  std::vector<std::string> paths = absl::GetFlag(FLAGS_target);
  paths.insert(paths.end(), arguments.begin() + 1, arguments.end());
  std::vector<Model> models;
  if (reference.empty() && paths.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string config,
                               PathOr(absl::GetFlag(FLAGS_checkpoint),
                                      "examples/chat/model/target/config.json",
                                      program, "checkpoint"));
    const std::string checkpoint =
        absl::GetFlag(FLAGS_checkpoint).empty()
            ? std::filesystem::path(config).parent_path().string()
            : config;
    // Before a long conversion.
    for (const std::string& recipe : absl::GetFlag(FLAGS_recipes)) {
      DELTAEDGE_RETURN_IF_ERROR(ParseRecipe(recipe).status());
    }
    DELTAEDGE_ASSIGN_OR_RETURN(Model f32, ConvertModel(checkpoint, "f32"));
    models.push_back(std::move(f32));
    for (const std::string& recipe : absl::GetFlag(FLAGS_recipes)) {
      DELTAEDGE_ASSIGN_OR_RETURN(Model model, ConvertModel(checkpoint, recipe));
      models.push_back(std::move(model));
    }
    return models;
  }
  if (!absl::GetFlag(FLAGS_checkpoint).empty()) {
    return UsageError(
        "--checkpoint is instead of --reference and --target, not beside them");
  }
  if (reference.empty()) return UsageError("--target needs --reference");
  if (paths.empty()) return UsageError("--reference needs --target");
  paths.insert(paths.begin(), reference);
  for (const std::string& path : paths) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        Model model,
        OpenModel(UserPath(path),
                  std::filesystem::path(path).filename().string()));
    models.push_back(std::move(model));
  }
  return models;
}

void PrintJson(const Model& model, const Divergence& d) {
  nlohmann::ordered_json line;
  line["weights"] = model.name;
  line["file_bytes"] = model.file_bytes;
  line["tokens"] = d.tokens;
  line["kl_mean"] = d.kl_mean;
  line["kl_median"] = d.kl_median;
  line["kl_p99"] = d.kl_p99;
  line["kl_max"] = d.kl_max;
  line["agreement"] = d.agreement;
  line["reference_perplexity"] = d.reference_perplexity;
  line["perplexity"] = d.target_perplexity;
  line["perplexity_ratio"] = d.perplexity_ratio();
  absl::PrintF("%s\n", line.dump());
}

void PrintTable(const std::vector<Model>& models,
                const std::vector<Divergence>& divergences) {
  absl::PrintF(
      "%d tokens; reference %s, %.1f MiB, perplexity %.4f\n"
      "%-24s %9s %10s %10s %10s %10s %8s %10s %9s\n",
      divergences[0].tokens, models[0].name,
      static_cast<double>(models[0].file_bytes) / (1 << 20),
      divergences[0].reference_perplexity, "weights", "MiB", "mean KL",
      "median", "99 %", "max", "top-1", "perplexity", "ratio");
  for (size_t i = 0; i < divergences.size(); ++i) {
    const Divergence& d = divergences[i];
    const Model& model = models[i + 1];
    absl::PrintF(
        "%-24s %9.1f %10.3g %10.3g %10.3g %10.3g %6.2f %% %10.4f %9.4f\n",
        model.name, static_cast<double>(model.file_bytes) / (1 << 20),
        d.kl_mean, d.kl_median, d.kl_p99, d.kl_max, 100 * d.agreement,
        d.target_perplexity, d.perplexity_ratio());
  }
}

absl::Status Run(const char* program, const std::vector<char*>& arguments) {
  const std::string format = absl::GetFlag(FLAGS_format);
  if (format != "table" && format != "json") {
    return UsageError(absl::StrCat("--format is \"", format,
                                   "\"; allowed are table and json"));
  }
  const int32_t context = absl::GetFlag(FLAGS_context);
  if (context < 2) {
    return UsageError(
        absl::StrCat("--context is ", context, "; allowed is 2 or more"));
  }
  if (absl::GetFlag(FLAGS_tokens) < 0) {
    return UsageError(absl::StrCat("--tokens is ", absl::GetFlag(FLAGS_tokens),
                                   "; allowed is 0 or more"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::string text,
      PathOr(absl::GetFlag(FLAGS_text), "tools/eval/dictionary.jsonl", program,
             "text"));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                             ThreadPool::Create(absl::GetFlag(FLAGS_threads)));
  std::signal(SIGINT, Interrupt);
  std::signal(SIGTERM, Interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // A file too large is an error to report.
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<Model> models,
                             Models(program, arguments));
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::vector<const ModelFile*> targets;
  for (size_t i = 1; i < models.size(); ++i) {
    targets.push_back(models[i].file.get());
  }
  if (targets.empty()) return UsageError("--recipes is empty");
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<TextWindow> windows,
                             ReadScoredText(text, *models[0].file, context,
                                            absl::GetFlag(FLAGS_tokens)));
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<Divergence> divergences,
      Evaluate(*models[0].file, targets, windows, pool->get()));
  if (format == "table") {
    PrintTable(models, divergences);
  } else {
    for (size_t i = 0; i < divergences.size(); ++i) {
      PrintJson(models[i + 1], divergences[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "measures what narrower weights cost: how far their scores for each next "
      "token of a text are from those of a reference\n"
      "  eval --reference=F32.gdn --target=Q8.gdn [MORE.gdn ...]\n"
      "  eval [--checkpoint=FOLDER] [--recipes=q8,q4,\"q4 head=q8 gdn=q8\"]\n"
      "       [--text=FILE] [--tokens=N] [--context=N] [--format=table|json]\n"
      "KL: divergence of the target from the reference, in nats per token. "
      "top-1: places where both find\nthe same token most likely.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  const absl::Status status = deltaedge::Run(argv[0], arguments);
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "error: %s\n", status.message());
  return EXIT_FAILURE;
}
