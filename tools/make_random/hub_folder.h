// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_MAKE_RANDOM_HUB_FOLDER_H_
#define DELTAEDGE_TOOLS_MAKE_RANDOM_HUB_FOLDER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/model/config.h"
#include "tools/convert/tensor_map.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {

// The models of make_random.h as checkpoints in the layout of Hugging Face, so
// that other engines can load the same weights: config.json, model.safetensors
// or shards with their index, and of targets with a tokenizer tokenizer.json,
// tokenizer_config.json with its chat template, and generation_config.json.
// What //tools/convert makes of such a folder has, to the bit, the weights, the
// tokenizer and the fingerprint that MakeRandomTarget() and MakeRandomDraft()
// give for the same numbers.

struct HubFolderOptions {
  // Of targets.
  HubLayout layout = HubLayout::kQwen35;
  // Shards have no more than this, unless one tensor has.
  int64_t max_shard_bytes = int64_t{4} << 30;
};

// Writes the folder `output`, which must not be there; in pieces, so that
// memory does not grow with the model. After an error nothing is left.
// InvalidArgument: the config is unsound, or one that `layout` does not have; a
// recipe that is not of floats; `output` is there. Cancelled: options.stop was
// set. Else what the file system says.
absl::Status MakeRandomTargetFolder(const TargetConfig& config,
                                    const std::string& output,
                                    const RandomModelOptions& options = {},
                                    const HubFolderOptions& hub = {});

// The same for a draft, whose `target_layer_count` is known. Such a folder
// names no target: conversion does.
absl::Status MakeRandomDraftFolder(const DraftConfig& config,
                                   const std::string& output,
                                   const RandomModelOptions& options = {},
                                   const HubFolderOptions& hub = {});

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_MAKE_RANDOM_HUB_FOLDER_H_
