// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_MAKE_RANDOM_SHAPES_H_
#define DELTAEDGE_TOOLS_MAKE_RANDOM_SHAPES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"

namespace deltaedge {

// Sizes of published models, by name: "qwen3.5-0.8b", "-2b", "-4b", "-9b",
// "-27b" and, with experts, "-35b-a3b" and "qwen3-next-80b-a3b".
// InvalidArgument for any other name, which lists these.
absl::StatusOr<TargetConfig> TargetShape(absl::string_view name);

// Keeps the first `layers` layers of a target, which has as many.
void KeepLayers(int32_t layers, TargetConfig* config);

// Sizes of the DFlash draft for that target, of the kind first published: five
// layers that see everything, eight for targets with experts, blocks of 16,
// features of five layers of the target, spread evenly over its
// `target_layers`; of fewer, if it was cut so short that it has not as many to
// spread. Where none was published, 2b and 0.8b have half the heads, and
// Qwen3-Next has the draft of 35b-a3b.
absl::StatusOr<DraftConfig> DraftShape(absl::string_view name,
                                       int32_t target_layers);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_MAKE_RANDOM_SHAPES_H_
