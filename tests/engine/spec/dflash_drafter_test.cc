// SPDX-License-Identifier: Apache-2.0

// Whatever a drafter went through, it proposes, to the bit, what one does that
// was shown the sequence at once: prompts in pieces, blocks kept in part,
// drafting paused, company, copies, cancels.

#include "engine/spec/dflash_drafter.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/graph/draft_model.h"
#include "engine/state/sequence_state.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/draft_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::DraftPair;
using testing::Random;
using testing::SameBits;

constexpr int64_t kTokens = 320;  // Of the longest sequence.
constexpr int32_t kTapRows = DFlashContext::kTapRows;

struct Files {
  const char* target;
  const char* draft;
};

// What a session would tell its drafter. Sequences of one seed have the same
// tokens and tapped rows; those of rejected drafts are noise.
class Sequence {
 public:
  Sequence(const DraftPair& pair, DraftModel* model, int64_t capacity,
           uint64_t seed)
      : pair_(pair),
        seed_(seed),
        random_(seed),
        taps_(pair.Taps(kTokens, seed)) {
    auto created = DFlashDrafter::Create(model, capacity);
    EXPECT_TRUE(created.ok()) << created.status();
    drafter = *std::move(created);
    DFlashContext& context = *drafter->context();
    pair.Dirty(capacity, &context.kv);
    std::fill(context.taps.begin(), context.taps.end(),
              std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i <= kTokens; ++i) {
      tokens_.push_back(random_.Int(0, pair.config().vocab_size - 1));
    }
  }

  absl::Status Prefill(int32_t rows,
                       const std::atomic<bool>* cancel = nullptr) {
    const BlockPlan plan = {covered, rows};
    const absl::Status status = drafter->ObservePrefill(
        plan, taps_.data() + covered * pair_.tap_floats(), cancel);
    if (status.ok()) covered += rows;
    return status;
  }

  // The target ran `rows` rows, of which the first `kept` are the sequence's.
  absl::Status Block(int32_t rows, int32_t kept,
                     const std::atomic<bool>* cancel = nullptr) {
    const BlockPlan plan = {covered, rows};
    std::vector<float> block = pair_.Taps(rows, random_.Bits());
    std::copy_n(taps_.data() + covered * pair_.tap_floats(),
                kept * pair_.tap_floats(), block.data());
    const absl::Status status =
        drafter->ObserveBlock(plan, block.data(), cancel);
    if (status.ok()) covered += kept;
    return status;
  }

  absl::Span<const TokenId> tokens() const {
    return absl::MakeConstSpan(tokens_).first(covered + 1);
  }
  absl::Status Propose(int32_t drafts,
                       const std::atomic<bool>* cancel = nullptr) {
    proposed.clear();
    return drafter->Propose(tokens(), drafts, cancel, &proposed);
  }
  DFlashDrafter::Request Request(int32_t drafts) {
    proposed.clear();
    return {drafter.get(), tokens(), drafts, &proposed};
  }

  // Context and block after a proposal.
  std::vector<float> Rows() {
    DFlashContext& context = *drafter->context();
    EXPECT_EQ(context.length, covered);
    return pair_.Rows(covered + 1 + static_cast<int64_t>(proposed.size()),
                      context.capacity, &context.kv);
  }

  int64_t pending() const { return covered - drafter->context()->length; }
  uint64_t seed() const { return seed_; }

  std::unique_ptr<DFlashDrafter> drafter;
  int64_t covered = 0;  // Tokens that the target has processed.
  std::vector<TokenId> proposed;

 private:
  const DraftPair& pair_;
  const uint64_t seed_;
  Random random_;
  const std::vector<float> taps_;
  std::vector<TokenId> tokens_;
};

class DFlashDrafterTest : public ::testing::TestWithParam<Files> {
 protected:
  DFlashDrafterTest()
      : pair_(GetParam().target, GetParam().draft),
        model_(pair_.NewModel()),
        most_(pair_.config().block_size - 1) {}

  Sequence NewSequence(uint64_t seed, int64_t capacity = kTokens) {
    return Sequence(pair_, model_.get(), capacity, seed);
  }

  // That the last proposal is the one from scratch.
  void ExpectFromScratch(Sequence& sequence) {
    Sequence scratch = NewSequence(sequence.seed());
    if (sequence.covered > 0) {
      ASSERT_TRUE(scratch.Prefill(static_cast<int32_t>(sequence.covered)).ok());
    }
    ASSERT_TRUE(
        scratch.Propose(static_cast<int32_t>(sequence.proposed.size())).ok());
    EXPECT_FALSE(sequence.proposed.empty());
    EXPECT_EQ(sequence.proposed, scratch.proposed);
    EXPECT_EQ(sequence.drafter->margins().size(), sequence.proposed.size());
    EXPECT_EQ(sequence.drafter->margins(), scratch.drafter->margins());
    EXPECT_TRUE(SameBits(sequence.Rows(), scratch.Rows()));
  }

  void Propose(Sequence& sequence, int32_t drafts) {
    ASSERT_TRUE(sequence.Propose(drafts).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectFromScratch(sequence));
  }

  // One random thing that a session may do.
  void Act(Sequence& sequence, Random& random) {
    if (random.OneIn(8)) {
      ASSERT_TRUE(sequence.Prefill(random.Int(1, 20)).ok());
    } else if (random.OneIn(4)) {
      Propose(sequence, random.Int(1, most_));
    } else {
      const int32_t rows = random.Int(1, 1 + most_);
      ASSERT_TRUE(sequence.Block(rows, random.Int(0, rows)).ok());
    }
  }

  DraftPair pair_;
  std::unique_ptr<DraftModel> model_;
  const int32_t most_;  // Drafts.
};

TEST_P(DFlashDrafterTest, AnyHistoryProposesAsFromScratch) {
  const uint64_t histories =
      testing::FewerIfEmulated<uint64_t>("histories", 6, 2);
  for (uint64_t seed = 0; seed < histories; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Sequence sequence = NewSequence(seed);
    while (sequence.covered < kTokens - 40) {
      ASSERT_NO_FATAL_FAILURE(Act(sequence, random));
    }
    Propose(sequence, most_);
  }
}

// Drafting paused for so long that taps no longer fit.
TEST_P(DFlashDrafterTest, TapsThatDoNotFitAreInjected) {
  Sequence sequence = NewSequence(1);
  for (int i = 0; i < 2 * kTapRows + 5; ++i) {
    ASSERT_TRUE(sequence.Block(1, 1).ok());
    ASSERT_LE(sequence.pending(), kTapRows);
  }
  Propose(sequence, most_);
  ASSERT_TRUE(sequence.Block(1 + most_, 0).ok());
  Propose(sequence, most_);
}

TEST_P(DFlashDrafterTest, FewerRowsMayBeKeptAfterAll) {
  Sequence sequence = NewSequence(1);
  ASSERT_TRUE(sequence.Prefill(9).ok());
  const int32_t rows = 1 + most_;
  for (const bool propose : {true, false}) {
    ASSERT_TRUE(sequence.Block(rows, 2).ok());
    sequence.covered += rows - 2;
    ASSERT_TRUE(sequence.Propose(most_).ok());
    sequence.covered -= rows - 2;
    if (propose) Propose(sequence, most_);
    for (int i = 0; i < rows; ++i) ASSERT_TRUE(sequence.Block(1, 1).ok());
    Propose(sequence, most_);
  }
  sequence.drafter->Reset();
  sequence.covered = 0;
  Propose(sequence, most_);
}

TEST_P(DFlashDrafterTest, TogetherAsAlone) {
  for (int count = 1; count <= 5; ++count) {
    SCOPED_TRACE(count);
    Random random(static_cast<uint64_t>(count));
    std::vector<Sequence> sequences;
    for (int i = 0; i < count; ++i) {
      sequences.push_back(
          NewSequence(static_cast<uint64_t>(10 + i), kTokens + 7 * i));
    }
    for (int round = 0; round < 4; ++round) {
      std::vector<DFlashDrafter::Request> requests;
      for (Sequence& sequence : sequences) {
        for (int acts = random.Int(0, 6); acts > 0; --acts) {
          ASSERT_NO_FATAL_FAILURE(Act(sequence, random));
        }
        // Sometimes more than the draft can.
        requests.push_back(sequence.Request(random.Int(1, most_ + 2)));
      }
      ASSERT_TRUE(DFlashDrafter::ProposeMany(requests, {}).ok());
      for (Sequence& sequence : sequences) {
        ASSERT_NO_FATAL_FAILURE(ExpectFromScratch(sequence));
      }
    }
  }
  EXPECT_TRUE(DFlashDrafter::ProposeMany({}, {}).ok());
}

// Case C17, S2: a copy, and what it was made from, go on as if there had been
// none, whatever was in the ring; by way of a snapshot just large enough.
TEST_P(DFlashDrafterTest, ACopyAtAnyMomentGoesOnTheSame) {
  int none_pending = 0, some_pending = 0, wrapped = 0, rejected = 0, fewer = 0;
  const auto copy = [&](Sequence& source, int64_t covered) {
    const int64_t length = std::min(source.drafter->context()->length, covered);
    ++(length == covered ? none_pending : some_pending);
    wrapped += length / kTapRows != covered / kTapRows && length < covered;
    fewer += covered < source.drafter->context()->length;
    auto snapshot = DFlashContext::Create(pair_.config(), covered);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    snapshot->CopyFrom(*source.drafter->context(), covered);
    // Of another capacity, and not unused.
    Sequence fork = NewSequence(source.seed(), kTokens + 33);
    ASSERT_TRUE(fork.Prefill(31).ok());
    fork.drafter->context()->CopyFrom(*snapshot, covered);
    fork.covered = covered;
    EXPECT_EQ(fork.drafter->context()->length, length);
    Propose(fork, most_);
    ASSERT_TRUE(fork.Block(1 + most_, 2).ok());
    Propose(fork, most_);
  };
  for (uint64_t seed = 0; seed < 2; ++seed) {
    Random random(seed);
    Sequence source = NewSequence(seed);
    while (source.covered < kTokens / 2) {
      ASSERT_NO_FATAL_FAILURE(copy(source, source.covered));
      // A block of which it is not known yet what stays.
      const int64_t start = source.covered;
      const int32_t rows = 1 + most_;
      ASSERT_TRUE(source.Block(rows, rows).ok());
      const int32_t kept = random.Int(0, rows);
      for (const int32_t asked : {0, 1, kept, rows}) {
        ASSERT_NO_FATAL_FAILURE(copy(source, start + asked));
      }
      rejected += kept < rows;
      if (random.OneIn(3)) Propose(source, most_);
      source.covered = start + kept;
      ASSERT_NO_FATAL_FAILURE(copy(source, source.covered));
      ASSERT_NO_FATAL_FAILURE(Act(source, random));
    }
    Propose(source, most_);
  }
  for (const int times :
       {none_pending, some_pending, wrapped, rejected, fewer}) {
    EXPECT_GT(times, 0);
  }
}

// Case: taps injected twice after a cancel.
TEST_P(DFlashDrafterTest,
       ACancelBetweenInjectingAndDraftingInjectsNothingTwice) {
  Sequence a = NewSequence(1), b = NewSequence(2);
  for (Sequence* sequence : {&a, &b}) {
    ASSERT_TRUE(sequence->Prefill(60).ok());
    ASSERT_TRUE(sequence->Block(1 + most_, 6).ok());
  }
  std::atomic<bool> cancel{false};
  DraftModel::Trace trace;
  model_->set_trace(&trace);
  pair_.target().on_embed = [&cancel] { cancel = true; };
  std::vector<DFlashDrafter::Request> requests = {a.Request(most_),
                                                  b.Request(1)};
  EXPECT_TRUE(absl::IsCancelled(DFlashDrafter::ProposeMany(requests, &cancel)));
  pair_.target().on_embed = nullptr;
  const size_t row = static_cast<size_t>(pair_.config().hidden_size);
  EXPECT_EQ(trace.context.size(), 2 * 6 * row);
  EXPECT_TRUE(absl::IsCancelled(DFlashDrafter::ProposeMany(requests, &cancel)));
  cancel = false;
  ASSERT_TRUE(DFlashDrafter::ProposeMany(requests, &cancel).ok());
  EXPECT_EQ(trace.context.size(), 2 * 6 * row);
  ASSERT_TRUE(a.Propose(2).ok());
  EXPECT_EQ(trace.context.size(), 2 * 6 * row);
  model_->set_trace(nullptr);
  ExpectFromScratch(a);
  ExpectFromScratch(b);
}

// Abandoned behind any layer of an injection or a block, prompt chunks
// included: what a model of the first layers does to the same context.
TEST_P(DFlashDrafterTest, AbandonedBehindAnyLayerThenAgain) {
  const std::atomic<bool> cancel{true};
  for (int32_t layers = 0; layers <= pair_.layers(); ++layers) {
    SCOPED_TRACE(layers);
    const std::unique_ptr<DraftModel> first = pair_.NewModel(layers);
    Sequence sequence = NewSequence(1);
    const auto abandon = [&](const float* taps, int64_t position,
                             int32_t rows) {
      DFlashContext& context = *sequence.drafter->context();
      std::vector<TokenId> out(most_);
      const DraftInjection injection = {taps, position, rows, context.capacity,
                                        &context.kv};
      const DraftRequest request = {
          1,           position + rows, most_,     context.capacity,
          &context.kv, nullptr,         out.data()};
      ASSERT_TRUE(first->Inject({&injection, 1}, {}).ok());
      ASSERT_TRUE(first->Draft({&request, 1}, {}).ok());
    };
    const std::vector<float> noise = pair_.Taps(30, 77);
    ASSERT_TRUE(sequence.Prefill(50).ok());
    ASSERT_TRUE(sequence.Block(1 + most_, 5).ok());
    const int64_t length = sequence.drafter->context()->length;
    EXPECT_TRUE(absl::IsCancelled(sequence.Prefill(30, &cancel)));
    EXPECT_EQ(sequence.drafter->context()->length, length);
    abandon(noise.data(), length, 30);
    EXPECT_TRUE(absl::IsCancelled(sequence.Propose(most_, &cancel)));
    EXPECT_EQ(sequence.drafter->context()->length, length);
    abandon(noise.data(), length, 5);
    Propose(sequence, most_);
    abandon(noise.data(), sequence.covered, 7);
    ASSERT_TRUE(sequence.Prefill(30).ok());
    Propose(sequence, most_);
    // Taps that do not fit.
    for (int i = 0; i < kTapRows; ++i) ASSERT_TRUE(sequence.Block(1, 1).ok());
    EXPECT_TRUE(absl::IsCancelled(sequence.Block(2, 2, &cancel)));
    Propose(sequence, most_);
  }
}

TEST_P(DFlashDrafterTest, RefusedMemoryIsAnErrorAndNothingElse) {
  const int64_t live = LiveAllocatedBytes();
  int64_t allocations = AllocationCount();
  {
    auto drafter = DFlashDrafter::Create(model_.get(), 100);
    ASSERT_TRUE(drafter.ok());
    allocations = AllocationCount() - allocations;
    // Each of them has a readable tail and is rounded up.
    const int64_t bytes = DFlashContext::Bytes(pair_.config(), 100);
    EXPECT_GE(LiveAllocatedBytes() - live, bytes);
    EXPECT_LE(LiveAllocatedBytes() - live, bytes + 128 * allocations);
  }
  EXPECT_EQ(LiveAllocatedBytes(), live);
  for (int64_t nth = 1; nth <= allocations; ++nth) {
    const ScopedAllocationFailure failure(nth);
    EXPECT_TRUE(absl::IsResourceExhausted(
        DFlashDrafter::Create(model_.get(), 100).status()));
    EXPECT_EQ(LiveAllocatedBytes(), live);
  }

  // The buffers of a pass, grown for company: refused, alone, together.
  for (int64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 100);
    model_ = pair_.NewModel();
    Sequence a = NewSequence(1), b = NewSequence(2), c = NewSequence(3);
    std::vector<DFlashDrafter::Request> requests;
    for (Sequence* sequence : {&a, &b, &c}) {
      ASSERT_TRUE(sequence->Block(1 + most_, 4).ok());
      requests.push_back(sequence->Request(most_));
    }
    absl::Status status;
    {
      const ScopedAllocationFailure failure(nth);
      status = DFlashDrafter::ProposeMany(requests, {});
    }
    if (status.ok()) {
      EXPECT_GT(nth, 2);
      break;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    Propose(b, most_);
    ASSERT_TRUE(DFlashDrafter::ProposeMany(requests, {}).ok());
    for (Sequence* sequence : {&a, &b, &c}) ExpectFromScratch(*sequence);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DFlashDrafterTest,
                         ::testing::Values(Files{"odd", "odd_draft"},
                                           Files{"t", "t_draft_symmetric"}),
                         [](const auto& info) {
                           return std::string(info.param.draft);
                         });

}  // namespace
}  // namespace deltaedge
