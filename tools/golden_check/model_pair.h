// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_MODEL_PAIR_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_MODEL_PAIR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_file.h"

namespace deltaedge {

// A target and perhaps a draft, each given as a model file or as a checkpoint's
// folder, which is converted into a temporary file that has no name any more
// when Load() returns.
class ModelPair {
 public:
  // `draft` may be empty. Errors are those of ConvertCheckpoint() and
  // ModelFile::Open(); FailedPrecondition: no temporary folder.
  static absl::StatusOr<std::unique_ptr<ModelPair>> Load(
      const std::string& target, const std::string& draft);

  ModelPair(const ModelPair&) = delete;
  ModelPair& operator=(const ModelPair&) = delete;

  const ModelFile& target() const { return *target_; }
  // Null: none was given.
  const ModelFile* draft() const { return draft_.get(); }

 private:
  ModelPair() = default;

  std::unique_ptr<ModelFile> target_, draft_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_MODEL_PAIR_H_
