// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_FINGERPRINT_H_
#define DELTAEDGE_ENGINE_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "engine/model/config.h"
#include "engine/model/tokenizer_tables.h"

namespace deltaedge {

// The identity of a model: 64-bit FNV-1a over its architecture, its tokenizer
// and some of its source values, as schema/FORMAT.md writes out. Source values
// are what the checkpoint holds, widened to float, before "+1", quantisation or
// any other change: so all files made of one checkpoint share a fingerprint,
// and checkpoints that only differ in training do not. Not a defence against
// somebody who wants two models to look the same. Never 0.

// Rows at each end of a matrix that go in; of a matrix with fewer rows, all.
inline constexpr int32_t kFingerprintRows = 64;

// `first_rows` and `last_rows` are the first and last
// min(kFingerprintRows, vocab_size) rows of the embedding table, [rows, H], and
// may overlap; `final_norm` is [H].
uint64_t TargetFingerprint(const TargetConfig& config,
                           const std::optional<TokenizerTables>& tokenizer,
                           absl::Span<const float> final_norm,
                           absl::Span<const float> first_rows,
                           absl::Span<const float> last_rows);

// Likewise of tensor "fc", rows of [taps * H]; both norms are [H].
uint64_t DraftFingerprint(const DraftConfig& config,
                          uint64_t target_fingerprint,
                          absl::Span<const float> hidden_norm,
                          absl::Span<const float> final_norm,
                          absl::Span<const float> first_rows,
                          absl::Span<const float> last_rows);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_FINGERPRINT_H_
