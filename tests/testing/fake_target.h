// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_
#define DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/graph/target_model.h"
#include "engine/types.h"
#include "kernels/logits/argmax.h"
#include "kernels/logits/argmax_reference.h"

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

  using TargetModel::Run;
  absl::Status Run(absl::Span<const TargetPass> passes) override {
    ++runs;
    std::vector<int32_t>& shape = shapes.emplace_back();
    for (const TargetPass& pass : passes) {
      shape.push_back(pass.spare == nullptr ? pass.plan.rows : -pass.plan.rows);
    }
    if (!fail.ok()) return fail;
    if (passes.size() > 1 && !fail_shared.ok()) return fail_shared;
    bool cancelled = true;
    for (const TargetPass& pass : passes) {
      rows += pass.plan.rows;
      cancelled &= pass.cancel != nullptr && pass.cancel->load();
    }
    if (cancelled) return absl::CancelledError("cancelled");
    for (const TargetPass& pass : passes) RunOne(pass);
    if (after_run) after_run();
    return absl::OkStatus();
  }
  absl::Status Head(const float*, int32_t, float*, ArgMax*, float*) override {
    return absl::UnimplementedError("no draft model here");
  }
  void Embed(absl::Span<const TokenId>, float*) const override {}
  const TargetConfig& config() const override { return config_; }
  int32_t max_rows() const override { return max; }
  int64_t packed_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }

  int runs = 0;
  int64_t rows = 0;
  int64_t score_rows = 0;                    // Whose scores were kept.
  std::vector<std::vector<int32_t>> shapes;  // Rows of each run; chunks: -rows.
  int32_t max = 8;                           // max_rows()
  std::function<void()> after_run;           // Called when a run has succeeded.
  absl::Status fail;                         // What Run() answers, if not OK.
  absl::Status fail_shared;                  // The same, to several passes.
  int64_t broken_position = -1;              // Its scores are not numbers.
  const TargetSequence* broken_sequence = nullptr;  // Null: of all sequences.

 private:
  void RunOne(const TargetPass& pass) {
    std::vector<TokenId>& tokens = tokens_[pass.sequence];
    tokens.resize(pass.plan.position + pass.plan.rows);
    for (int32_t t = 0; t < pass.plan.rows; ++t) {
      tokens[pass.plan.position + t] = pass.tokens[t];
      if (pass.taps != nullptr) {
        pass.taps[t] = static_cast<float>(pass.plan.position + t);
      }
      float row[kVocabSize] = {};
      const int64_t position = pass.plan.position + t;
      row[NextToken(absl::MakeConstSpan(tokens).first(position + 1))] = 1;
      if (position == broken_position &&
          (broken_sequence == nullptr || broken_sequence == pass.sequence)) {
        row[3] = std::numeric_limits<float>::quiet_NaN();
      }
      if (pass.best != nullptr) {
        pass.best[t] = ArgMaxReference(kVocabSize, row);
      }
      if (pass.logits != nullptr) {
        ++score_rows;
        std::copy_n(row, kVocabSize, pass.logits + t * kVocabSize);
      }
    }
  }

  TargetConfig config_;
  std::map<const TargetSequence*, std::vector<TokenId>> tokens_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TESTS_TESTING_FAKE_TARGET_H_
