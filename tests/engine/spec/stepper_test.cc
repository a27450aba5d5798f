// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/stepper.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/cancel_flags.h"
#include "engine/graph/target_sequence.h"
#include "engine/spec/block_drafter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_target.h"

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
    if (taps) {
      for (int32_t t = 0; t < plan.rows; ++t) {
        EXPECT_EQ(rows[t], plan.position + t);
      }
    } else {
      EXPECT_EQ(rows, nullptr);
    }
    blocks.push_back(plan.rows);
    return observe;
  }
  absl::Status ObservePrefill(const BlockPlan& plan, const float*,
                              CancelFlags) override {
    chunks.push_back(plan.rows);
    return observe;
  }
  void Reset() override {}

  bool taps = false;
  int32_t propose = 100;  // Drafts, at most.
  int32_t surplus = 0;    // Drafts beyond what was asked for.
  int32_t right = 100;    // The first wrong draft.
  std::optional<TokenId> bad_id;
  absl::Status answer, observe;
  std::vector<int32_t> asked, blocks, chunks;
};

class StepperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto sequence = MakeTargetSequence(target_.config(), /*capacity=*/64,
                                       /*block_rows=*/8);
    ASSERT_TRUE(sequence.ok());
    state_ = std::make_unique<TargetSequence>(*std::move(sequence));
    auto stepper = Stepper::Create(&target_, /*tap_floats=*/1,
                                   /*max_block=*/16, nullptr);
    ASSERT_TRUE(stepper.ok());
    stepper_ = *std::move(stepper);
  }

  absl::Status TryStep(int32_t max_drafts) {
    StepItem item;
    item.sequence = tokens_;
    item.max_drafts = max_drafts;
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

}  // namespace
}  // namespace deltaedge
