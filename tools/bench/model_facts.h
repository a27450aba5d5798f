// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_MODEL_FACTS_H_
#define DELTAEDGE_TOOLS_BENCH_MODEL_FACTS_H_

#include <cstdint>
#include <string>

#include "engine/model/model_file.h"

namespace deltaedge {

// The types of a target's matrices: "q8", or "q4,head=q8,gdn=q8" where not all
// are as those of the feed-forward layers.
std::string WeightsText(const ModelFile& target);

// What decoding one token without drafts has to move through memory.
struct TokenBytes {
  // All tensors but the experts that are not chosen and the embedding table, of
  // which one row is read; where the head is tied they are one, and read.
  int64_t weights = 0;
  // Recurrent states: read, and written.
  int64_t states = 0;
  // Keys and values, for each position of the sequence.
  int64_t kv_of_position = 0;

  int64_t At(int64_t position) const {
    return weights + states + kv_of_position * position;
  }
};
TokenBytes TokenBytesOf(const ModelFile& target);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_MODEL_FACTS_H_
