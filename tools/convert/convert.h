// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_CONVERT_H_
#define DELTAEDGE_TOOLS_CONVERT_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "tools/convert/tensor_map.h"
#include "tools/convert/weight_recipe.h"

namespace deltaedge {

struct ConvertOptions {
  // A checkpoint's folder as Hugging Face lays it out: config.json, and
  // model.safetensors or shards with their index; for targets also
  // generation_config.json, tokenizer.json, tokenizer_config.json and a chat
  // template, as far as they are there. Or a GGUF file (gguf.h), which says all
  // that by itself.
  std::string input;
  // The model file to write. One that exists is replaced, once all went well.
  std::string output;
  // The target's model file: required for a draft, refused for a target.
  std::string target;
  WeightRecipe recipe;
  // TargetConfig::name or DraftConfig::name. Empty: the last part of `input`,
  // without ".gguf".
  std::string name;

  // False: the model file gets no chat format, whatever the checkpoint has.
  bool chat = true;
  // HfConfigOptions tells about these.
  bool ignore_unknown_keys = false;
  std::optional<SlidingMask> sliding_mask;
};

// What a conversion did, for people.
struct ConvertSummary {
  ModelKind kind = ModelKind::kTarget;
  std::string name;
  int64_t tensors = 0;                // Written.
  int64_t parameters = 0;             // Numbers in them.
  int64_t source_bytes = 0;           // Of these tensors in the checkpoint.
  int64_t file_bytes = 0;             // Of the model file.
  std::vector<StoredWeights> stored;  // What these are made of.
  std::vector<TensorMap::Skipped> skipped;  // Vision and the like.
  uint64_t fingerprint = 0;
  uint64_t target_fingerprint = 0;  // kDraft
  // Things that are all right and worth knowing, a sentence each.
  std::vector<std::string> notes;
};

// Called after every piece of a tensor with the bytes of the model file's
// tensors that are done, and that there are in all. False: stop.
using ConvertProgress = std::function<bool(
    absl::string_view tensor, int64_t done_bytes, int64_t total_bytes)>;

// Converts a Qwen3.5 or Qwen3-Next target or a DFlash draft, whichever
// config.json or the metadata of a GGUF file say. Reads and writes in pieces of
// a few MiB: memory does not grow with the model. `progress` may be null.
//
// Values are widened to float and then stored as engine/model/weights.h says:
// one is added to the target's zero-centred norms, A_log becomes -exp(A_log),
// convolution taps are laid side by side, matrices take the types of the recipe
// (quantise.h tells how), all else is stored as it is. The fingerprint is of
// the checkpoint's values and does not depend on the recipe.
//
// A GGUF file has the first two of these changes behind it, and in most
// architectures its value heads stand in another order, which is undone. Values
// that it has quantised are widened like any others; a note tells of them.
//
// Errors name the file, and the key or tensor and its value:
//   InvalidArgument  something in the checkpoint or the options is not sound,
//                    not known, or does not fit together: a tensor that is
//                    missing, in excess, of another shape or not finite; tied
//                    embeddings with a head that differs; a draft that does not
//                    fit its target;
//   Unimplemented    a model or tokenizer of a kind that is not supported yet;
//   DataLoss         a file is cut short or damaged;
//   Cancelled        `progress` said so;
//   and what the file system says. In all these cases `output` is as it was.
absl::StatusOr<ConvertSummary> ConvertCheckpoint(
    const ConvertOptions& options, const ConvertProgress& progress = nullptr);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_CONVERT_H_
