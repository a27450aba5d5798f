// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_GGUF_CONFIG_H_
#define DELTAEDGE_TOOLS_CONVERT_GGUF_CONFIG_H_

#include "absl/status/statusor.h"
#include "tools/convert/gguf.h"
#include "tools/convert/hf_config.h"

namespace deltaedge {

// What config.json of the same model would say, from the metadata and the names
// of the tensors of a GGUF file of architecture "qwen35", "qwen35moe" or
// "qwen3next" (targets) or "dflash" (drafts):
//   vocab_size     rows of token_embd.weight; of a draft, number of tokens
//   tied_head      there is no output.weight
//   layers         attention.recurrent_layers, else every
//                  full_attention_interval-th (4, if that is absent too) has
//                  attention; those of multi-token prediction do not count
//   experts        if expert_count says so, in layers without ffn_gate.weight;
//                  weights of the chosen ones add up to 1
//   eos_tokens     tokenizer.ggml.eos_token_id, eot_token_id and eom_token_id,
//                  and the control token <|endoftext|>, which ends all texts of
//                  these models
//   target_layers  dflash.target_layers less 1: they count from the embedding
//
// Errors are those of ParseHfConfig(). Keys that are not known are looked for
// under the architecture's name, where even false says something, and under
// "tokenizer.", "adapter." and "clip."; those of the tokenizer are known that
// ReadGgufTokenizer() reads, and ids of tokens with a role. An architecture
// that is none of these is Unimplemented.
absl::StatusOr<HfConfig> ReadGgufConfig(const Gguf& file,
                                        const HfConfigOptions& options = {});

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_GGUF_CONFIG_H_
