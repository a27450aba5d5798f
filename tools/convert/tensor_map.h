// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_TENSOR_MAP_H_
#define DELTAEDGE_TOOLS_CONVERT_TENSOR_MAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/config.h"
#include "engine/model/tensor_list.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {

// What happens to a tensor's values between a checkpoint and a model file.
enum class TensorChange {
  kNone,
  kAddOne,    // Norms that multiply by 1 + w (docs/models.md 1.2).
  kNegExp,    // A_log: -exp(w), computed in double.
  kConvTaps,  // [channels, 4] to [4, channels].
  kNegative,  // None, but all numbers must be below zero, as -exp() is.
};

// Whole rows of a tensor of the checkpoint, which `source` points into.
struct SourcePart {
  std::string name;
  const SourceTensor* source = nullptr;
  int64_t first = 0;     // Element.
  int64_t elements = 0;  // Number of them.
};

// One tensor of the model file and the parts it is made of, one behind the
// other: mostly one whole tensor.
struct MappedTensor {
  TensorSpec spec;
  std::vector<SourcePart> parts;
  TensorChange change = TensorChange::kNone;
  // Of a matrix whose columns change places: which column of the source the
  // i-th is. Empty: all stay.
  std::vector<int32_t> columns;
};

struct TensorMap {
  // Tensors of the checkpoint that the engine has no use for.
  struct Skipped {
    std::string what;  // "vision"
    int64_t tensors = 0;
    int64_t bytes = 0;  // In the checkpoint.
  };

  // In the order of TensorSpecs().
  std::vector<MappedTensor> tensors;
  std::vector<Skipped> skipped;
  // A head that is there though embeddings are tied: the caller must see that
  // it equals the embedding table, and leaves it out. Null: there is none.
  const SourceTensor* redundant_head = nullptr;
};

// Finds every tensor of a target of `config` in `checkpoint`, whatever prefix
// its names have, and accounts for every tensor that is in it. Two layouts of
// the projections of delta layers are known, apart or interleaved by key head,
// and two of experts, stacked or each by itself; a layer has the one whose
// names are there. `tied` is what
// config.json says of the head, and settles `config->tied_head`; if it says
// nothing, the presence of a head does.
// InvalidArgument names the tensor: missing, not known, of another shape (and
// both shapes) or not of a float type; a head that is missing.
absl::StatusOr<TensorMap> MapTarget(const TensorSource& checkpoint,
                                    std::optional<bool> tied,
                                    TargetConfig* config);

// The same for a draft.
absl::StatusOr<TensorMap> MapDraft(const TensorSource& checkpoint,
                                   const DraftConfig& config);

// The same for the names and layouts of GGUF files, where norms hold 1 + w, the
// decay is -exp(A_log), and extents of one may be missing. `tiled_heads`: value
// heads are not grouped by key head but go round all key heads, as in every
// architecture but "qwen3next". `config.tied_head` is settled. The
// `predicting_layers` behind the config's predict further tokens and are
// skipped.
absl::StatusOr<TensorMap> MapGgufTarget(const TensorSource& checkpoint,
                                        bool tiled_heads,
                                        int32_t predicting_layers,
                                        const TargetConfig& config);
absl::StatusOr<TensorMap> MapGgufDraft(const TensorSource& checkpoint,
                                       const DraftConfig& config);

// How checkpoints on the hub lay out what their families have in two ways.
enum class HubLayout {
  kQwen35,     // Projections of delta layers apart, experts stacked.
  kQwen3Next,  // Projections interleaved, each expert by itself.
};

struct HubTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// The tensors that a published checkpoint of `config` has, as MapTarget() takes
// them, in the order of the model file.
std::vector<HubTensor> HubTensors(const TargetConfig& config, HubLayout layout);
// As MapDraft() takes them.
std::vector<HubTensor> HubTensors(const DraftConfig& config);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_TENSOR_MAP_H_
