// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/stepper.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/base/cancel_flags.h"
#include "engine/graph/target_sequence.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_target.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

// Proposes the target's own future, wrong from draft `right` on, and records
// what it is shown.
class Scripted : public BlockDrafter {
 public:
  bool wants_taps() const override { return taps; }
  absl::Status Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       CancelFlags, std::vector<TokenId>* drafts) override {
    asked.push_back(max_drafts);
    if (!answer.ok()) return answer;
    std::vector<TokenId> future(sequence.begin(), sequence.end());
    const int32_t count = std::min(max_drafts, propose);
    for (int32_t i = 0; i < count + surplus; ++i) {
      future.push_back(FakeTarget::NextToken(future));
      drafts->push_back(i == right
                            ? (future.back() + 1) % FakeTarget::kVocabSize
                            : future.back());
    }
    if (bad_id) drafts->back() = *bad_id;
    return absl::OkStatus();
  }
  absl::Status ObserveBlock(const BlockPlan& plan, const float* rows,
                            CancelFlags) override {
    ExpectTaps(plan, rows);
    blocks.push_back(plan.rows);
    return observe;
  }
  absl::Status ObservePrefill(const BlockPlan& plan, const float* rows,
                              CancelFlags) override {
    ExpectTaps(plan, rows);
    chunks.push_back(plan.rows);
    return observe;
  }
  void Review(absl::Span<const TokenId>, const CostCurve&,
              std::vector<TokenId>* drafts) override {
    reviewed.push_back(static_cast<int32_t>(drafts->size()));
    if (review) review(drafts);
  }
  void Reset() override {}

  void ExpectTaps(const BlockPlan& plan, const float* rows) const {
    ASSERT_EQ(rows != nullptr, taps);
    for (int32_t t = 0; taps && t < plan.rows; ++t) {
      EXPECT_EQ(rows[t], plan.position + t);
    }
  }

  bool taps = false;
  int32_t propose = 100;  // Drafts, at most.
  int32_t surplus = 0;    // Drafts beyond what was asked for.
  int32_t right = 100;    // The first wrong draft.
  std::optional<TokenId> bad_id;
  absl::Status answer, observe;
  std::function<void(std::vector<TokenId>*)> review;
  std::vector<int32_t> asked, reviewed, blocks, chunks;
};

class StepperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto sequence = MakeTargetSequence(target_.config(), /*capacity=*/64,
                                       /*block_rows=*/8);
    ASSERT_TRUE(sequence.ok());
    state_ = std::make_unique<TargetSequence>(*std::move(sequence));
    auto stepper = Stepper::Create(&target_, /*tap_floats=*/1,
                                   /*max_block=*/16);
    ASSERT_TRUE(stepper.ok());
    stepper_ = *std::move(stepper);
  }

  absl::Status TryStep(int32_t max_drafts) {
    StepItem item;
    item.sequence = tokens_;
    item.max_drafts = max_drafts;
    item.stop_tokens = stop_tokens_;
    item.state = state_.get();
    item.drafter = &drafter_;
    item.sampler = &sampler_;
    item.cancel = &cancel_;
    item.result = &result_;
    return stepper_->Step(item);
  }

  absl::Status TryPrefill(absl::Span<const TokenId> tokens) {
    StepItem item;
    item.chunk = tokens;
    item.state = state_.get();
    item.drafter = &drafter_;
    item.cancel = &cancel_;
    item.result = &result_;
    return stepper_->Step(item);
  }

  // Runs a step and delivers the first `delivered` tokens, all by default.
  void Step(int32_t max_drafts, int32_t delivered = 100) {
    result_ = {};
    const absl::Status status = TryStep(max_drafts);
    ASSERT_TRUE(status.ok()) << status;
    delivered = std::min<int32_t>(delivered, result_.tokens.size());
    ASSERT_TRUE(state_->cursor.Keep(delivered).ok());
    tokens_.insert(tokens_.end(), result_.tokens.begin(),
                   result_.tokens.begin() + delivered);
  }

  void ExpectOracle() {
    std::vector<TokenId> oracle = {5};
    while (oracle.size() < tokens_.size()) {
      oracle.push_back(FakeTarget::NextToken(oracle));
    }
    EXPECT_EQ(tokens_, oracle);
    EXPECT_EQ(state_->cursor.length(),
              static_cast<int64_t>(tokens_.size()) - 1);
  }

  FakeTarget target_;
  std::unique_ptr<TargetSequence> state_;
  std::unique_ptr<Stepper> stepper_;
  Scripted drafter_;
  Sampler sampler_;
  std::vector<TokenId> stop_tokens_;
  std::atomic<bool> cancel_{false};
  std::vector<TokenId> tokens_ = {5};
  StepResult result_;
};

TEST_F(StepperTest, EveryAgreementLength) {
  for (int32_t right = 0; right <= 7; ++right) {
    drafter_.right = right;
    Step(7);
    EXPECT_EQ(result_.drafted, 7);
    EXPECT_EQ(result_.accepted, right);
    EXPECT_EQ(static_cast<int32_t>(result_.tokens.size()), right + 1);
    ExpectOracle();
  }
}

TEST_F(StepperTest, NothingDraftedIsPlainDecoding) {
  for (int i = 0; i < 5; ++i) Step(0);
  EXPECT_TRUE(drafter_.asked.empty());
  EXPECT_EQ(target_.rows, 5);
  ExpectOracle();
}

TEST_F(StepperTest, ADrafterMaySayLess) {
  for (const int32_t propose : {0, 3, 1, 7}) {
    drafter_.propose = propose;
    Step(7);
    EXPECT_EQ(result_.drafted, propose);
    ExpectOracle();
  }
}

TEST_F(StepperTest, MoreDraftsThanAskedForAreIgnored) {
  drafter_.surplus = 5;
  Step(3);
  EXPECT_EQ(result_.drafted, 3);
  ExpectOracle();
}

TEST_F(StepperTest, DraftsAreReviewedBeforeTheyAreVerified) {
  drafter_.surplus = 3;
  drafter_.review = [](std::vector<TokenId>* drafts) { drafts->resize(2); };
  Step(4);
  EXPECT_EQ(drafter_.reviewed.back(), 4) << "without the surplus";
  EXPECT_EQ(result_.drafted, 2);
  EXPECT_EQ(drafter_.blocks.back(), 3);
  drafter_.review = [](std::vector<TokenId>* drafts) {
    (*drafts)[1] = ((*drafts)[1] + 1) % FakeTarget::kVocabSize;
  };
  Step(4);
  EXPECT_EQ(result_.drafted, 4);
  EXPECT_EQ(result_.accepted, 1);
  drafter_.review = [](std::vector<TokenId>* drafts) { drafts->clear(); };
  Step(4);
  EXPECT_EQ(result_.drafted, 0);
  drafter_.review = [](std::vector<TokenId>* drafts) { drafts->back() = -1; };
  EXPECT_TRUE(absl::IsInvalidArgument(TryStep(4)));
  Step(0);
  EXPECT_EQ(drafter_.reviewed.size(), 4u) << "there was nothing to review";
  ExpectOracle();
}

TEST_F(StepperTest, NothingIsComputedBehindAStop) {
  std::vector<TokenId> future = tokens_;
  for (int i = 0; i < 3; ++i) future.push_back(FakeTarget::NextToken(future));
  stop_tokens_ = {future[3], future[2]};
  Step(7);
  EXPECT_EQ(drafter_.reviewed.back(), 1);
  EXPECT_EQ(result_.drafted, 1);
  EXPECT_EQ(result_.accepted, 1);
  EXPECT_EQ(result_.tokens, (std::vector<TokenId>{future[1], future[2]}));
  ExpectOracle();
}

TEST_F(StepperTest, BlocksShrinkWithTheSequenceAndTheContext) {
  Step(100);
  EXPECT_EQ(drafter_.asked.back(), 7) << "block_rows of the sequence";
  while (tokens_.size() < 62) Step(0);
  Step(7);
  // 61 positions are taken, 3 are free.
  EXPECT_EQ(drafter_.asked.back(), 2);
  ExpectOracle();
}

TEST_F(StepperTest, AFullContextIsOutOfRange) {
  while (tokens_.size() < 65) Step(0);
  const absl::Status status = TryStep(3);
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  ExpectOracle();
}

// Case C1, C3: any part of a block may turn out not to count.
TEST_F(StepperTest, DeliveringAnyPrefixGoesOnRight) {
  for (int32_t delivered = 0; delivered <= 8; ++delivered) {
    Step(7, delivered);
    Step(0);
    ExpectOracle();
  }
}

TEST_F(StepperTest, PrefillIsDecoding) {
  std::vector<TokenId> oracle = {5};
  while (oracle.size() < 20) oracle.push_back(FakeTarget::NextToken(oracle));
  for (size_t begin = 0; begin < 19; begin += 8) {
    const size_t rows = std::min<size_t>(8, 19 - begin);
    ASSERT_TRUE(
        TryPrefill(absl::MakeConstSpan(oracle).subspan(begin, rows)).ok());
  }
  tokens_ = oracle;
  Step(7);
  ExpectOracle();
  EXPECT_THAT(drafter_.chunks, ::testing::ElementsAre(8, 8, 3));
}

TEST_F(StepperTest, TapsReachTheDrafter) {
  drafter_.taps = true;
  Step(7);
  drafter_.right = 2;
  Step(7);
  EXPECT_THAT(drafter_.blocks, ::testing::ElementsAre(8, 8));
}

TEST_F(StepperTest, AnIdOutsideTheVocabularyIsNamed) {
  Step(7);
  for (const TokenId id : {-1, FakeTarget::kVocabSize, 1 << 30}) {
    drafter_.bad_id = id;
    const int runs = target_.runs;
    const absl::Status status = TryStep(3);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(id)));
    EXPECT_EQ(target_.runs, runs);
    drafter_.bad_id.reset();
    Step(3);
    ExpectOracle();
  }
}

TEST_F(StepperTest, AFailureAnywhereChangesNothing) {
  Step(7);
  const std::vector<absl::Status*> places = {&drafter_.answer, &target_.fail,
                                             &drafter_.observe};
  for (absl::Status* place : places) {
    *place = absl::ResourceExhaustedError("no memory");
    const absl::Status status = TryStep(7);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    *place = absl::OkStatus();
    Step(7, 3);
    ExpectOracle();
  }
  target_.fail = absl::ResourceExhaustedError("no memory");
  EXPECT_FALSE(TryPrefill({1, 2}).ok());
  target_.fail = absl::OkStatus();
  drafter_.observe = absl::ResourceExhaustedError("no memory");
  EXPECT_FALSE(TryPrefill({1, 2}).ok());
  drafter_.observe = absl::OkStatus();
  Step(7);
  ExpectOracle();
}

TEST_F(StepperTest, CancelIsCancelled) {
  Step(7);
  cancel_ = true;
  EXPECT_TRUE(absl::IsCancelled(TryStep(7)));
  cancel_ = false;
  Step(7);
  ExpectOracle();
}

// Scores that are not numbers are an error exactly where plain decoding meets
// them, never a token and never a lost one.
TEST_F(StepperTest, BrokenScoresStopAtTheSameTokenWithAndWithoutDrafts) {
  target_.broken_position = 9;
  for (const int32_t drafts : {0, 1, 3, 7}) {
    tokens_ = {5};
    SetUp();
    absl::Status status;
    while (status.ok()) {
      status = TryStep(drafts);
      if (!status.ok()) break;
      ASSERT_TRUE(
          state_->cursor.Keep(static_cast<int32_t>(result_.tokens.size()))
              .ok());
      tokens_.insert(tokens_.end(), result_.tokens.begin(),
                     result_.tokens.end());
    }
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("position 10"));
    EXPECT_EQ(tokens_.size(), 10u);
    ExpectOracle();
  }
}

// --- Several sequences -------------------------------------------------------

using ::testing::ElementsAre;

// One of several sequences: a StepperTest's without its stepper.
struct Party {
  explicit Party(FakeTarget& target, int32_t capacity = 256,
                 Rollback rollback = Rollback::kJournal)
      : state(*MakeTargetSequence(target.config(), capacity, /*block_rows=*/16,
                                  rollback)) {
    drafter.taps = true;
  }

  StepItem Block(int32_t max_drafts) {
    StepItem item = Item();
    item.sequence = tokens;
    item.max_drafts = max_drafts;
    item.sampler = &sampler;
    return item;
  }
  // Of tokens that follow, as the target would have them.
  StepItem Chunk(int32_t rows) {
    chunk.assign(1, tokens.back());
    std::vector<TokenId> all = tokens;
    for (int32_t i = 0; i < rows; ++i) {
      all.push_back(FakeTarget::NextToken(all));
      chunk.push_back(all.back());
    }
    StepItem item = Item();
    item.chunk = absl::MakeConstSpan(chunk).first(rows);
    return item;
  }

  // What `item` brought belongs to the sequence.
  void Take(const StepItem& item) {
    ASSERT_TRUE(item.status.ok()) << item.status;
    if (!item.chunk.empty()) {
      tokens.insert(tokens.end(), chunk.begin() + 1, chunk.end());
      return;
    }
    ASSERT_TRUE(state.cursor.Keep(result.tokens.size()).ok());
    tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
  }

  void ExpectOracle(TokenId first) const {
    std::vector<TokenId> oracle = {first};
    while (oracle.size() < tokens.size()) {
      oracle.push_back(FakeTarget::NextToken(oracle));
    }
    EXPECT_EQ(tokens, oracle);
    EXPECT_EQ(state.cursor.length(), static_cast<int64_t>(tokens.size()) - 1);
  }

  TargetSequence state;
  Scripted drafter;
  Sampler sampler;
  std::atomic<bool> cancel{false};
  std::vector<TokenId> tokens, chunk;
  StepResult result;

 private:
  StepItem Item() {
    StepItem item;
    item.state = &state;
    item.drafter = &drafter;
    item.cancel = &cancel;
    item.result = &result;
    return item;
  }
};

class SharedStepTest : public ::testing::Test {
 protected:
  // Sequence i starts with token i.
  void SetUp() override { Make(/*parties=*/12, /*max_rows=*/256); }

  void Make(int parties, int32_t max_rows) {
    target_.max = max_rows;
    target_.shapes.clear();
    parties_.clear();
    for (int i = 0; i < parties; ++i) {
      parties_.push_back(std::make_unique<Party>(
          target_, 256, i % 2 == 0 ? Rollback::kJournal : Rollback::kSlots));
      parties_.back()->tokens = {i};
    }
    auto stepper = Stepper::Create(&target_, /*tap_floats=*/1,
                                   /*max_block=*/16);
    ASSERT_TRUE(stepper.ok());
    stepper_ = *std::move(stepper);
  }

  // Steps the first parties with so many rows; chunks: -rows. `scores`: room
  // for those of the first, or null.
  void Step(const std::vector<int32_t>& rows, float* scores = nullptr) {
    items_.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      items_.push_back(rows[i] > 0 ? parties_[i]->Block(rows[i] - 1)
                                   : parties_[i]->Chunk(-rows[i]));
    }
    if (!items_.empty()) items_[0].logits = scores;
    stepper_->Step(absl::MakeSpan(items_));
  }

  void TakeAll() {
    for (size_t i = 0; i < items_.size(); ++i) {
      SCOPED_TRACE(i);
      parties_[i]->Take(items_[i]);
      parties_[i]->ExpectOracle(static_cast<TokenId>(i));
    }
  }

  FakeTarget target_;
  std::vector<std::unique_ptr<Party>> parties_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<StepItem> items_;
};

TEST_F(SharedStepTest, OnePassReadsTheWeightsOnce) {
  Step({1, 4, 2, 1});
  TakeAll();
  Step({16, 16, 16, 16});
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(1, 4, 2, 1),
                                          ElementsAre(16, 16, 16, 16)));
}

TEST_F(SharedStepTest, NothingToStep) {
  Step({});
  EXPECT_EQ(target_.runs, 0);
}

TEST_F(SharedStepTest, MoreRowsThanScoresHaveRoomForTakeMorePasses) {
  Step({16, 16, 16, 15, 2, 16, 1, 16, 16, 16, 1});
  TakeAll();
  EXPECT_THAT(target_.shapes,
              ElementsAre(ElementsAre(16, 16, 16, 15),
                          ElementsAre(2, 16, 1, 16, 16), ElementsAre(16, 1)));
}

// Blocks lie in front, so that their scores come from one product.
TEST_F(SharedStepTest, OneChunkInAPassBehindTheBlocks) {
  Step({-20, 3, -30, 2, 1, -7});
  TakeAll();
  EXPECT_THAT(target_.shapes,
              ElementsAre(ElementsAre(3, -20), ElementsAre(2, 1, -30),
                          ElementsAre(-7)));
  // Scores of blocks do not count a chunk's rows.
  target_.shapes.clear();
  Step({-150, 16, 16, 16, 16});
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(16, 16, 16, 16, -150)));
}

TEST_F(SharedStepTest, AsManyRowsAsTheTargetTakes) {
  Make(5, /*max_rows=*/24);
  Step({16, 8, 1, -24, 2});
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(16, 8), ElementsAre(1),
                                          ElementsAre(-24), ElementsAre(2)));
}

// Rows are counted by what a drafter may say, not by what it says.
TEST_F(SharedStepTest, DraftersMaySayLess) {
  parties_[0]->drafter.propose = 0;
  parties_[1]->drafter.propose = 2;
  Step({16, 16, 16});
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(1, 3, 16)));
}

TEST_F(SharedStepTest, ScoresWithoutMemoryTakeMorePasses) {
  std::vector<float> scores(16 * FakeTarget::kVocabSize);
  for (const bool refused : {true, false}) {
    target_.shapes.clear();
    {
      const ScopedAllocationFailure failure(refused ? 1 : 1 << 30,
                                            /*and_all_after=*/true);
      Step({16, 10, 6, 16}, scores.data());
    }
    TakeAll();
    if (refused) {
      EXPECT_THAT(
          target_.shapes,
          ElementsAre(ElementsAre(16), ElementsAre(10, 6), ElementsAre(16)));
    } else {
      EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(16, 10, 6, 16)));
    }
  }
}

TEST_F(SharedStepTest, WhatMemoryDoesNotSufficeForTogetherRunsOneByOne) {
  target_.fail_shared = absl::ResourceExhaustedError("no memory");
  Step({4, -9, 2});
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(4, 2, -9), ElementsAre(4),
                                          ElementsAre(2), ElementsAre(-9)));
  // Other failures would come again.
  target_.shapes.clear();
  target_.fail_shared = absl::InternalError("broken");
  Step({4, 2});
  for (const StepItem& item : items_) {
    EXPECT_TRUE(absl::IsInternal(item.status));
  }
  EXPECT_EQ(target_.shapes.size(), 1u);
  target_.fail_shared = absl::OkStatus();
  Step({4, 2});
  TakeAll();
}

// Whatever goes wrong for one, the others have their step, and it has its own
// once things are right again.
TEST_F(SharedStepTest, AFailureIsOnesOwn) {
  const absl::Status error = absl::ResourceExhaustedError("no memory");
  struct Trouble {
    const char* name;
    std::function<void(Party&)> make, mend;
    absl::StatusCode code;
  };
  const std::vector<Trouble> troubles = {
      {"an id", [](Party& p) { p.drafter.bad_id = -1; },
       [](Party& p) { p.drafter.bad_id.reset(); },
       absl::StatusCode::kInvalidArgument},
      {"drafting", [&](Party& p) { p.drafter.answer = error; },
       [](Party& p) { p.drafter.answer = absl::OkStatus(); }, error.code()},
      {"observing", [&](Party& p) { p.drafter.observe = error; },
       [](Party& p) { p.drafter.observe = absl::OkStatus(); }, error.code()},
      {"cancelled before", [](Party& p) { p.cancel = true; },
       [](Party& p) { p.cancel = false; }, absl::StatusCode::kCancelled},
      {"cancelled in the run",
       [&](Party& p) { target_.after_run = [&p] { p.cancel = true; }; },
       [&](Party& p) {
         target_.after_run = nullptr;
         p.cancel = false;
       },
       absl::StatusCode::kCancelled},
      {"scores",
       [&](Party& p) {
         target_.broken_sequence = &p.state;
         target_.broken_position = p.tokens.size() - 1;
       },
       [&](Party&) { target_.broken_position = -1; },
       absl::StatusCode::kInternal},
  };
  for (const Trouble& trouble : troubles) {
    SCOPED_TRACE(trouble.name);
    for (size_t which = 0; which < 3; ++which) {
      Party& party = *parties_[which];
      const std::vector<TokenId> before = party.tokens;
      trouble.make(party);
      Step({3, 5, 2, -4});
      trouble.mend(party);
      for (size_t i = 0; i < items_.size(); ++i) {
        if (i == which) {
          EXPECT_EQ(items_[i].status.code(), trouble.code) << items_[i].status;
          EXPECT_EQ(party.state.cursor.length() + 1, before.size());
        } else {
          parties_[i]->Take(items_[i]);
          parties_[i]->ExpectOracle(static_cast<TokenId>(i));
        }
      }
      Step({3, 5, 2, -4});
      TakeAll();
    }
  }
}

TEST_F(SharedStepTest, AFullSequenceIsOnesOwn) {
  parties_[1] = std::make_unique<Party>(target_, /*capacity=*/8);
  parties_[1]->tokens = {1};
  Step({1, -8, 3});
  TakeAll();
  Step({1, 1, 3});
  EXPECT_TRUE(absl::IsOutOfRange(items_[1].status)) << items_[1].status;
  parties_[0]->Take(items_[0]);
  parties_[2]->Take(items_[2]);
  parties_[0]->ExpectOracle(0);
  parties_[2]->ExpectOracle(2);
}

TEST_F(SharedStepTest, AllCancelledRunsNothing) {
  for (int i = 0; i < 3; ++i) parties_[i]->cancel = true;
  Step({3, -5, 2});
  for (const StepItem& item : items_) {
    EXPECT_TRUE(absl::IsCancelled(item.status));
  }
  EXPECT_EQ(target_.runs, 0);
  for (int i = 0; i < 3; ++i) parties_[i]->cancel = false;
  Step({3, -5, 2});
  TakeAll();
}

TEST_F(SharedStepTest, GreedyPicksKeepNoScores) {
  {
    const ScopedAllocationFailure failure(1, /*and_all_after=*/true);
    Step({16, 10, 6, 16});
  }
  TakeAll();
  EXPECT_THAT(target_.shapes, ElementsAre(ElementsAre(16, 10, 6, 16)));
  EXPECT_EQ(target_.score_rows, 0);
  std::vector<float> scores(3 * FakeTarget::kVocabSize);
  Step({3, 2, -4}, scores.data());
  TakeAll();
  EXPECT_EQ(target_.score_rows, 5);
}

// Scores of all rows go to whom they belong.
TEST_F(SharedStepTest, EachGetsItsOwnScores) {
  std::vector<std::vector<float>> scores;
  items_.clear();
  for (int i = 0; i < 3; ++i) {
    scores.emplace_back((i + 2) * FakeTarget::kVocabSize);
  }
  for (int i = 0; i < 3; ++i) {
    items_.push_back(i == 1 ? parties_[i]->Chunk(3)
                            : parties_[i]->Block(i + 1));
    items_[i].logits = scores[i].data();
  }
  stepper_->Step(absl::MakeSpan(items_));
  TakeAll();
  for (int i = 0; i < 3; ++i) {
    for (int t = 0; t < i + 2; ++t) {
      const float* row = scores[i].data() + t * FakeTarget::kVocabSize;
      EXPECT_EQ(std::max_element(row, row + FakeTarget::kVocabSize) - row,
                parties_[i]->tokens[t + 1])
          << i << ", row " << t;
    }
  }
}

TEST_F(SharedStepTest, TimeOfDraftingIsTheirsWhoAsked) {
  Step({1, 4, -3});
  EXPECT_EQ(parties_[0]->result.draft_time, absl::ZeroDuration());
  EXPECT_GT(parties_[1]->result.draft_time, absl::ZeroDuration());
  EXPECT_EQ(parties_[2]->result.draft_time, absl::ZeroDuration());
}

TEST_F(SharedStepTest, RandomCompany) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    testing::Random random(seed);
    Make(random.Int(1, 12), random.OneIn(2) ? 256 : random.Int(16, 70));
    for (int step = 0; step < 12; ++step) {
      std::vector<size_t> order;
      for (size_t i = 0; i < parties_.size(); ++i) {
        if (!random.OneIn(4)) order.push_back(i);
      }
      for (size_t i = 1; i < order.size(); ++i) {
        std::swap(order[i], order[random.Int(0, static_cast<int>(i))]);
      }
      items_.clear();
      for (const size_t i : order) {
        Party& party = *parties_[i];
        party.drafter.right = random.Int(0, 16);
        party.drafter.propose = random.OneIn(3) ? random.Int(0, 15) : 100;
        items_.push_back(random.OneIn(4) ? party.Chunk(random.Int(1, 10))
                                         : party.Block(random.Int(0, 15)));
      }
      stepper_->Step(absl::MakeSpan(items_));
      for (size_t i = 0; i < order.size(); ++i) {
        parties_[order[i]]->Take(items_[i]);
        parties_[order[i]]->ExpectOracle(static_cast<TokenId>(order[i]));
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace deltaedge
