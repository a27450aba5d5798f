// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_MAKE_RANDOM_MAKE_RANDOM_H_
#define DELTAEDGE_TOOLS_MAKE_RANDOM_MAKE_RANDOM_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "tools/convert/weight_recipe.h"
#include "tools/make_random/random_tensor.h"

namespace deltaedge {

// Models of random weights for tests and benchmarks: of any size, in no time,
// and the same bits on every machine. Not useless to run: activations keep
// their size from layer to layer, states neither blow up nor die, logits are
// not flat (standard deviation about 2), and the layers outweigh the embedding,
// so that a tied model does not just repeat its last token.
//
// A weight depends on the seed, its tensor's name and its place in the tensor
// only, and on whether it is a float or a bfloat16. Of whatever type the file's
// matrices are, they stand for the same numbers, and the fingerprint is the
// same: that of the checkpoint which hub_folder.h writes.

struct RandomModelOptions {
  RandomNumbers numbers;
  // Targets: add ByteTokenizer() and ByteChat() if the vocabulary has room for
  // kByteTokens.
  bool byte_tokenizer = true;
  // Targets: ids at which generation ends.
  std::vector<TokenId> stop_tokens;
  WeightRecipe recipe;
  // Null, or looked at now and then: when it is set, the answer is Cancelled
  // and nothing is left behind.
  const std::atomic<bool>* stop = nullptr;
};

// Writes a model file to `output` (as ModelWriter does, with its errors), in
// pieces: memory does not grow with the model. InvalidArgument: the config or
// the recipe is unsound.
absl::Status MakeRandomTarget(const TargetConfig& config,
                              const std::string& output,
                              const RandomModelOptions& options = {});

// The same for a draft of the target in the file `target`. A
// `target_layer_count` of 0 is filled in. InvalidArgument also: `target` is no
// target, or one that the config does not fit.
absl::Status MakeRandomDraft(DraftConfig config, const std::string& target,
                             const std::string& output,
                             const RandomModelOptions& options = {});

// Ids of ByteTokenizer(): 0 .. 255 are bytes, then these.
inline constexpr TokenId kByteEndOfText = 256;  // "<|endoftext|>"
inline constexpr TokenId kByteTurnStart = 257;  // "<|im_start|>"
inline constexpr TokenId kByteTurnEnd = 258;    // "<|im_end|>"
inline constexpr TokenId kByteThink = 259;      // "<think>", not special
inline constexpr TokenId kByteEndThink = 260;   // "</think>", not special
inline constexpr TokenId kByteMask = 261;       // "<|mask|>"
inline constexpr int32_t kByteTokens = 262;

// A tokenizer without merges: every byte is a token.
TokenizerTables ByteTokenizer(int32_t vocab_size);

// ChatML over it: no standing system message, a thinking switch, turns end at
// kByteTurnEnd or kByteEndOfText.
ChatTable ByteChat();

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_MAKE_RANDOM_MAKE_RANDOM_H_
