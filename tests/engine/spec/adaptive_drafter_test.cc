// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/adaptive_drafter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/cancel_flags.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/spec/lookup_drafter.h"
#include "engine/state/sequence_state.h"
#include "engine/stats.h"
#include "engine/types.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

// Proposes what it is asked for, as sure as it is told to be.
class Scripted : public NullDrafter {
 public:
  absl::Status Propose(absl::Span<const TokenId>, int32_t max_drafts,
                       CancelFlags, std::vector<TokenId>* drafts) override {
    drafts->assign(static_cast<size_t>(max_drafts), 1);
    return absl::OkStatus();
  }
  absl::Span<const float> margins() const override { return said; }

  std::vector<float> said;
};

class AdaptiveDrafterTest : public ::testing::Test {
 protected:
  AdaptiveDrafterTest() {
    auto main = std::make_unique<Scripted>();
    main_ = main.get();
    drafter_ = std::make_unique<AdaptiveDrafter>(
        std::move(main), DraftSource::kModel, &history_,
        *LookupDrafter::Create(1024), &lookup_history_);
    // Steps of a machine on which a row more costs a fifth.
    for (int i = 0; i < 3; ++i) {
      for (int32_t rows = 1; rows <= 8; ++rows) {
        costs_.Add(rows, absl::Milliseconds(8 + 2 * rows));
      }
    }
    // It is known well enough not to be tried.
    for (int i = 0; i < 3; ++i) {
      for (int32_t k = 1; k <= 7; ++k) {
        history_.drafting.Add(k, absl::Milliseconds(2));
      }
    }
    history_.has_credit = true;
  }

  // A block of which `right` drafts agree and at most `stop` may count. Returns
  // how many were verified.
  int32_t Step(int32_t right, int32_t stop = 7) {
    const DraftChoice choice = drafter_->Plan(sequence_, 7, costs_);
    std::vector<TokenId> drafts;
    if (choice.drafts > 0) {
      EXPECT_TRUE(
          drafter_->Propose(sequence_, choice.drafts, {}, &drafts).ok());
      drafts.resize(std::min<size_t>(drafts.size(), stop));
      drafter_->Review(sequence_, costs_, &drafts);
    }
    const int32_t drafted = static_cast<int32_t>(drafts.size());
    drafter_->Learn(drafted, std::min(drafted, right), absl::Milliseconds(2));
    return drafted;
  }

  void Prompt() {
    EXPECT_TRUE(drafter_->ObservePrefill(BlockPlan(), nullptr, {}).ok());
  }

  const std::vector<TokenId> sequence_ = {1, 2, 3};
  DraftHistory history_, lookup_history_;
  CostCurve costs_;
  Scripted* main_;
  std::unique_ptr<AdaptiveDrafter> drafter_;
};

TEST_F(AdaptiveDrafterTest, VerifiesWhatTheDrafterIsSureOf) {
  const std::vector<float> sure(7, 6.0f);
  const std::vector<float> unsure = {6.0f, 6.0f, 6.0f, 0.1f, 0.1f, 0.1f, 0.1f};
  for (int i = 0; i < 200; ++i) {
    main_->said = i % 4 == 0 ? unsure : sure;
    Step(i % 4 == 0 ? 3 : 7);
  }
  history_.credit = 0.0;
  main_->said = unsure;
  EXPECT_EQ(Step(3), 3);
  main_->said = sure;
  EXPECT_EQ(Step(7), 7);
  EXPECT_EQ(Step(7, /*stop=*/2), 2) << "it ends there";
}

TEST_F(AdaptiveDrafterTest, ADrafterThatDoesNotSayIsNotCut) {
  for (int i = 0; i < 100; ++i) Step(7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Step(7), 7);
}

TEST_F(AdaptiveDrafterTest, NonsenseIsNoDanger) {
  const float nonsense[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), -1.0f,
                            std::numeric_limits<float>::max()};
  for (int i = 0; i < 500; ++i) {
    main_->said.clear();
    for (int k = 0; k < 7; ++k) main_->said.push_back(nonsense[(i + k) % 5]);
    const int32_t verified = Step(7);
    ASSERT_GE(verified, 0);
    ASSERT_LE(verified, 7);
    if (i <= 20) continue;
    EXPECT_EQ(verified, 7) << "what it said was never wrong";
  }
}

TEST_F(AdaptiveDrafterTest, BlocksBehindAPromptAreJudgedApart) {
  for (int answer = 0; answer < 20; ++answer) {
    Prompt();
    Step(0);
    for (int i = 0; i < 3; ++i) Step(7);
  }
  history_.credit = 0.0;
  Prompt();
  EXPECT_EQ(Step(0), 0);
  EXPECT_EQ(Step(7), 7);
  EXPECT_EQ(Step(7), 7);
  history_.credit = 0.0;
  drafter_->Reset();
  EXPECT_EQ(Step(0), 0) << "a prompt of one token";
  EXPECT_EQ(Step(7), 7);
}

}  // namespace
}  // namespace deltaedge
