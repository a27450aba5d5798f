// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tensor_map.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/tensor_list.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {
namespace {

constexpr char kEmbedding[] = "embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

// A tensor's name in the model file and in a checkpoint, both without what goes
// before a layer's tensors.
struct NamePair {
  absl::string_view ours;
  absl::string_view theirs;
  TensorChange change;
};

constexpr NamePair kTargetNames[] = {
    {"embedding", kEmbedding, TensorChange::kNone},
    {"final_norm", "norm.weight", TensorChange::kAddOne},
    {"input_norm", "input_layernorm.weight", TensorChange::kAddOne},
    {"post_norm", "post_attention_layernorm.weight", TensorChange::kAddOne},
    {"gdn.in_qkv", "linear_attn.in_proj_qkv.weight", TensorChange::kNone},
    {"gdn.in_z", "linear_attn.in_proj_z.weight", TensorChange::kNone},
    {"gdn.in_b", "linear_attn.in_proj_b.weight", TensorChange::kNone},
    {"gdn.in_a", "linear_attn.in_proj_a.weight", TensorChange::kNone},
    {"gdn.conv", "linear_attn.conv1d.weight", TensorChange::kConvTaps},
    {"gdn.neg_exp_a", "linear_attn.A_log", TensorChange::kNegExp},
    {"gdn.dt_bias", "linear_attn.dt_bias", TensorChange::kNone},
    {"gdn.norm", "linear_attn.norm.weight", TensorChange::kNone},
    {"gdn.out", "linear_attn.out_proj.weight", TensorChange::kNone},
    {"attention.q", "self_attn.q_proj.weight", TensorChange::kNone},
    {"attention.k", "self_attn.k_proj.weight", TensorChange::kNone},
    {"attention.v", "self_attn.v_proj.weight", TensorChange::kNone},
    {"attention.q_norm", "self_attn.q_norm.weight", TensorChange::kAddOne},
    {"attention.k_norm", "self_attn.k_norm.weight", TensorChange::kAddOne},
    {"attention.out", "self_attn.o_proj.weight", TensorChange::kNone},
    {"mlp.gate", "mlp.gate_proj.weight", TensorChange::kNone},
    {"mlp.up", "mlp.up_proj.weight", TensorChange::kNone},
    {"mlp.down", "mlp.down_proj.weight", TensorChange::kNone},
    {"moe.router", "mlp.gate.weight", TensorChange::kNone},
    {"moe.shared_router", "mlp.shared_expert_gate.weight", TensorChange::kNone},
    {"moe.shared.gate", "mlp.shared_expert.gate_proj.weight",
     TensorChange::kNone},
    {"moe.shared.up", "mlp.shared_expert.up_proj.weight", TensorChange::kNone},
    {"moe.shared.down", "mlp.shared_expert.down_proj.weight",
     TensorChange::kNone},
};

// Qwen3-Next's names for what other checkpoints have apart.
constexpr char kInterleaved[] = "in_proj_qkvz.weight";
constexpr char kInterleavedGates[] = "in_proj_ba.weight";

// The norms of a draft have plain gains.
constexpr NamePair kDraftNames[] = {
    {"fc", "fc.weight", TensorChange::kNone},
    {"hidden_norm", "hidden_norm.weight", TensorChange::kNone},
    {"final_norm", "norm.weight", TensorChange::kNone},
    {"input_norm", "input_layernorm.weight", TensorChange::kNone},
    {"post_norm", "post_attention_layernorm.weight", TensorChange::kNone},
    {"attention.q", "self_attn.q_proj.weight", TensorChange::kNone},
    {"attention.k", "self_attn.k_proj.weight", TensorChange::kNone},
    {"attention.v", "self_attn.v_proj.weight", TensorChange::kNone},
    {"attention.q_norm", "self_attn.q_norm.weight", TensorChange::kNone},
    {"attention.k_norm", "self_attn.k_norm.weight", TensorChange::kNone},
    {"attention.out", "self_attn.o_proj.weight", TensorChange::kNone},
    {"mlp.gate", "mlp.gate_proj.weight", TensorChange::kNone},
    {"mlp.up", "mlp.up_proj.weight", TensorChange::kNone},
    {"mlp.down", "mlp.down_proj.weight", TensorChange::kNone},
};

// What a checkpoint may hold besides the language model.
struct Foreign {
  absl::string_view prefix;
  absl::string_view what;
};
constexpr Foreign kForeign[] = {
    {"model.visual.", "vision"},
    {"visual.", "vision"},
    {"mtp.", "multi-token prediction"},
    {"model.mtp.", "multi-token prediction"},
};

const Foreign* FindForeign(absl::string_view name) {
  for (const Foreign& foreign : kForeign) {
    if (absl::StartsWith(name, foreign.prefix)) return &foreign;
  }
  return nullptr;
}

// The only name, or none, that is `last` or ends in "." and `last`.
absl::StatusOr<std::optional<std::string>> FindByEnd(
    const TensorSource& checkpoint, absl::string_view last) {
  std::optional<std::string> found;
  for (const auto& [name, entry] : checkpoint.entries()) {
    absl::string_view before = name;
    if (FindForeign(name) != nullptr || !absl::ConsumeSuffix(&before, last) ||
        (!before.empty() && before.back() != '.')) {
      continue;
    }
    if (found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.PathOf(entry), ": tensors ", *found, " and ",
                       name, " both end in ", last, "; one is expected"));
    }
    found = name;
  }
  return found;
}

// Whether a tensor of shape `theirs` holds what a tensor of `spec` needs.
bool ShapeFits(const TensorSpec& spec, TensorChange change,
               std::vector<int64_t> theirs) {
  std::vector<int64_t> ours(spec.shape.begin(), spec.shape.end());
  if (change == TensorChange::kConvTaps) {
    // The dimension of one between the two is lost or moved by some exporters.
    std::reverse(ours.begin(), ours.end());
    theirs.erase(std::remove(theirs.begin(), theirs.end(), 1), theirs.end());
    ours.erase(std::remove(ours.begin(), ours.end(), 1), ours.end());
  }
  return ours == theirs;
}

std::string ExpectedShape(const TensorSpec& spec, TensorChange change) {
  std::vector<int64_t> shape(spec.shape.begin(), spec.shape.end());
  if (change == TensorChange::kConvTaps) shape = {shape[1], 1, shape[0]};
  return ShapeText(shape);
}

// "layers.3." and what follows; "" and the name if it is of no layer.
std::pair<absl::string_view, absl::string_view> SplitLayer(
    absl::string_view name) {
  constexpr absl::string_view kLayers = "layers.";
  if (!absl::StartsWith(name, kLayers)) return {"", name};
  const size_t end = name.find('.', kLayers.size()) + 1;
  return {name.substr(0, end), name.substr(end)};
}

// Fills one TensorMap.
class Mapper {
 public:
  Mapper(const TensorSource& checkpoint, absl::Span<const NamePair> names,
         std::string prefix)
      : checkpoint_(checkpoint), names_(names), prefix_(std::move(prefix)) {}

  // Finds the source of `spec`.
  absl::Status Add(const TensorSpec& spec) {
    const auto [layer, ours] = SplitLayer(spec.name);
    for (const NamePair& pair : names_) {
      if (pair.ours != ours) continue;
      return AddFrom(spec, absl::StrCat(prefix_, layer, pair.theirs),
                     pair.change);
    }
    return absl::InternalError(
        absl::StrCat("no name in a checkpoint for tensor ", spec.name));
  }

  absl::Status AddFrom(const TensorSpec& spec, const std::string& name,
                       TensorChange change) {
    DELTAEDGE_ASSIGN_OR_RETURN(const SourceTensor* const source,
                               Find(
                                   name,
                                   [&](const std::vector<int64_t>& shape) {
                                     return ShapeFits(spec, change, shape);
                                   },
                                   ExpectedShape(spec, change)));
    map_.tensors.push_back(
        {spec, {{name, source, 0, source->elements}}, change});
    return absl::OkStatus();
  }

  bool Has(const std::string& name) const {
    return checkpoint_.Find(name) != nullptr;
  }

  // Adds to `tensor` all of tensor `name`, which must be of `shape`, or its
  // rows [first, first + rows).
  absl::Status Append(const std::string& name,
                      const std::vector<int64_t>& shape, MappedTensor* tensor) {
    return AppendRows(name, shape, 0, shape[0], tensor);
  }
  absl::Status AppendRows(const std::string& name,
                          const std::vector<int64_t>& shape, int64_t first,
                          int64_t rows, MappedTensor* tensor) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const SourceTensor* const source,
        Find(
            name,
            [&](const std::vector<int64_t>& theirs) { return theirs == shape; },
            ShapeText(shape)));
    const int64_t row = source->elements / shape[0];
    tensor->parts.push_back({name, source, first * row, rows * row});
    return absl::OkStatus();
  }

  void Use(const std::string& name) { used_.insert(name); }
  TensorMap& map() { return map_; }

  // Accounts for the tensors that are left.
  absl::StatusOr<TensorMap> Finish() {
    for (const auto& [name, entry] : checkpoint_.entries()) {
      if (used_.contains(name)) continue;
      const Foreign* const foreign = FindForeign(name);
      if (foreign == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            checkpoint_.PathOf(entry), ": tensor ", name, " ",
            ShapeText(entry.shape), " has no place in a model of this ",
            checkpoint_.config_name()));
      }
      auto skipped = std::find_if(
          map_.skipped.begin(), map_.skipped.end(),
          [&](const auto& other) { return other.what == foreign->what; });
      if (skipped == map_.skipped.end()) {
        map_.skipped.push_back({std::string(foreign->what)});
        skipped = map_.skipped.end() - 1;
      }
      ++skipped->tensors;
      skipped->bytes += entry.bytes;
    }
    return std::move(map_);
  }

 private:
  // The tensor `name`, a float one whose shape `fits`.
  template <class Fits>
  absl::StatusOr<const SourceTensor*> Find(const std::string& name,
                                           const Fits& fits,
                                           const std::string& shape) {
    const SourceTensor* const source = checkpoint_.Find(name);
    if (source == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(), ": tensor ", name,
                       " is missing; its shape would be ", shape));
    }
    const std::string tensor =
        absl::StrCat(checkpoint_.PathOf(*source), ": tensor ", name);
    if (!source->is_float) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, " is of type ", source->dtype,
                       "; supported are BF16, F16 and F32"));
    }
    if (!fits(source->shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensor, " has shape ", ShapeText(source->shape), ", but ",
          checkpoint_.config_name(), " asks for ", shape));
    }
    used_.insert(name);
    return source;
  }

  std::string Where() const {
    return checkpoint_.files().empty() ? "checkpoint"
                                       : checkpoint_.files()[0].path();
  }

  const TensorSource& checkpoint_;
  const absl::Span<const NamePair> names_;
  const std::string prefix_;
  TensorMap map_;
  absl::btree_set<std::string> used_;
};

// Rows of the two projections that Qwen3-Next interleaves: for each key head
// its q, its k, then v and z of its value heads; b, then a of its value heads.
absl::Status AddInterleaved(const TensorSpec& spec, absl::string_view ours,
                            const std::string& layer,
                            const TargetConfig& config, Mapper* mapper) {
  const GdnConfig& gdn = config.gdn;
  const int64_t heads = gdn.value_heads / gdn.key_heads;  // Of a key head.
  const int64_t keys = gdn.key_dim, values = heads * gdn.value_dim;
  MappedTensor tensor = {spec, {}, TensorChange::kNone};
  // `rows` of every key head, from row `first` of the `all` that it has.
  const auto append = [&](absl::string_view name, int64_t all, int64_t first,
                          int64_t rows) -> absl::Status {
    for (int64_t head = 0; head < gdn.key_heads; ++head) {
      DELTAEDGE_RETURN_IF_ERROR(
          mapper->AppendRows(absl::StrCat(layer, "linear_attn.", name),
                             {gdn.key_heads * all, config.hidden_size},
                             head * all + first, rows, &tensor));
    }
    return absl::OkStatus();
  };
  const int64_t all = 2 * keys + 2 * values;
  if (ours == "gdn.in_qkv") {
    DELTAEDGE_RETURN_IF_ERROR(append(kInterleaved, all, 0, keys));
    DELTAEDGE_RETURN_IF_ERROR(append(kInterleaved, all, keys, keys));
    DELTAEDGE_RETURN_IF_ERROR(append(kInterleaved, all, 2 * keys, values));
  } else if (ours == "gdn.in_z") {
    DELTAEDGE_RETURN_IF_ERROR(
        append(kInterleaved, all, 2 * keys + values, values));
  } else {
    DELTAEDGE_RETURN_IF_ERROR(append(kInterleavedGates, 2 * heads,
                                     ours == "gdn.in_b" ? 0 : heads, heads));
  }
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// Experts that a checkpoint has one by one.
absl::Status AddExperts(const TensorSpec& spec, absl::string_view ours,
                        const std::string& layer, const TargetConfig& config,
                        Mapper* mapper) {
  const int64_t hidden = config.hidden_size, size = config.moe.expert_size;
  MappedTensor tensor = {spec, {}, TensorChange::kNone};
  for (int32_t i = 0; i < config.moe.experts; ++i) {
    const std::string expert = absl::StrCat(layer, "mlp.experts.", i, ".");
    if (ours == "moe.gate_up") {
      DELTAEDGE_RETURN_IF_ERROR(mapper->Append(
          absl::StrCat(expert, "gate_proj.weight"), {size, hidden}, &tensor));
      DELTAEDGE_RETURN_IF_ERROR(mapper->Append(
          absl::StrCat(expert, "up_proj.weight"), {size, hidden}, &tensor));
    } else {
      DELTAEDGE_RETURN_IF_ERROR(mapper->Append(
          absl::StrCat(expert, "down_proj.weight"), {hidden, size}, &tensor));
    }
  }
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// Experts that a checkpoint has stacked, in three dimensions.
absl::Status AddStacked(const TensorSpec& spec, absl::string_view ours,
                        const std::string& layer, const TargetConfig& config,
                        Mapper* mapper) {
  const MoeConfig& moe = config.moe;
  MappedTensor tensor = {spec, {}, TensorChange::kNone};
  DELTAEDGE_RETURN_IF_ERROR(
      ours == "moe.gate_up"
          ? mapper->Append(
                absl::StrCat(layer, "mlp.experts.gate_up_proj"),
                {moe.experts, 2 * moe.expert_size, config.hidden_size}, &tensor)
          : mapper->Append(absl::StrCat(layer, "mlp.experts.down_proj"),
                           {moe.experts, config.hidden_size, moe.expert_size},
                           &tensor));
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// A tensor of a layer, `ours` without the layer, in whichever layout is there.
absl::Status AddOfLayer(const TensorSpec& spec, absl::string_view ours,
                        const std::string& layer, const TargetConfig& config,
                        Mapper* mapper) {
  if (ours == "moe.gate_up" || ours == "moe.down") {
    return mapper->Has(absl::StrCat(layer, "mlp.experts.0.gate_proj.weight"))
               ? AddExperts(spec, ours, layer, config, mapper)
               : AddStacked(spec, ours, layer, config, mapper);
  }
  const bool gates = ours == "gdn.in_b" || ours == "gdn.in_a";
  if ((gates || ours == "gdn.in_qkv" || ours == "gdn.in_z") &&
      mapper->Has(absl::StrCat(layer, "linear_attn.",
                               gates ? kInterleavedGates : kInterleaved))) {
    return AddInterleaved(spec, ours, layer, config, mapper);
  }
  return mapper->Add(spec);
}

}  // namespace

absl::StatusOr<TensorMap> MapTarget(const TensorSource& checkpoint,
                                    std::optional<bool> tied,
                                    TargetConfig* config) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::optional<std::string> embedding,
                             FindByEnd(checkpoint, kEmbedding));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::optional<std::string> head,
                             FindByEnd(checkpoint, kHead));
  const std::string prefix(absl::StripSuffix(
      embedding.value_or("model.embed_tokens.weight"), kEmbedding));
  config->tied_head = tied.value_or(!head.has_value());
  Mapper mapper(checkpoint, kTargetNames, prefix);
  for (const TensorSpec& spec : TensorSpecs(*config)) {
    const auto [layer, ours] = SplitLayer(spec.name);
    DELTAEDGE_RETURN_IF_ERROR(
        spec.name == "head"
            ? mapper.AddFrom(spec, head.value_or(kHead), TensorChange::kNone)
            : AddOfLayer(spec, ours, absl::StrCat(prefix, layer), *config,
                         &mapper));
  }
  if (config->tied_head && head.has_value()) {
    mapper.map().redundant_head = checkpoint.Find(*head);
    mapper.Use(*head);
  }
  return mapper.Finish();
}

absl::StatusOr<TensorMap> MapDraft(const TensorSource& checkpoint,
                                   const DraftConfig& config) {
  Mapper mapper(checkpoint, kDraftNames, "");
  for (const TensorSpec& spec : TensorSpecs(config)) {
    DELTAEDGE_RETURN_IF_ERROR(mapper.Add(spec));
  }
  return mapper.Finish();
}

}  // namespace deltaedge
