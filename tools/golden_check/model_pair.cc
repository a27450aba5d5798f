// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/model_pair.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tools/convert/convert.h"
#include "tools/convert/temporary_folder.h"

namespace deltaedge {

namespace {

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// The model file for `path`: itself, or what it converts to in `folder`.
absl::StatusOr<std::string> ModelFileFor(const std::string& path,
                                         const std::string& target,
                                         const std::string& name,
                                         const std::string& folder) {
  if (!IsFolder(path)) return path;
  ConvertOptions options;
  options.input = path;
  options.output = absl::StrCat(folder, "/", name, ".gdn");
  options.target = target;
  DELTAEDGE_RETURN_IF_ERROR(ConvertCheckpoint(options).status());
  return options.output;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelPair>> ModelPair::Load(
    const std::string& target, const std::string& draft) {
  std::unique_ptr<ModelPair> pair(new ModelPair);
  // What is converted is mapped, so its file may go as soon as it is open.
  TemporaryFolder folder;
  if (IsFolder(target) || IsFolder(draft)) {
    DELTAEDGE_RETURN_IF_ERROR(folder.Make("golden_check"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::string target_file,
      ModelFileFor(target, /*target=*/"", "target", folder.path()));
  DELTAEDGE_ASSIGN_OR_RETURN(pair->target_, ModelFile::Open(target_file));
  if (pair->target_->kind() != ModelKind::kTarget) {
    return absl::InvalidArgumentError(
        absl::StrCat(target, " is a draft; --model takes a target"));
  }
  if (draft.empty()) return pair;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::string draft_file,
      ModelFileFor(draft, target_file, "draft", folder.path()));
  DELTAEDGE_ASSIGN_OR_RETURN(pair->draft_, ModelFile::Open(draft_file));
  DELTAEDGE_RETURN_IF_ERROR(CheckPair(*pair->target_, *pair->draft_));
  return pair;
}

}  // namespace deltaedge
