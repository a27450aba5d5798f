// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_
#define DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/config.h"
#include "engine/options.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {

struct ShapeModelOptions {
  std::string shape;   // "0.8b" or "qwen3.5-0.8b", ...
  int32_t layers = 0;  // The first so many of the target's. 0: all.
  WeightRecipe recipe;
  bool draft = false;  // Whether a draft is wanted, too.
  std::string folder;  // Which exists.
  // Null, or set to end the making of a model: Cancelled.
  const std::atomic<bool>* stop = nullptr;
};

// What such models are like.
struct ShapeSizes {
  std::string name;  // "qwen3.5-0.8b"
  TargetConfig target;
  std::optional<DraftConfig> draft;
};

// InvalidArgument: no such shape, or more layers than it has.
absl::StatusOr<ShapeSizes> SizesOfShape(const ShapeModelOptions& options);

// Models of random weights (tools/make_random) in files that are named after
// what is in them. What is there already is used again; stderr tells. Errors of
// SizesOfShape() and of making a model.
absl::StatusOr<ModelFiles> ShapeModels(const ShapeModelOptions& options);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_
