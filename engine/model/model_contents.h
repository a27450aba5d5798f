// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_MODEL_CONTENTS_H_
#define DELTAEDGE_ENGINE_MODEL_MODEL_CONTENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"

namespace deltaedge {

// What a model file holds. Values are stable: append only.
enum class ModelKind {
  kTarget = 1,
  kDraft = 2,
};

// Everything that a model file tells, except its tensors and its fingerprint:
// what a converter gathers before the first weight is read.
struct ModelContents {
  ModelKind kind = ModelKind::kTarget;
  TargetConfig target;    // kTarget only.
  DraftConfig draft;      // kDraft only.
  std::string converter;  // Program and version, for people. May be empty.

  // kDraft: the fingerprint in the target's file. kTarget: 0.
  uint64_t target_fingerprint = 0;

  // The rest is for targets only. Unset: the model is used with ids alone.
  // `tokenizer->vocab_size` is the config's.
  std::optional<TokenizerTables> tokenizer;
  // Needs a tokenizer. Unset: the model was not made for conversations.
  std::optional<ChatTable> chat;
  // Ids at which generation ends. May be empty.
  std::vector<TokenId> stop_tokens;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_MODEL_CONTENTS_H_
