// SPDX-License-Identifier: Apache-2.0

#include "engine/options.h"

#include "absl/strings/str_cat.h"

namespace deltaedge {

absl::Status Validate(const EngineOptions& options) {
  if (options.num_threads < 0 || options.num_threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads,
                     "; allowed are 0 (all that are there) to 256"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const SessionOptions& options) {
  if (options.max_context < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_context is ", options.max_context,
        "; allowed are 0 (the model's limit) or a number of tokens"));
  }
  if (options.draft_tokens.has_value() &&
      (*options.draft_tokens < 0 || *options.draft_tokens > 15)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_tokens is ", *options.draft_tokens, "; allowed are 0 to 15"));
  }
  if (options.memory_limit_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_limit_bytes is ", options.memory_limit_bytes,
                     "; allowed are 0 (no limit) or a number of bytes"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const GenerateOptions& options) {
  if (options.max_new_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_new_tokens is ",
                                                   options.max_new_tokens,
                                                   "; at least 1 is needed"));
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
