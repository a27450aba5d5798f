// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_GRAPH_EXPORT_STATE_H_
#define DELTAEDGE_ENGINE_GRAPH_EXPORT_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/config.h"

namespace deltaedge {

// What a target remembers of a sequence, in the layouts of the papers, for
// comparison with other implementations. Everything is as of
// `sequence->cursor.length()`: rows that are kept but not yet folded count,
// rows that are not kept do not. Nothing of the sequence changes.
//
// `layer` is a decoder layer, 0-based over all of them. InvalidArgument: there
// is no such layer, or it is of the other kind. ResourceExhausted: no memory.

// The state of a GDN layer: [Hv, Dk, Dv].
absl::Status ExportRecurrentState(const TargetConfig& config, int32_t layer,
                                  TargetSequence* sequence,
                                  std::vector<float>* state);

// The last 3 inputs of a GDN layer's convolution, oldest first: [3, channels],
// channels being q, k, v side by side. Zero before position 0.
absl::Status ExportConvColumns(const TargetConfig& config, int32_t layer,
                               TargetSequence* sequence,
                               std::vector<float>* columns);

// Keys, normalised and rotated, and values of an attention layer, each
// [Hkv, length, D].
absl::Status ExportKv(const TargetConfig& config, int32_t layer,
                      TargetSequence* sequence, std::vector<float>* keys,
                      std::vector<float>* values);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_GRAPH_EXPORT_STATE_H_
