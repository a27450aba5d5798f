// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_
#define DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/options.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {

// A folder that is removed with all that is in it when the object goes.
class TemporaryFolder {
 public:
  // Where the system has such folders. Errors are the system's.
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

struct ShapeModelOptions {
  std::string shape;   // "0.8b" or "qwen3.5-0.8b", ...
  int32_t layers = 0;  // The first so many of the target's. 0: all.
  WeightRecipe recipe;
  bool draft = false;  // Whether a draft is wanted, too.
  std::string folder;  // Which exists.
  // Null, or set to end the making of a model: Cancelled.
  const std::atomic<bool>* stop = nullptr;
};

// Models of random weights (tools/make_random) in files that are named after
// what is in them. What is there already is used again; stderr tells.
// InvalidArgument: no such shape, or more layers than it has.
absl::StatusOr<ModelFiles> ShapeModels(const ShapeModelOptions& options);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SHAPE_MODELS_H_
