// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/shape_models.h"

#include <cstdio>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/tensor_list.h"
#include "tools/make_random/make_random.h"
#include "tools/make_random/shapes.h"

namespace deltaedge {

namespace {

std::string TypeText(const char* name, std::optional<WeightType> type) {
  return type.has_value() ? absl::StrCat("-", name, "_", WeightTypeName(*type))
                          : std::string();
}

absl::Status MakeUnlessThere(const std::string& path,
                             absl::FunctionRef<absl::Status()> make) {
  const bool there = ModelFile::Open(path).ok();
  if (!there) DELTAEDGE_RETURN_IF_ERROR(make());
  absl::FPrintF(stderr, "%s: %s\n", path, there ? "used again" : "made");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelFiles> ShapeModels(const ShapeModelOptions& options) {
  const std::string shape = absl::StartsWith(options.shape, "qwen")
                                ? options.shape
                                : absl::StrCat("qwen3.5-", options.shape);
  DELTAEDGE_ASSIGN_OR_RETURN(TargetConfig config, TargetShape(shape));
  const auto most = static_cast<int32_t>(config.layers.size());
  if (options.layers < 0 || options.layers > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("--layers is \"", options.layers, "\"; allowed is 1 to ",
                     most, ", or 0 for all"));
  }
  if (options.layers > 0) KeepLayers(options.layers, &config);

  RandomModelOptions random;
  random.recipe = options.recipe;
  random.stop = options.stop;
  const std::string base = absl::StrCat(options.folder, "/", shape, "-",
                                        config.layers.size(), "_layers");
  ModelFiles files;
  files.target =
      absl::StrCat(base, "-", WeightTypeName(options.recipe.weights),
                   TypeText("head", options.recipe.head),
                   TypeText("gdn", options.recipe.gdn),
                   TypeText("experts", options.recipe.experts), ".gdn");
  DELTAEDGE_RETURN_IF_ERROR(MakeUnlessThere(files.target, [&] {
    return MakeRandomTarget(config, files.target, random);
  }));
  if (!options.draft) return files;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const DraftConfig draft,
      DraftShape(shape, static_cast<int32_t>(config.layers.size())));
  // A fingerprint is of the numbers, so one draft fits targets of any type.
  files.draft = absl::StrCat(base, "-draft-",
                             WeightTypeName(options.recipe.weights), ".gdn");
  random.recipe = {options.recipe.weights, std::nullopt, std::nullopt, {}};
  DELTAEDGE_RETURN_IF_ERROR(MakeUnlessThere(files.draft, [&] {
    return MakeRandomDraft(draft, files.target, files.draft, random);
  }));
  return files;
}

}  // namespace deltaedge
