// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_HF_CONFIG_H_
#define DELTAEDGE_TOOLS_CONVERT_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"
#include "engine/types.h"

namespace deltaedge {

// What config.json of a Qwen3.5 or Qwen3-Next checkpoint says, dense or with
// experts, in either layout: all keys at top level, or within "text_config".
struct HfTarget {
  TargetConfig config;  // `tied_head` is what `tied` says, or false.
  // "tie_word_embeddings", wherever it stands. Unset: the file does not say, so
  // the tensors must.
  std::optional<bool> tied;
  // Ids that end generation, in the file's order.
  std::vector<TokenId> eos_tokens;
  // Of a GGUF file: layers that predict further tokens, numbered on from those
  // of `config`.
  int32_t predicting_layers = 0;
};

// What config.json of a DFlash draft says, in either generation of the format.
struct HfDraft {
  // `target_layer_count` is 0 where the file does not say it: the target does.
  DraftConfig config;
};

struct HfConfigOptions {
  // Keys that nothing here knows are refused unless their value is null, false
  // or empty: any of them may change the model's mathematics. True: they are
  // listed in `ignored_keys` instead.
  bool ignore_unknown_keys = false;
  // Decides in place of "is_causal" and of the rule for its absence, which is
  // that sliding layers of a draft are causal.
  std::optional<SlidingMask> sliding_mask;
};

struct HfConfig {
  std::variant<HfTarget, HfDraft> model;
  std::vector<std::string> ignored_keys;  // "text_config.key = value"
};

// Understands `text`, a Hugging Face config.json. `file` names it in errors,
// all of which are InvalidArgument or, for models of a known kind that there is
// no support for yet, Unimplemented; they name key, value and what is allowed.
// The config has passed Validate(), but for a draft's `target_layer_count` of
// 0. Nothing is guessed: a key that decides about the mathematics and is
// missing is an error, unless its absence has one meaning in all published
// files.
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view text,
                                       absl::string_view file,
                                       const HfConfigOptions& options = {});

// The same for `folder`/config.json. `folder`/generation_config.json, if there
// is one, has the last word about a target's `eos_tokens`.
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& folder,
                                      const HfConfigOptions& options = {});

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_HF_CONFIG_H_
