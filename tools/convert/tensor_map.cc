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
#include "tools/convert/safetensors.h"

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
    const Safetensors& checkpoint, absl::string_view last) {
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

// Fills one TensorMap.
class Mapper {
 public:
  Mapper(const Safetensors& checkpoint, absl::Span<const NamePair> names,
         std::string prefix)
      : checkpoint_(checkpoint), names_(names), prefix_(std::move(prefix)) {}

  // Finds the source of `spec`.
  absl::Status Add(const TensorSpec& spec) {
    absl::string_view ours = spec.name;
    std::string layer;
    if (absl::ConsumePrefix(&ours, "layers.")) {
      const size_t end = ours.find('.') + 1;
      layer = absl::StrCat("layers.", ours.substr(0, end));
      ours.remove_prefix(end);
    }
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
    const SafetensorsEntry* const source = checkpoint_.Find(name);
    if (source == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          Where(), ": tensor ", name, " is missing; its shape would be ",
          ExpectedShape(spec, change)));
    }
    const std::string tensor =
        absl::StrCat(checkpoint_.PathOf(*source), ": tensor ", name);
    if (!Safetensors::IsFloat(*source)) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, " is of type ", source->dtype,
                       "; supported are BF16, F16 and F32"));
    }
    if (!ShapeFits(spec, change, source->shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensor, " has shape ", ShapeText(source->shape),
          ", but config.json asks for ", ExpectedShape(spec, change)));
    }
    map_.tensors.push_back({spec, name, source, change});
    used_.insert(name);
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
        return absl::InvalidArgumentError(
            absl::StrCat(checkpoint_.PathOf(entry), ": tensor ", name, " ",
                         ShapeText(entry.shape),
                         " has no place in a model of this config.json"));
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
  std::string Where() const {
    return checkpoint_.files().empty() ? "checkpoint"
                                       : checkpoint_.files()[0].path();
  }

  const Safetensors& checkpoint_;
  const absl::Span<const NamePair> names_;
  const std::string prefix_;
  TensorMap map_;
  absl::btree_set<std::string> used_;
};

}  // namespace

absl::StatusOr<TensorMap> MapTarget(const Safetensors& checkpoint,
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
    DELTAEDGE_RETURN_IF_ERROR(
        spec.name == "head"
            ? mapper.AddFrom(spec, head.value_or(kHead), TensorChange::kNone)
            : mapper.Add(spec));
  }
  if (config->tied_head && head.has_value()) {
    mapper.map().redundant_head = checkpoint.Find(*head);
    mapper.Use(*head);
  }
  return mapper.Finish();
}

absl::StatusOr<TensorMap> MapDraft(const Safetensors& checkpoint,
                                   const DraftConfig& config) {
  Mapper mapper(checkpoint, kDraftNames, "");
  for (const TensorSpec& spec : TensorSpecs(config)) {
    DELTAEDGE_RETURN_IF_ERROR(mapper.Add(spec));
  }
  return mapper.Finish();
}

}  // namespace deltaedge
