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
#include "tools/cli/flags.h"
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

absl::StatusOr<ShapeSizes> SizesOfShape(const ShapeModelOptions& options) {
  ShapeSizes sizes;
  sizes.name = absl::StartsWith(options.shape, "qwen")
                   ? options.shape
                   : absl::StrCat("qwen3.5-", options.shape);
  DELTAEDGE_ASSIGN_OR_RETURN(sizes.target, TargetShape(sizes.name));
  const auto most = static_cast<int32_t>(sizes.target.layers.size());
  if (options.layers < 0 || options.layers > most) {
    return BadFlag("layers", absl::StrCat(options.layers),
                   absl::StrCat("1 to ", most, ", or 0 for all"));
  }
  if (options.layers > 0) KeepLayers(options.layers, &sizes.target);
  if (!options.draft) return sizes;
  DELTAEDGE_ASSIGN_OR_RETURN(
      sizes.draft,
      DraftShape(sizes.name, static_cast<int32_t>(sizes.target.layers.size())));
  return sizes;
}

absl::StatusOr<ModelFiles> ShapeModels(const ShapeModelOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(const ShapeSizes sizes, SizesOfShape(options));
  RandomModelOptions random;
  random.recipe = options.recipe;
  random.stop = options.stop;
  const std::string base = absl::StrCat(options.folder, "/", sizes.name, "-",
                                        sizes.target.layers.size(), "_layers");
  ModelFiles files;
  files.target =
      absl::StrCat(base, "-", WeightTypeName(options.recipe.weights),
                   TypeText("head", options.recipe.head),
                   TypeText("gdn", options.recipe.gdn),
                   TypeText("experts", options.recipe.experts), ".gdn");
  DELTAEDGE_RETURN_IF_ERROR(MakeUnlessThere(files.target, [&] {
    return MakeRandomTarget(sizes.target, files.target, random);
  }));
  if (!sizes.draft.has_value()) return files;
  // A fingerprint is of the numbers, so one draft fits targets of any type.
  files.draft = absl::StrCat(base, "-draft-",
                             WeightTypeName(options.recipe.weights), ".gdn");
  random.recipe = {options.recipe.weights, std::nullopt, std::nullopt, {}};
  DELTAEDGE_RETURN_IF_ERROR(MakeUnlessThere(files.draft, [&] {
    return MakeRandomDraft(*sizes.draft, files.target, files.draft, random);
  }));
  return files;
}

}  // namespace deltaedge
