// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/tensor_map.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/tensor_list.h"
#include "tools/convert/printable_name.h"
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

// GGUF's names. Its norms hold 1 + w, and ssm_a is -exp(A_log).
constexpr NamePair kGgufTargetNames[] = {
    {"embedding", "token_embd.weight", TensorChange::kNone},
    {"head", "output.weight", TensorChange::kNone},
    {"final_norm", "output_norm.weight", TensorChange::kNone},
    {"input_norm", "attn_norm.weight", TensorChange::kNone},
    {"post_norm", "post_attention_norm.weight", TensorChange::kNone},
    {"gdn.in_qkv", "attn_qkv.weight", TensorChange::kNone},
    {"gdn.in_z", "attn_gate.weight", TensorChange::kNone},
    {"gdn.in_b", "ssm_beta.weight", TensorChange::kNone},
    {"gdn.in_a", "ssm_alpha.weight", TensorChange::kNone},
    {"gdn.conv", "ssm_conv1d.weight", TensorChange::kConvTaps},
    {"gdn.neg_exp_a", "ssm_a", TensorChange::kNegative},
    {"gdn.dt_bias", "ssm_dt.bias", TensorChange::kNone},
    {"gdn.norm", "ssm_norm.weight", TensorChange::kNone},
    {"gdn.out", "ssm_out.weight", TensorChange::kNone},
    {"attention.q", "attn_q.weight", TensorChange::kNone},
    {"attention.k", "attn_k.weight", TensorChange::kNone},
    {"attention.v", "attn_v.weight", TensorChange::kNone},
    {"attention.q_norm", "attn_q_norm.weight", TensorChange::kNone},
    {"attention.k_norm", "attn_k_norm.weight", TensorChange::kNone},
    {"attention.out", "attn_output.weight", TensorChange::kNone},
    {"mlp.gate", "ffn_gate.weight", TensorChange::kNone},
    {"mlp.up", "ffn_up.weight", TensorChange::kNone},
    {"mlp.down", "ffn_down.weight", TensorChange::kNone},
    {"moe.router", "ffn_gate_inp.weight", TensorChange::kNone},
    {"moe.shared_router", "ffn_gate_inp_shexp.weight", TensorChange::kNone},
    {"moe.shared.gate", "ffn_gate_shexp.weight", TensorChange::kNone},
    {"moe.shared.up", "ffn_up_shexp.weight", TensorChange::kNone},
    {"moe.shared.down", "ffn_down_shexp.weight", TensorChange::kNone},
};

constexpr NamePair kGgufDraftNames[] = {
    {"fc", "fc.weight", TensorChange::kNone},
    {"hidden_norm", "enc.output_norm.weight", TensorChange::kNone},
    {"final_norm", "output_norm.weight", TensorChange::kNone},
    {"input_norm", "attn_norm.weight", TensorChange::kNone},
    {"post_norm", "ffn_norm.weight", TensorChange::kNone},
    {"attention.q", "attn_q.weight", TensorChange::kNone},
    {"attention.k", "attn_k.weight", TensorChange::kNone},
    {"attention.v", "attn_v.weight", TensorChange::kNone},
    {"attention.q_norm", "attn_q_norm.weight", TensorChange::kNone},
    {"attention.k_norm", "attn_k_norm.weight", TensorChange::kNone},
    {"attention.out", "attn_output.weight", TensorChange::kNone},
    {"mlp.gate", "ffn_gate.weight", TensorChange::kNone},
    {"mlp.up", "ffn_up.weight", TensorChange::kNone},
    {"mlp.down", "ffn_down.weight", TensorChange::kNone},
};

// What Qwen3-Next has for in_qkv and in_z, and for in_b and in_a.
struct Interleaved {
  absl::string_view projections;
  absl::string_view gates;
};
constexpr Interleaved kInterleaved = {"linear_attn.in_proj_qkvz.weight",
                                      "linear_attn.in_proj_ba.weight"};
constexpr Interleaved kGgufInterleaved = {"ssm_in.weight", "ssm_ba.weight"};

// What a checkpoint may hold besides the language model.
struct Foreign {
  absl::string_view prefix;
  absl::string_view what;
};
constexpr char kPrediction[] = "multi-token prediction";
constexpr Foreign kForeign[] = {
    {"model.visual.", "vision"},
    {"visual.", "vision"},
    {"mtp.", kPrediction},
    {"model.mtp.", kPrediction},
};

// What a tensor of this name is for. Empty: the language model.
absl::string_view ForeignUse(absl::string_view name) {
  for (const Foreign& foreign : kForeign) {
    if (absl::StartsWith(name, foreign.prefix)) return foreign.what;
  }
  return "";
}

// The only name, or none, that is `last` or ends in "." and `last`.
absl::StatusOr<std::optional<std::string>> FindByEnd(
    const TensorSource& checkpoint, absl::string_view last) {
  std::optional<std::string> found;
  for (const auto& [name, entry] : checkpoint.entries()) {
    absl::string_view before = name;
    if (!ForeignUse(name).empty() || !absl::ConsumeSuffix(&before, last) ||
        (!before.empty() && before.back() != '.')) {
      continue;
    }
    if (found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.PathOf(entry), ": tensors ",
                       PrintableName(*found), " and ", PrintableName(name),
                       " both end in ", last, "; one is expected"));
    }
    found = name;
  }
  return found;
}

// Of a tensor of the checkpoint that becomes `spec`.
std::vector<int64_t> SourceShape(const TensorSpec& spec, TensorChange change) {
  std::vector<int64_t> shape(spec.shape.begin(), spec.shape.end());
  if (change == TensorChange::kConvTaps) shape = {shape[1], 1, shape[0]};
  return shape;
}

std::vector<int64_t> WithoutOnes(std::vector<int64_t> shape) {
  shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
  return shape;
}

constexpr char kLayers[] = "layers.";
constexpr char kGgufLayers[] = "blk.";

// "layers.3." and what follows; "" and the name if it is of no layer.
std::pair<absl::string_view, absl::string_view> SplitLayer(
    absl::string_view name) {
  if (!absl::StartsWith(name, kLayers)) return {"", name};
  const size_t end = name.find('.', sizeof(kLayers) - 1) + 1;
  return {name.substr(0, end), name.substr(end)};
}

const NamePair& FindPair(absl::Span<const NamePair> names,
                         const TensorSpec& spec) {
  const absl::string_view ours = SplitLayer(spec.name).second;
  return *std::find_if(
      names.begin(), names.end(),
      [ours](const NamePair& pair) { return pair.ours == ours; });
}

// "blk.3." for "layers.3."
std::string GgufLayer(absl::string_view layer) {
  return absl::StrReplaceAll(layer, {{kLayers, kGgufLayers}});
}

// Fills one TensorMap.
class Mapper {
 public:
  // `drops_ones`: the format does not keep extents of one.
  Mapper(const TensorSource& checkpoint, absl::Span<const NamePair> names,
         bool drops_ones)
      : checkpoint_(checkpoint), names_(names), drops_ones_(drops_ones) {}

  const NamePair& NamesOf(const TensorSpec& spec) const {
    return FindPair(names_, spec);
  }

  // Finds the source of `spec`, whose name begins with `prefix`.
  absl::Status Add(const TensorSpec& spec, absl::string_view prefix) {
    const NamePair& pair = NamesOf(spec);
    return AddFrom(spec, absl::StrCat(prefix, pair.theirs), pair.change);
  }

  absl::Status AddFrom(const TensorSpec& spec, const std::string& name,
                       TensorChange change) {
    MappedTensor tensor = {spec, {}, change, {}};
    DELTAEDGE_RETURN_IF_ERROR(Append(name, SourceShape(spec, change), &tensor));
    map_.tensors.push_back(std::move(tensor));
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
    // Exporters drop or move the one of a convolution's shape.
    DELTAEDGE_ASSIGN_OR_RETURN(
        const SourceTensor* const source,
        Find(name, shape,
             drops_ones_ || tensor->change == TensorChange::kConvTaps));
    const int64_t row = source->elements / shape[0];
    std::vector<SourcePart>& parts = tensor->parts;
    if (!parts.empty() && parts.back().source == source &&
        parts.back().first + parts.back().elements == first * row) {
      parts.back().elements += rows * row;
    } else {
      parts.push_back({name, source, first * row, rows * row});
    }
    return absl::OkStatus();
  }

  void Use(const std::string& name) { used_.insert(name); }
  TensorMap& map() { return map_; }

  // Accounts for the tensors that are left; `foreign_use` tells as ForeignUse()
  // does what they are for.
  absl::StatusOr<TensorMap> Finish(
      absl::FunctionRef<absl::string_view(absl::string_view)> foreign_use) {
    for (const auto& [name, entry] : checkpoint_.entries()) {
      if (used_.contains(name)) continue;
      const absl::string_view use = foreign_use(name);
      if (use.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            checkpoint_.PathOf(entry), ": tensor ", PrintableName(name), " ",
            ShapeText(entry.shape), " has no place in the model that ",
            checkpoint_.config_name(), " describes"));
      }
      auto skipped =
          std::find_if(map_.skipped.begin(), map_.skipped.end(),
                       [&](const auto& other) { return other.what == use; });
      if (skipped == map_.skipped.end()) {
        map_.skipped.push_back({std::string(use)});
        skipped = map_.skipped.end() - 1;
      }
      ++skipped->tensors;
      skipped->bytes += entry.bytes;
    }
    return std::move(map_);
  }

 private:
  // The tensor `name`, a float one of `shape`, in which extents of one do not
  // matter if `ignore_ones`.
  absl::StatusOr<const SourceTensor*> Find(const std::string& name,
                                           const std::vector<int64_t>& shape,
                                           bool ignore_ones) {
    const SourceTensor* const source = checkpoint_.Find(name);
    if (source == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(), ": tensor ", PrintableName(name),
                       " is missing; its shape would be ", ShapeText(shape)));
    }
    const std::string tensor = absl::StrCat(checkpoint_.PathOf(*source),
                                            ": tensor ", PrintableName(name));
    if (!source->is_float) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, " is of type ", source->dtype,
                       "; supported are BF16, F16 and F32"));
    }
    if (source->shape != shape &&
        !(ignore_ones && WithoutOnes(source->shape) == WithoutOnes(shape))) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensor, " has shape ", ShapeText(source->shape), ", but ",
          checkpoint_.config_name(), " asks for ", ShapeText(shape)));
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
  const bool drops_ones_;
  TensorMap map_;
  absl::btree_set<std::string> used_;
};

// The tensor in which Qwen3-Next has `ours` of the layer whose names begin with
// `layer`. Empty: the checkpoint has it apart.
std::string FindInterleaved(absl::string_view ours, const std::string& layer,
                            const Interleaved& names, const Mapper& mapper) {
  const bool gates = ours == "gdn.in_b" || ours == "gdn.in_a";
  if (!gates && ours != "gdn.in_qkv" && ours != "gdn.in_z") return "";
  std::string name =
      absl::StrCat(layer, gates ? names.gates : names.projections);
  return mapper.Has(name) ? name : "";
}

// Rows of the two projections that Qwen3-Next interleaves: for each key head
// its q, its k, then v and z of its value heads; b, then a of its value heads.
absl::Status AddInterleaved(const TensorSpec& spec, absl::string_view ours,
                            const std::string& name, const TargetConfig& config,
                            Mapper* mapper) {
  const GdnConfig& gdn = config.gdn;
  const int64_t heads = gdn.value_heads / gdn.key_heads;  // Of a key head.
  const int64_t keys = gdn.key_dim, values = heads * gdn.value_dim;
  MappedTensor tensor = {spec, {}, TensorChange::kNone, {}};
  // `rows` of every key head, from row `first` of the `all` that it has.
  const auto append = [&](int64_t all, int64_t first,
                          int64_t rows) -> absl::Status {
    for (int64_t head = 0; head < gdn.key_heads; ++head) {
      DELTAEDGE_RETURN_IF_ERROR(
          mapper->AppendRows(name, {gdn.key_heads * all, config.hidden_size},
                             head * all + first, rows, &tensor));
    }
    return absl::OkStatus();
  };
  const int64_t all = 2 * keys + 2 * values;
  if (ours == "gdn.in_qkv") {
    DELTAEDGE_RETURN_IF_ERROR(append(all, 0, keys));
    DELTAEDGE_RETURN_IF_ERROR(append(all, keys, keys));
    DELTAEDGE_RETURN_IF_ERROR(append(all, 2 * keys, values));
  } else if (ours == "gdn.in_z") {
    DELTAEDGE_RETURN_IF_ERROR(append(all, 2 * keys + values, values));
  } else {
    DELTAEDGE_RETURN_IF_ERROR(
        append(2 * heads, ours == "gdn.in_b" ? 0 : heads, heads));
  }
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// Experts that a checkpoint has one by one.
absl::Status AddExperts(const TensorSpec& spec, absl::string_view ours,
                        const std::string& layer, const TargetConfig& config,
                        Mapper* mapper) {
  const int64_t hidden = config.hidden_size, size = config.moe.expert_size;
  MappedTensor tensor = {spec, {}, TensorChange::kNone, {}};
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
  MappedTensor tensor = {spec, {}, TensorChange::kNone, {}};
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
  const std::string interleaved =
      FindInterleaved(ours, layer, kInterleaved, *mapper);
  return interleaved.empty()
             ? mapper->Add(spec, layer)
             : AddInterleaved(spec, ours, interleaved, config, mapper);
}

// Where GGUF has value head `head`: there the first of every key head come
// first, then the second of every one, and so on.
int64_t TiledHead(const GdnConfig& gdn, int64_t head) {
  const int64_t of_key = gdn.value_heads / gdn.key_heads;
  return head % of_key * gdn.key_heads + head / of_key;
}

// A tensor whose rows, or in the case of "gdn.out" columns, are of value heads
// that are tiled.
absl::Status AddTiled(const TensorSpec& spec, const std::string& layer,
                      const GdnConfig& gdn, Mapper* mapper) {
  const NamePair& pair = mapper->NamesOf(spec);
  if (pair.ours == "gdn.out") {
    DELTAEDGE_RETURN_IF_ERROR(mapper->Add(spec, layer));
    if (gdn.value_heads == gdn.key_heads) return absl::OkStatus();
    std::vector<int32_t>& columns = mapper->map().tensors.back().columns;
    for (int32_t i = 0; i < gdn.values(); ++i) {
      columns.push_back(static_cast<int32_t>(TiledHead(gdn, i / gdn.value_dim) *
                                                 gdn.value_dim +
                                             i % gdn.value_dim));
    }
    return absl::OkStatus();
  }
  const std::string name = absl::StrCat(layer, pair.theirs);
  const std::vector<int64_t> shape = SourceShape(spec, pair.change);
  const bool with_keys = pair.ours == "gdn.in_qkv" || pair.ours == "gdn.conv";
  const int64_t keys = with_keys ? 2 * gdn.keys() : 0;
  const int64_t rows = (shape[0] - keys) / gdn.value_heads;
  MappedTensor tensor = {spec, {}, pair.change, {}};
  if (with_keys) {
    DELTAEDGE_RETURN_IF_ERROR(
        mapper->AppendRows(name, shape, 0, keys, &tensor));
  }
  for (int64_t head = 0; head < gdn.value_heads; ++head) {
    DELTAEDGE_RETURN_IF_ERROR(mapper->AppendRows(
        name, shape, keys + TiledHead(gdn, head) * rows, rows, &tensor));
  }
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// Experts in GGUF: stacked, and mostly with gates and ups apart.
absl::Status AddGgufExperts(const TensorSpec& spec, absl::string_view ours,
                            const std::string& layer,
                            const TargetConfig& config, Mapper* mapper) {
  const int64_t experts = config.moe.experts, size = config.moe.expert_size;
  const int64_t hidden = config.hidden_size;
  const std::string together = absl::StrCat(layer, "ffn_gate_up_exps.weight");
  MappedTensor tensor = {spec, {}, TensorChange::kNone, {}};
  if (ours == "moe.down") {
    DELTAEDGE_RETURN_IF_ERROR(
        mapper->Append(absl::StrCat(layer, "ffn_down_exps.weight"),
                       {experts, hidden, size}, &tensor));
  } else if (mapper->Has(together)) {
    DELTAEDGE_RETURN_IF_ERROR(
        mapper->Append(together, {experts, 2 * size, hidden}, &tensor));
  } else {
    for (int64_t i = 0; i < experts; ++i) {
      for (const absl::string_view part : {"gate", "up"}) {
        DELTAEDGE_RETURN_IF_ERROR(mapper->AppendRows(
            absl::StrCat(layer, "ffn_", part, "_exps.weight"),
            {experts, size, hidden}, i, 1, &tensor));
      }
    }
  }
  mapper->map().tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddOfGgufLayer(const TensorSpec& spec, absl::string_view ours,
                            const std::string& layer, bool tiled_heads,
                            const TargetConfig& config, Mapper* mapper) {
  if (ours == "moe.gate_up" || ours == "moe.down") {
    return AddGgufExperts(spec, ours, layer, config, mapper);
  }
  const std::string interleaved =
      FindInterleaved(ours, layer, kGgufInterleaved, *mapper);
  if (!interleaved.empty()) {
    return AddInterleaved(spec, ours, interleaved, config, mapper);
  }
  if (tiled_heads && absl::StartsWith(ours, "gdn.") && ours != "gdn.norm") {
    return AddTiled(spec, layer, config.gdn, mapper);
  }
  return mapper->Add(spec, layer);
}

// A tensor of a layer that the layouts of the hub differ in: adds what it comes
// to, which may be nothing, to `tensors`. False: it is none of these.
bool ListByLayout(absl::string_view ours, const std::string& layer,
                  const TargetConfig& config, HubLayout layout,
                  std::vector<HubTensor>* tensors) {
  const GdnConfig& gdn = config.gdn;
  const MoeConfig& moe = config.moe;
  const int64_t hidden = config.hidden_size;
  const bool gate_up = ours == "moe.gate_up";
  if (layout == HubLayout::kQwen35) {
    if (!gate_up && ours != "moe.down") return false;
    tensors->push_back(
        gate_up ? HubTensor{layer + "mlp.experts.gate_up_proj",
                            {moe.experts, 2 * moe.expert_size, hidden}}
                : HubTensor{layer + "mlp.experts.down_proj",
                            {moe.experts, hidden, moe.expert_size}});
    return true;
  }
  if (ours == "gdn.in_qkv") {
    tensors->push_back({absl::StrCat(layer, kInterleaved.projections),
                        {gdn.conv_channels() + gdn.values(), hidden}});
  } else if (ours == "gdn.in_b") {
    tensors->push_back({absl::StrCat(layer, kInterleaved.gates),
                        {2 * gdn.value_heads, hidden}});
  } else if (gate_up || ours == "moe.down") {
    for (int32_t i = 0; i < moe.experts; ++i) {
      const std::string expert = absl::StrCat(layer, "mlp.experts.", i, ".");
      if (gate_up) {
        for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
          tensors->push_back({expert + part, {moe.expert_size, hidden}});
        }
      } else {
        tensors->push_back(
            {expert + "down_proj.weight", {hidden, moe.expert_size}});
      }
    }
  }
  return gate_up || ours == "moe.down" || ours == "gdn.in_qkv" ||
         ours == "gdn.in_z" || ours == "gdn.in_b" || ours == "gdn.in_a";
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
  Mapper mapper(checkpoint, kTargetNames, /*drops_ones=*/false);
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
  return mapper.Finish(ForeignUse);
}

absl::StatusOr<TensorMap> MapDraft(const TensorSource& checkpoint,
                                   const DraftConfig& config) {
  Mapper mapper(checkpoint, kDraftNames, /*drops_ones=*/false);
  for (const TensorSpec& spec : TensorSpecs(config)) {
    DELTAEDGE_RETURN_IF_ERROR(mapper.Add(spec, SplitLayer(spec.name).first));
  }
  return mapper.Finish(ForeignUse);
}

absl::StatusOr<TensorMap> MapGgufTarget(const TensorSource& checkpoint,
                                        bool tiled_heads,
                                        int32_t predicting_layers,
                                        const TargetConfig& config) {
  Mapper mapper(checkpoint, kGgufTargetNames, /*drops_ones=*/true);
  for (const TensorSpec& spec : TensorSpecs(config)) {
    const auto [layer, ours] = SplitLayer(spec.name);
    DELTAEDGE_RETURN_IF_ERROR(AddOfGgufLayer(spec, ours, GgufLayer(layer),
                                             tiled_heads, config, &mapper));
  }
  // Layers that predict further tokens stand behind the model's own.
  absl::flat_hash_set<std::string> predicting;
  for (int32_t i = 0; i < predicting_layers; ++i) {
    predicting.insert(absl::StrCat(kGgufLayers, config.layers.size() + i, "."));
  }
  return mapper.Finish([&](absl::string_view name) -> absl::string_view {
    const size_t end = name.find('.', sizeof(kGgufLayers) - 1) + 1;
    return predicting.contains(name.substr(0, end)) ? kPrediction : "";
  });
}

absl::StatusOr<TensorMap> MapGgufDraft(const TensorSource& checkpoint,
                                       const DraftConfig& config) {
  Mapper mapper(checkpoint, kGgufDraftNames, /*drops_ones=*/true);
  for (const TensorSpec& spec : TensorSpecs(config)) {
    DELTAEDGE_RETURN_IF_ERROR(
        mapper.Add(spec, GgufLayer(SplitLayer(spec.name).first)));
  }
  return mapper.Finish([](absl::string_view) { return ""; });
}

std::vector<HubTensor> HubTensors(const TargetConfig& config,
                                  HubLayout layout) {
  std::vector<HubTensor> tensors;
  for (const TensorSpec& spec : TensorSpecs(config)) {
    const auto [number, ours] = SplitLayer(spec.name);
    const std::string layer = absl::StrCat("model.", number);
    if (ListByLayout(ours, layer, config, layout, &tensors)) continue;
    if (spec.name == "head") {
      tensors.push_back({kHead, SourceShape(spec, TensorChange::kNone)});
    } else {
      const NamePair& pair = FindPair(kTargetNames, spec);
      tensors.push_back(
          {absl::StrCat(layer, pair.theirs), SourceShape(spec, pair.change)});
    }
  }
  return tensors;
}

std::vector<HubTensor> HubTensors(const DraftConfig& config) {
  std::vector<HubTensor> tensors;
  for (const TensorSpec& spec : TensorSpecs(config)) {
    const NamePair& pair = FindPair(kDraftNames, spec);
    tensors.push_back({absl::StrCat(SplitLayer(spec.name).first, pair.theirs),
                       SourceShape(spec, pair.change)});
  }
  return tensors;
}

}  // namespace deltaedge
