// SPDX-License-Identifier: Apache-2.0

#include "engine/model/fingerprint.h"

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/tokenizer_tables.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;

const std::vector<float> kNorm = {1, 2, 3, 4};
const std::vector<float> kFirst = {5, 6, 7, 8};
const std::vector<float> kLast = {9, 10, 11, 12};

uint64_t OfTarget(const ModelContents& contents) {
  return TargetFingerprint(contents.target, contents.tokenizer, kNorm, kFirst,
                           kLast);
}

uint64_t OfDraft(const ModelContents& contents) {
  return DraftFingerprint(contents.draft, contents.target_fingerprint, kNorm,
                          kNorm, kFirst, kLast);
}

// Stored in files: these numbers never change. FORMAT.md names the first.
TEST(FingerprintTest, IsStable) {
  EXPECT_EQ(OfTarget(TinyTarget()), 0xfd4e835042167cd6u);
  EXPECT_EQ(OfDraft(TinyDraft()), 0x7fedb247966712d0u);
  EXPECT_EQ(OfTarget(TinyMoeTarget()), 0x18dd4fdac0cd2c6bu);
}

TEST(FingerprintTest, EverythingThatCountsChangesIt) {
  using C = ModelContents;
  const std::vector<std::function<void(C*)>> changes = {
      [](C* c) { c->target.vocab_size++; },
      [](C* c) { c->target.hidden_size++; },
      [](C* c) { c->target.intermediate_size++; },
      [](C* c) { c->target.rms_norm_eps *= 2; },
      [](C* c) { c->target.tied_head = true; },
      [](C* c) { c->target.gdn.key_heads++; },
      [](C* c) { c->target.gdn.value_heads++; },
      [](C* c) { c->target.gdn.key_dim++; },
      [](C* c) { c->target.gdn.value_dim++; },
      [](C* c) { c->target.gdn.conv_width++; },
      [](C* c) { c->target.attention.query_heads++; },
      [](C* c) { c->target.attention.kv_heads++; },
      [](C* c) { c->target.attention.head_dim++; },
      [](C* c) { c->target.attention.rotary_dim++; },
      [](C* c) { c->target.attention.rope_theta++; },
      [](C* c) { c->target.layers[0] = LayerKind::kFullAttention; },
      [](C* c) { c->target.layers.pop_back(); },
      [](C* c) { c->tokenizer.reset(); },
      [](C* c) { c->tokenizer->token_bytes[0] = "c"; },
      [](C* c) { c->tokenizer->token_bytes.pop_back(); },
      [](C* c) { c->tokenizer->merges.clear(); },
      [](C* c) { c->tokenizer->merges[0].left++; },
      [](C* c) { c->tokenizer->added.pop_back(); },
      [](C* c) { c->tokenizer->added[0].special = false; },
      [](C* c) { c->tokenizer->added[0].normalized = true; },
      [](C* c) { c->tokenizer->pretokenizer += "x"; },
      [](C* c) { c->tokenizer->nfc = false; },
      [](C* c) { c->tokenizer->ignore_merges = true; },
  };
  std::set<uint64_t> seen = {OfTarget(TinyTarget())};
  for (size_t i = 0; i < changes.size(); ++i) {
    C contents = TinyTarget();
    changes[i](&contents);
    EXPECT_TRUE(seen.insert(OfTarget(contents)).second) << i;
  }
  const C sound = TinyTarget();
  for (int which = 0; which < 3; ++which) {
    std::vector<float> values[] = {kNorm, kFirst, kLast};
    values[which][3] = -values[which][3];
    EXPECT_TRUE(seen.insert(TargetFingerprint(sound.target, sound.tokenizer,
                                              values[0], values[1], values[2]))
                    .second);
  }
}

TEST(FingerprintTest, EverythingOfAMixtureChangesIt) {
  using C = ModelContents;
  const std::vector<std::function<void(C*)>> changes = {
      [](C* c) { c->target.moe = MoeConfig(); },
      [](C* c) { c->target.moe.experts++; },
      [](C* c) { c->target.moe.experts_per_token--; },
      [](C* c) { c->target.moe.expert_size++; },
      [](C* c) { c->target.moe.shared_size++; },
      [](C* c) { c->target.moe.normalise = false; },
      [](C* c) { c->target.moe.layers[1] = true; },
      [](C* c) { c->target.moe.layers[0] = false; },
  };
  std::set<uint64_t> seen = {OfTarget(TinyMoeTarget())};
  for (size_t i = 0; i < changes.size(); ++i) {
    C contents = TinyMoeTarget();
    changes[i](&contents);
    EXPECT_TRUE(seen.insert(OfTarget(contents)).second) << i;
  }
}

TEST(FingerprintTest, WhatDoesNotCountLeavesIt) {
  ModelContents contents = TinyTarget();
  contents.target.name = "another";
  contents.target.max_context = 7;
  contents.converter = "another";
  contents.chat.reset();
  contents.stop_tokens.clear();
  EXPECT_EQ(OfTarget(contents), OfTarget(TinyTarget()));
}

TEST(FingerprintTest, EverythingOfADraftChangesIt) {
  using C = ModelContents;
  const std::vector<std::function<void(C*)>> changes = {
      [](C* c) { c->draft.vocab_size++; },
      [](C* c) { c->draft.hidden_size++; },
      [](C* c) { c->draft.intermediate_size++; },
      [](C* c) { c->draft.block_size++; },
      [](C* c) { c->draft.mask_token--; },
      [](C* c) { c->draft.rms_norm_eps *= 2; },
      [](C* c) { c->draft.attention.head_dim++; },
      [](C* c) { c->draft.sliding_mask = SlidingMask::kCausal; },
      [](C* c) { c->draft.layers.pop_back(); },
      [](C* c) { c->draft.layers[0].sliding_window = 5; },
      [](C* c) {
        c->draft.target_layers = {1, 0};
      },
      [](C* c) { c->draft.target_layer_count++; },
      [](C* c) { c->target_fingerprint++; },
  };
  std::set<uint64_t> seen = {OfDraft(TinyDraft())};
  for (size_t i = 0; i < changes.size(); ++i) {
    C contents = TinyDraft();
    changes[i](&contents);
    EXPECT_TRUE(seen.insert(OfDraft(contents)).second) << i;
  }
}

}  // namespace
}  // namespace deltaedge
