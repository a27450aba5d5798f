// SPDX-License-Identifier: Apache-2.0
//
// Measures what narrower weights cost in quality:
//
//   eval --reference=F32.gdn --target=Q8.gdn [MORE.gdn ...]
//   eval --checkpoint=FOLDER|FILE.gguf --recipes=q8,q4,"q4 head=q8 gdn=q8"
//        [--text=FILE] [--tokens=N] [--context=N] [--format=table|json]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
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
#include "tools/cli/flags.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/convert/convert.h"
#include "tools/convert/gguf.h"
#include "tools/convert/gguf_config.h"
#include "tools/convert/hf_config.h"
#include "tools/convert/random_access_file.h"
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
          "instead of files: a checkpoint's folder or GGUF file, which is "
          "converted to f32 and each of --recipes. Default: that of the "
          "dictionary of //examples/chat");
ABSL_FLAG(deltaedge::FlagValue<std::vector<std::string>>, recipes,
          std::vector<std::string>({"q8", "q8w", "q4", "q4 head=q8 gdn=q8"}),
          "types of the weights: of all, then perhaps of head, delta layers "
          "and experts, as in \"q4 head=q8 gdn=q8\"");
ABSL_FLAG(std::string, text, "",
          "the text that is scored: conversations, if its name ends in "
          ".jsonl, else plain text. Default: questions to the dictionary and "
          "its answers");
ABSL_FLAG(int64_t, tokens, 0, "tokens that are scored, at most. 0: all");
ABSL_FLAG(deltaedge::FlagValue<int32_t>, context, 512,
          "tokens of a window, which the models read from its beginning. The "
          "default shrinks to their context");
ABSL_FLAG(int, threads, 0, "threads; 0: as many as there are CPUs");
ABSL_FLAG(std::string, format, "table", "table or json (one object a line)");

namespace deltaedge {
namespace {

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
  DELTAEDGE_RETURN_IF_ERROR(
      ConvertCheckpoint(options, [](absl::string_view, int64_t, int64_t) {
        return !Interrupted().load();
      }).status());
  return OpenModel(options.output, recipe);
}

// What is compared, the reference first, and on which text.
struct Input {
  std::vector<Model> models;
  std::string text;
  int32_t context = 0;
};

absl::StatusOr<std::string> TextPath(const char* program) {
  std::string path = UserPath(absl::GetFlag(FLAGS_text));
  if (path.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        path, RunfilePath(program, "tools/eval/dictionary.jsonl",
                          "the dictionary", "say --text"));
  }
  DELTAEDGE_RETURN_IF_ERROR(RandomAccessFile::Open(path).status());
  return path;
}

// Of --context, or of its default as far as it fits.
absl::StatusOr<int32_t> ContextFromFlag(int32_t max_context) {
  const FlagValue<int32_t> context = absl::GetFlag(FLAGS_context);
  if (!context.is_given) return std::min(context.value, max_context);
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("context", context.value, 2, max_context));
  return context.value;
}

absl::Status NoTarget(absl::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": a draft; only targets can be compared"));
}

absl::StatusOr<Input> InputOfFiles(const char* program,
                                   const std::string& reference,
                                   std::vector<std::string> paths) {
  for (const auto& [flag, is_given] :
       {std::pair("checkpoint", !absl::GetFlag(FLAGS_checkpoint).empty()),
        std::pair("recipes", absl::GetFlag(FLAGS_recipes).is_given)}) {
    if (!is_given) continue;
    return UsageError(absl::StrCat(
        "--", flag,
        " is instead of --reference and --target, not beside them"));
  }
  if (reference.empty()) return UsageError("--target needs --reference");
  if (paths.empty()) return UsageError("--reference needs --target");
  DELTAEDGE_RETURN_IF_ERROR(CheckList("target", paths));
  paths.insert(paths.begin(), reference);
  Input input;
  for (const std::string& path : paths) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        Model model,
        OpenModel(UserPath(path),
                  std::filesystem::path(path).filename().string()));
    if (model.file->kind() != ModelKind::kTarget) return NoTarget(path);
    input.models.push_back(std::move(model));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      input.context,
      ContextFromFlag(input.models[0].file->target_config().max_context));
  DELTAEDGE_ASSIGN_OR_RETURN(input.text, TextPath(program));
  return input;
}

absl::StatusOr<HfConfig> ReadConfig(const std::string& checkpoint) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(checkpoint, error)) {
    return ReadHfConfig(checkpoint);
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const Gguf file, Gguf::Open(checkpoint));
  return ReadGgufConfig(file);
}

absl::StatusOr<Input> InputOfCheckpoint(const char* program,
                                        std::vector<std::string> recipes) {
  std::string checkpoint = UserPath(absl::GetFlag(FLAGS_checkpoint));
  if (checkpoint.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const std::string config,
        RunfilePath(program, "examples/chat/model/target/config.json",
                    "the dictionary", "say --checkpoint"));
    checkpoint = std::filesystem::path(config).parent_path().string();
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const HfConfig config, ReadConfig(checkpoint));
  const auto* const target = std::get_if<HfTarget>(&config.model);
  if (target == nullptr) return NoTarget(checkpoint);
  Input input;
  DELTAEDGE_ASSIGN_OR_RETURN(input.context,
                             ContextFromFlag(target->config.max_context));
  DELTAEDGE_ASSIGN_OR_RETURN(input.text, TextPath(program));
  const ScopedInterrupts interrupts;
  recipes.insert(recipes.begin(), "f32");
  for (const std::string& recipe : recipes) {
    DELTAEDGE_ASSIGN_OR_RETURN(Model model, ConvertModel(checkpoint, recipe));
    input.models.push_back(std::move(model));
  }
  return input;
}

void PrintJson(const Model& model, int32_t context, const Divergence& d) {
  nlohmann::ordered_json line;
  line["weights"] = model.name;
  line["file_bytes"] = model.file_bytes;
  line["tokens"] = d.tokens;
  line["context"] = context;
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

void PrintTable(const std::vector<Model>& models, int32_t context,
                const std::vector<Divergence>& divergences) {
  absl::PrintF(
      "%d tokens in windows of %d; reference %s, %.1f MiB, perplexity %.4f\n"
      "%-24s %9s %10s %10s %10s %10s %8s %10s %9s\n",
      divergences[0].tokens, context, models[0].name,
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

// What is wrong with flags and files is told before anything takes long.
absl::Status Run(const std::vector<char*>& arguments) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int format,
      Word("format", absl::GetFlag(FLAGS_format), {"table", "json"}));
  DELTAEDGE_RETURN_IF_ERROR(
      ContextFromFlag(std::numeric_limits<int32_t>::max()).status());
  const int64_t tokens = absl::GetFlag(FLAGS_tokens);
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("tokens", tokens, 0, std::numeric_limits<int64_t>::max()));
  const int threads = absl::GetFlag(FLAGS_threads);
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("threads", threads, 0, ThreadPool::kMaxThreads));
  const std::vector<std::string> recipes = absl::GetFlag(FLAGS_recipes).value;
  DELTAEDGE_RETURN_IF_ERROR(CheckList("recipes", recipes));
  for (const std::string& recipe : recipes) {
    const absl::Status sound = ParseRecipe(recipe).status();
    if (!sound.ok()) {
      return UsageError(absl::StrCat("--recipes: ", sound.message()));
    }
  }
  const std::string reference = absl::GetFlag(FLAGS_reference);
  std::vector<std::string> paths = absl::GetFlag(FLAGS_target);
  paths.insert(paths.end(), arguments.begin() + 1, arguments.end());
  DELTAEDGE_ASSIGN_OR_RETURN(
      const Input input,
      reference.empty() && paths.empty()
          ? InputOfCheckpoint(arguments[0], recipes)
          : InputOfFiles(arguments[0], reference, std::move(paths)));
  const std::vector<Model>& models = input.models;
  std::vector<const ModelFile*> targets;
  for (size_t i = 1; i < models.size(); ++i) {
    targets.push_back(models[i].file.get());
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<TextWindow> windows,
      ReadScoredText(input.text, *models[0].file, input.context, tokens));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                             ThreadPool::Create(threads));
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<Divergence> divergences,
      Evaluate(*models[0].file, targets, windows, pool->get()));
  if (format == 0) {
    PrintTable(models, input.context, divergences);
  } else {
    for (size_t i = 0; i < divergences.size(); ++i) {
      PrintJson(models[i + 1], input.context, divergences[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  return deltaedge::EndProgram(deltaedge::Run(deltaedge::StartProgram(
      argc, argv,
      "measures what narrower weights cost: how far their scores for each next "
      "token of a text are from those of a reference\n"
      "  eval --reference=F32.gdn --target=Q8.gdn [MORE.gdn ...]\n"
      "  eval [--checkpoint=FOLDER|FILE.gguf]\n"
      "       [--recipes=q8,q4,\"q4 head=q8 gdn=q8\"]\n"
      "       [--text=FILE] [--tokens=N] [--context=N] "
      "[--format=table|json]\n"
      "KL: divergence of the target from the reference, in nats per token. "
      "top-1: places where both find\nthe same token most likely.")));
}
