// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_DRAFT_PAIR_H_
#define DELTAEDGE_TESTS_TESTING_DRAFT_PAIR_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/graph/draft_model.h"
#include "engine/graph/target_model.h"
#include "engine/model/model_file.h"
#include "engine/state/kv_store.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "kernels/attn/attention.h"
#include "kernels/logits/argmax.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/random.h"

namespace deltaedge::testing {

// A target's embedding table and output matrix, which are all that a draft
// uses, and a look at the moment between injecting and drafting.
class WatchedTarget : public TargetModel {
 public:
  explicit WatchedTarget(std::unique_ptr<TargetModel> target)
      : target_(std::move(target)) {}

  absl::Status Run(absl::Span<const TargetPass> passes) override {
    return target_->Run(passes);
  }
  absl::Status Head(const float* x, int32_t rows, float* logits, ArgMax* best,
                    float* second) override {
    return target_->Head(x, rows, logits, best, second);
  }
  void Embed(absl::Span<const TokenId> tokens, float* x) const override {
    if (on_embed) on_embed();
    target_->Embed(tokens, x);
  }
  const TargetConfig& config() const override { return target_->config(); }
  int32_t max_rows() const override { return target_->max_rows(); }
  int64_t packed_bytes() const override { return target_->packed_bytes(); }
  int64_t scratch_bytes() const override { return target_->scratch_bytes(); }

  std::function<void()> on_embed;

 private:
  const std::unique_ptr<TargetModel> target_;
};

// A draft with its target, and rows for it to look at: tapped rows are random
// here, since a draft does not care where they come from.
class DraftPair {
 public:
  // Names of files below tests/testdata/models, without ".gdn".
  DraftPair(const std::string& target, const std::string& draft) {
    const std::string folder = "tests/testdata/models/";
    auto target_file = ModelFile::Open(Runfile(folder + target + ".gdn"));
    auto draft_file = ModelFile::Open(Runfile(folder + draft + ".gdn"));
    EXPECT_TRUE(target_file.ok()) << target_file.status();
    EXPECT_TRUE(draft_file.ok()) << draft_file.status();
    target_file_ = *std::move(target_file);
    draft_file_ = *std::move(draft_file);
    auto model =
        MakeTargetModel(target_file_->target_config(),
                        target_file_->target_weights(), config().target_layers,
                        /*max_rows=*/16, {}, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    target_ = std::make_unique<WatchedTarget>(*std::move(model));
  }

  // Of all layers, or of the first few: what a pass that was abandoned behind
  // them has done.
  std::unique_ptr<DraftModel> NewModel(int32_t layers = 1 << 30) {
    DraftConfig part = config();
    DraftWeights weights = draft_file_->draft_weights();
    if (layers < static_cast<int32_t>(part.layers.size())) {
      part.layers.resize(layers);
      weights.layers.resize(layers);
    }
    auto model = DraftModel::Create(part, weights, target_.get(),
                                    /*max_rows=*/16, {}, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // `rows` tapped rows, with the readable bytes behind.
  std::vector<float> Taps(int64_t rows, uint64_t seed) const {
    Random random(seed);
    return random.Gaussians(rows * tap_floats() + 16);
  }

  // Filled with what must never be looked at.
  KvStore DirtyKv(int64_t capacity) const {
    auto kv = KvStore::Create(DraftKvShape(config(), capacity));
    EXPECT_TRUE(kv.ok());
    Dirty(capacity, &*kv);
    return *std::move(kv);
  }
  void Dirty(int64_t capacity, KvStore* kv) const {
    const std::vector<float> row(config().attention.keys(),
                                 std::numeric_limits<float>::quiet_NaN());
    for (int32_t i = 0; i < layers(); ++i) {
      KvWrite(View(i, capacity, kv), 0, static_cast<int32_t>(capacity),
              row.data(), 0, row.data(), 0);
    }
  }

  // The first `rows` rows of all layers, [layers][keys, values].
  std::vector<float> Rows(int64_t rows, int64_t capacity, KvStore* kv) const {
    const int64_t floats = rows * config().attention.keys();
    std::vector<float> all(2 * floats * layers());
    for (int32_t i = 0; i < layers(); ++i) {
      float* keys = all.data() + 2 * i * floats;
      KvRead(View(i, capacity, kv), 0, static_cast<int32_t>(rows), keys,
             keys + floats);
    }
    return all;
  }

  WatchedTarget& target() { return *target_; }
  const DraftConfig& config() const { return draft_file_->draft_config(); }
  int32_t layers() const {
    return static_cast<int32_t>(config().layers.size());
  }
  int64_t tap_floats() const {
    return static_cast<int64_t>(config().target_layers.size()) *
           config().hidden_size;
  }

 private:
  KvView View(int32_t layer, int64_t capacity, KvStore* kv) const {
    return {kv->keys(layer), kv->values(layer), config().attention.kv_heads,
            config().attention.head_dim, capacity};
  }

  std::unique_ptr<ModelFile> target_file_, draft_file_;
  std::unique_ptr<WatchedTarget> target_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_DRAFT_PAIR_H_
