// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_
#define DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/graph/target_model.h"
#include "engine/types.h"

namespace deltaedge {

// A target whose next token is a hash of all tokens before it. It remembers
// tokens by position, as a KV cache does: what a step leaves beyond the kept
// rows is overwritten by the next, and a wrong position gives wrong tokens.
class FakeTarget : public TargetModel {
 public:
  static constexpr int32_t kVocabSize = 50;

  FakeTarget() {
    config_.vocab_size = kVocabSize;
    config_.hidden_size = 1;
  }

  static TokenId NextToken(absl::Span<const TokenId> sequence) {
    uint64_t hash = 1469598103934665603u;
    for (const TokenId token : sequence) {
      hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    }
    return static_cast<TokenId>((hash >> 20) % kVocabSize);
  }

  absl::Status Run(const TargetPass& pass) override {
    ++runs;
    rows += pass.plan.rows;
    if (!fail.ok()) return fail;
    if (pass.cancel != nullptr && pass.cancel->load()) {
      return absl::CancelledError("cancelled");
    }
    tokens_.resize(pass.plan.position + pass.plan.rows);
    for (int32_t t = 0; t < pass.plan.rows; ++t) {
      tokens_[pass.plan.position + t] = pass.tokens[t];
      if (pass.taps != nullptr) {
        pass.taps[t] = static_cast<float>(pass.plan.position + t);
      }
      if (pass.logits == nullptr) continue;
      float* row = pass.logits + t * kVocabSize;
      for (int32_t v = 0; v < kVocabSize; ++v) row[v] = 0;
      const int64_t position = pass.plan.position + t;
      row[NextToken(absl::MakeConstSpan(tokens_).first(position + 1))] = 1;
      if (position == broken_position) {
        row[3] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    return absl::OkStatus();
  }
  absl::Status Head(const float*, int32_t, float*) override {
    return absl::UnimplementedError("no draft model here");
  }
  void Embed(absl::Span<const TokenId>, float*) const override {}
  const TargetConfig& config() const override { return config_; }
  int32_t max_rows() const override { return 8; }
  int64_t packed_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }

  int runs = 0;
  int64_t rows = 0;
  absl::Status fail;             // What Run() answers, if not OK.
  int64_t broken_position = -1;  // Its scores are not numbers.

 private:
  TargetConfig config_;
  std::vector<TokenId> tokens_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_
