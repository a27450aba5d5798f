// SPDX-License-Identifier: Apache-2.0
//
// Writes a model of random weights, as a model file or as a checkpoint:
//
//   make_random --shape=qwen3.5-0.8b --weights=q8 --output=TARGET.gdn
//   make_random --shape=qwen3.5-0.8b --draft --target=TARGET.gdn
//               --weights=q8 --output=DRAFT.gdn
//   make_random --config=config.json --seed=1 --output=FILE.gdn
//               [--target=TARGET.gdn]
//   make_random --shape=qwen3.5-0.8b --safetensors --bf16 --output=FOLDER

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "nlohmann/json.hpp"
#include "tools/cli/flags.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/convert/hf_config.h"
#include "tools/convert/json.h"
#include "tools/convert/random_access_file.h"
#include "tools/convert/recipe_flags.h"
#include "tools/convert/tensor_map.h"
#include "tools/convert/weight_recipe.h"
#include "tools/make_random/hub_folder.h"
#include "tools/make_random/make_random.h"
#include "tools/make_random/shapes.h"

ABSL_FLAG(std::string, shape, "",
          "sizes of a published model: qwen3.5-0.8b, -2b, -4b, -9b, -27b or "
          "-35b-a3b, or qwen3-next-80b-a3b. This or --config is required");
ABSL_FLAG(bool, draft, false,
          "with --shape: the DFlash draft for that model, of the one in "
          "--target");
ABSL_FLAG(std::string, config, "",
          "a Hugging Face config.json of a target or a draft");
ABSL_FLAG(int32_t, layers, 0, "keep this many layers only, the first. 0: all");
ABSL_FLAG(uint64_t, seed, 1, "of the weights");
ABSL_FLAG(bool, bf16, false,
          "weights that bfloat16 can hold, as published checkpoints have them");
ABSL_FLAG(bool, safetensors, false,
          "write a folder as on the Hugging Face hub instead of a model file, "
          "for other engines: the same weights");
ABSL_FLAG(int32_t, shard_mib, 4096,
          "with --safetensors: the most that a file of tensors holds, in MiB");
ABSL_FLAG(std::string, output, "",
          "the model file, or the folder, to write. Required");
ABSL_FLAG(std::string, target, "",
          "the model file of a draft's target. Required for drafts, but with "
          "--safetensors");
ABSL_FLAG(std::string, name, "", "the model's name, for people");
ABSL_FLAG(bool, no_tokenizer, false,
          "leave out the tokenizer of bytes and its chat format, which targets "
          "get whose vocabulary has room for them");
ABSL_FLAG(bool, quiet, false, "print errors only");

namespace deltaedge {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

// What is to be made.
struct Wanted {
  HfConfig config;
  HubLayout layout = HubLayout::kQwen35;
};

// Whether the config.json `text` is of Qwen3-Next.
bool IsQwen3Next(absl::string_view text, const std::string& path) {
  const auto json = ParseJson(text, path);
  return json.ok() && json->is_object() &&
         (json->value("model_type", nlohmann::json()) == "qwen3_next" ||
          json->value("architectures", nlohmann::json()) ==
              nlohmann::json({"Qwen3NextForCausalLM"}));
}

// The layers of a draft's target, the shape's own where it is not given.
absl::StatusOr<int32_t> TargetLayers(const std::string& target_path,
                                     const std::string& shape) {
  if (!target_path.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(const auto target, ModelFile::Open(target_path));
    return static_cast<int32_t>(target->target_config().layers.size());
  }
  if (!absl::GetFlag(FLAGS_safetensors)) {
    return UsageError("--draft needs --target");
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const TargetConfig target, TargetShape(shape));
  return static_cast<int32_t>(target.layers.size());
}

// What the flags make of a model, all but its name.
absl::StatusOr<Wanted> WantedFromFlags() {
  const std::string path = UserPath(absl::GetFlag(FLAGS_config));
  const std::string shape = absl::GetFlag(FLAGS_shape);
  const bool draft = absl::GetFlag(FLAGS_draft);
  if (path.empty() == shape.empty()) {
    return UsageError("exactly one of --shape and --config is needed");
  }
  Wanted wanted;
  if (!path.empty()) {
    if (draft) {
      return UsageError("--draft is for --shape: a config.json says itself");
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                               ReadSmallFile(path, kMaxConfigBytes));
    DELTAEDGE_ASSIGN_OR_RETURN(wanted.config, ParseHfConfig(text, path));
    if (IsQwen3Next(text, path)) wanted.layout = HubLayout::kQwen3Next;
  } else if (draft) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const int32_t layers,
        TargetLayers(UserPath(absl::GetFlag(FLAGS_target)), shape));
    HfDraft made;
    DELTAEDGE_ASSIGN_OR_RETURN(made.config, DraftShape(shape, layers));
    wanted.config.model = std::move(made);
  } else {
    HfTarget target;
    DELTAEDGE_ASSIGN_OR_RETURN(target.config, TargetShape(shape));
    wanted.config.model = std::move(target);
    if (absl::StartsWith(shape, "qwen3-next")) {
      wanted.layout = HubLayout::kQwen3Next;
    }
  }
  return wanted;
}

template <class Config>
absl::Status Adjust(Config* config) {
  const std::string name = absl::GetFlag(FLAGS_name);
  if (!name.empty()) config->name = name;
  const int32_t layers = absl::GetFlag(FLAGS_layers);
  const auto most = static_cast<int32_t>(config->layers.size());
  if (layers < 0 || layers > most) {
    return BadFlag("layers", absl::StrCat(layers),
                   absl::StrCat("1 to ", most, ", or 0 for all"));
  }
  if (layers > 0) config->layers.resize(layers);
  return absl::OkStatus();
}

int64_t Parameters(const ModelFile& model) {
  int64_t sum = 0;
  for (const TensorEntry& tensor : model.tensors()) {
    int64_t elements = 1;
    for (const int32_t extent : tensor.shape) elements *= extent;
    sum += elements;
  }
  return sum;
}

absl::Status Run(const std::vector<char*>& arguments) {
  DELTAEDGE_RETURN_IF_ERROR(CheckNoArguments(arguments));
  const std::string output = UserPath(absl::GetFlag(FLAGS_output));
  const std::string target_path = UserPath(absl::GetFlag(FLAGS_target));
  if (output.empty()) return UsageError("--output is missing");
  DELTAEDGE_RETURN_IF_ERROR(CheckNotRead(
      output, {target_path, UserPath(absl::GetFlag(FLAGS_config))}));
  RandomModelOptions options;
  options.numbers = {absl::GetFlag(FLAGS_seed), absl::GetFlag(FLAGS_bf16)};
  options.byte_tokenizer = !absl::GetFlag(FLAGS_no_tokenizer);
  options.stop = &Interrupted();
  const absl::StatusOr<WeightRecipe> recipe = RecipeFromFlags();
  if (!recipe.ok()) return UsageError(recipe.status().message());
  options.recipe = *recipe;
  const bool safetensors = absl::GetFlag(FLAGS_safetensors);
  DELTAEDGE_ASSIGN_OR_RETURN(Wanted wanted, WantedFromFlags());
  HubFolderOptions hub;
  hub.layout = wanted.layout;
  hub.max_shard_bytes = int64_t{absl::GetFlag(FLAGS_shard_mib)} << 20;
  if (hub.max_shard_bytes <= 0) {
    return UsageError("--shard_mib must be at least 1");
  }

  if (auto* const draft = std::get_if<HfDraft>(&wanted.config.model)) {
    DraftConfig& config = draft->config;
    if (target_path.empty() &&
        (!safetensors || config.target_layer_count == 0)) {
      return UsageError(
          absl::StrCat(absl::GetFlag(FLAGS_config),
                       ": is a draft's, and --target is missing"));
    }
    if (config.target_layer_count == 0) {
      DELTAEDGE_ASSIGN_OR_RETURN(config.target_layer_count,
                                 TargetLayers(target_path, ""));
    }
    DELTAEDGE_RETURN_IF_ERROR(Adjust(&config));
    DELTAEDGE_RETURN_IF_ERROR(
        safetensors ? MakeRandomDraftFolder(config, output, options, hub)
                    : MakeRandomDraft(config, target_path, output, options));
  } else {
    if (!target_path.empty()) {
      return UsageError("this is a target; --target is for drafts only");
    }
    auto& target = std::get<HfTarget>(wanted.config.model);
    DELTAEDGE_RETURN_IF_ERROR(Adjust(&target.config));
    KeepLayers(static_cast<int32_t>(target.config.layers.size()),
               &target.config);
    options.stop_tokens = target.eos_tokens;
    DELTAEDGE_RETURN_IF_ERROR(
        safetensors
            ? MakeRandomTargetFolder(target.config, output, options, hub)
            : MakeRandomTarget(target.config, output, options));
  }
  if (absl::GetFlag(FLAGS_quiet) || safetensors) return absl::OkStatus();
  DELTAEDGE_ASSIGN_OR_RETURN(const auto model, ModelFile::Open(output));
  absl::FPrintF(stderr,
                "%s: random %s, %d tensors, %d parameters, %.1f MiB, "
                "fingerprint %016x\n",
                output, ModelKindName(model->kind()), model->tensors().size(),
                Parameters(*model),
                static_cast<double>(model->weight_bytes()) / (1 << 20),
                model->fingerprint());
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  const std::vector<char*> arguments = deltaedge::StartProgram(
      argc, argv,
      "writes a model of seeded random weights, as a model file or a folder "
      "of safetensors:\n"
      "  make_random --shape=qwen3.5-0.8b --weights=q8 --output=TARGET.gdn\n"
      "  make_random --shape=qwen3.5-0.8b --weights=q8 --draft "
      "--target=TARGET.gdn --output=DRAFT.gdn\n"
      "  make_random --config=config.json --output=FILE.gdn "
      "[--target=TARGET.gdn]\n"
      "  make_random --shape=qwen3.5-0.8b --safetensors --bf16 "
      "--output=FOLDER");
  const deltaedge::ScopedInterrupts interrupts;
  return deltaedge::EndProgram(deltaedge::Run(arguments));
}
