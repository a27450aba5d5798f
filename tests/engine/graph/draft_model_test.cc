// SPDX-License-Identifier: Apache-2.0

// Sequences that share a pass get, to the bit, what each gets alone.

#include "engine/graph/draft_model.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/allocation_hooks.h"
#include "engine/base/cancel_flags.h"
#include "engine/state/kv_store.h"
#include "gtest/gtest.h"
#include "kernels/logits/argmax.h"
#include "kernels/logits/argmax_reference.h"
#include "tests/testing/canary.h"
#include "tests/testing/draft_pair.h"

namespace deltaedge {
namespace {

using testing::DraftPair;
using testing::SameBits;

struct Files {
  const char* target;
  const char* draft;
};

// One sequence: its context of `length` rows, and a block behind.
struct Sequence {
  int64_t length = 0;
  int32_t drafts = 0;
  int64_t capacity = 0;
  std::vector<float> taps;
  KvStore kv;
  std::vector<float> logits;  // Of the block.
  std::vector<TokenId> out;
  std::vector<float> margins;

  DraftInjection Injection(int64_t tap_floats, int64_t position, int64_t rows) {
    return {taps.data() + position * tap_floats, position,
            static_cast<int32_t>(rows), capacity, &kv};
  }
  DraftInjection All() {
    return {taps.data(), 0, static_cast<int32_t>(length), capacity, &kv};
  }
  DraftRequest Request(TokenId anchor = 3) {
    return {anchor, length,        drafts,     capacity,
            &kv,    logits.data(), out.data(), margins.data()};
  }
};

class DraftModelTest : public ::testing::TestWithParam<Files> {
 protected:
  DraftModelTest()
      : pair_(GetParam().target, GetParam().draft), model_(pair_.NewModel()) {}

  Sequence NewSequence(int64_t length, int32_t drafts, uint64_t seed) {
    drafts = std::min(drafts, pair_.config().block_size - 1);
    const int64_t capacity =
        length + drafts + 1 + static_cast<int64_t>(seed % 3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return {
        length,
        drafts,
        capacity,
        pair_.Taps(length, seed),
        pair_.DirtyKv(capacity),
        std::vector<float>(int64_t{drafts} * pair_.config().vocab_size, nan),
        std::vector<TokenId>(drafts, -1),
        std::vector<float>(drafts, nan)};
  }

  // Unequal lengths, shorter and longer than windows and vectors, and unequal
  // numbers of drafts.
  std::vector<Sequence> NewSequences(int count) {
    const int64_t lengths[] = {17, 1, 40, 0, 63};
    const int32_t drafts[] = {15, 3, 1, 15, 7};
    std::vector<Sequence> sequences;
    for (int i = 0; i < count; ++i) {
      sequences.push_back(NewSequence(lengths[i % 5], drafts[(i + i / 5) % 5],
                                      static_cast<uint64_t>(i)));
    }
    return sequences;
  }

  // What Inject() and Draft() are given for all of `sequences`.
  struct Calls {
    explicit Calls(std::vector<Sequence>& sequences) {
      for (Sequence& sequence : sequences) {
        injections.push_back(sequence.All());
        requests.push_back(sequence.Request());
      }
    }
    std::vector<DraftInjection> injections;
    std::vector<DraftRequest> requests;
  };

  std::vector<float> Rows(Sequence& sequence, int64_t rows) {
    return pair_.Rows(rows, sequence.capacity, &sequence.kv);
  }

  void ExpectSame(Sequence& a, Sequence& b) {
    EXPECT_EQ(a.out, b.out);
    EXPECT_TRUE(SameBits(a.margins, b.margins));
    EXPECT_TRUE(SameBits(a.logits, b.logits));
    EXPECT_TRUE(SameBits(Rows(a, a.capacity), Rows(b, b.capacity)));
  }

  // By definition, from the scores.
  void ExpectMargins(const Sequence& sequence) const {
    const int32_t vocab_size = pair_.config().vocab_size;
    for (int32_t t = 0; t < sequence.drafts; ++t) {
      const float* scores = sequence.logits.data() + int64_t{t} * vocab_size;
      const ArgMax best = ArgMaxReference(vocab_size, scores);
      EXPECT_EQ(sequence.out[t], best.index);
      EXPECT_EQ(sequence.margins[t],
                best.value - SecondReference(vocab_size, scores, best));
    }
  }

  DraftPair pair_;
  std::unique_ptr<DraftModel> model_;
};

TEST_P(DraftModelTest, InjectedTogetherIsInjectedRowByRow) {
  std::vector<Sequence> alone = NewSequences(5);
  for (Sequence& sequence : alone) {
    for (int64_t p = 0; p < sequence.length; ++p) {
      const DraftInjection row = sequence.Injection(pair_.tap_floats(), p, 1);
      ASSERT_TRUE(model_->Inject({&row, 1}, {}).ok());
    }
    const std::vector<float> rows = Rows(sequence, sequence.length);
    for (const float x : rows) ASSERT_EQ(x, x);
  }
  // All at once: more rows than are taken at a time, in pieces that wrap
  // anywhere.
  for (const int64_t piece : {1000, 7}) {
    std::vector<Sequence> together = NewSequences(5);
    std::vector<DraftInjection> injections;
    for (Sequence& sequence : together) {
      for (int64_t p = 0; p < sequence.length; p += piece) {
        injections.push_back(sequence.Injection(
            pair_.tap_floats(), p, std::min(piece, sequence.length - p)));
      }
    }
    ASSERT_TRUE(model_->Inject(injections, {}).ok());
    for (size_t i = 0; i < alone.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectSame(alone[i], together[i]);
    }
  }
}

TEST_P(DraftModelTest, DraftedTogetherIsDraftedAlone) {
  for (const int count : {1, 2, 3, 4, 5, 13}) {
    SCOPED_TRACE(count);
    std::vector<Sequence> alone = NewSequences(count);
    std::vector<Sequence> together = NewSequences(count);
    std::vector<DraftInjection> injections;
    std::vector<DraftRequest> requests;
    int32_t rows = 0;
    for (int i = 0; i < count; ++i) {
      const DraftInjection all = alone[i].All();
      const DraftRequest request = alone[i].Request(/*anchor=*/i);
      ASSERT_TRUE(model_->Inject({&all, 1}, {}).ok());
      ASSERT_TRUE(model_->Draft({&request, 1}, {}).ok());
      for (const TokenId token : alone[i].out) ASSERT_GE(token, 0);
      ExpectMargins(alone[i]);
      injections.push_back(together[i].All());
      requests.push_back(together[i].Request(i));
      rows += 1 + together[i].drafts;
    }
    if (count == 13) {
      EXPECT_GT(rows, DraftModel::kMaxPassRows);
    }
    ASSERT_TRUE(model_->Inject(injections, {}).ok());
    ASSERT_TRUE(model_->Draft(requests, {}).ok());
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      ExpectSame(alone[i], together[i]);
    }
  }
}

TEST_P(DraftModelTest, ADraftDependsOnItsContextAndItsAnchor) {
  Sequence a = NewSequence(20, 5, /*seed=*/1);
  Sequence b = NewSequence(20, 5, /*seed=*/2);
  Sequence c = NewSequence(20, 5, /*seed=*/1);
  const std::vector<DraftInjection> injections = {a.All(), b.All(), c.All()};
  const std::vector<DraftRequest> requests = {a.Request(3), b.Request(3),
                                              c.Request(4)};
  ASSERT_TRUE(model_->Inject(injections, {}).ok());
  ASSERT_TRUE(model_->Draft(requests, {}).ok());
  EXPECT_FALSE(SameBits(a.logits, b.logits));
  EXPECT_FALSE(SameBits(a.logits, c.logits));
}

// Case: memory runs out while buffers grow for more sequences.
TEST_P(DraftModelTest, RefusedMemoryLeavesEverythingUsable) {
  std::vector<Sequence> truth = NewSequences(5);
  for (Sequence& sequence : truth) {
    const DraftInjection all = sequence.All();
    const DraftRequest request = sequence.Request();
    ASSERT_TRUE(model_->Inject({&all, 1}, {}).ok());
    ASSERT_TRUE(model_->Draft({&request, 1}, {}).ok());
  }
  int refused_drafts = 0;
  bool done = false;
  for (int nth = 1; !done; ++nth) {
    ASSERT_LT(nth, 100);
    const std::unique_ptr<DraftModel> model = pair_.NewModel();
    const int64_t scratch = model->scratch_bytes();
    std::vector<Sequence> sequences = NewSequences(5);
    const auto [injections, requests] = Calls(sequences);
    absl::Status status;
    {
      const ScopedAllocationFailure failure(nth);
      // Takes no memory.
      ASSERT_TRUE(model->Inject(injections, {}).ok());
      status = model->Draft(requests, {});
      refused_drafts += !status.ok();
    }
    done = status.ok();
    if (!done) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      // One alone still fits, and then all of them do.
      ASSERT_TRUE(model->Inject({&injections[0], 1}, {}).ok());
      ASSERT_TRUE(model->Draft({&requests[0], 1}, {}).ok());
      ExpectSame(truth[0], sequences[0]);
      ASSERT_TRUE(model->Inject(injections, {}).ok());
      ASSERT_TRUE(model->Draft(requests, {}).ok());
    }
    EXPECT_GT(model->scratch_bytes(), scratch);
    for (size_t i = 0; i < truth.size(); ++i) {
      ExpectSame(truth[i], sequences[i]);
    }
  }
  EXPECT_GT(refused_drafts, 0);
}

TEST_P(DraftModelTest, WarmCallsAllocateNothing) {
  std::vector<Sequence> sequences = NewSequences(5);
  const auto [injections, requests] = Calls(sequences);
  int64_t allocations = 0;
  for (int i = 0; i < 3; ++i) {
    if (i == 1) allocations = AllocationCount();
    ASSERT_TRUE(model_->Inject(injections, {}).ok());
    ASSERT_TRUE(model_->Draft(requests, {}).ok());
  }
  EXPECT_EQ(AllocationCount(), allocations);
}

TEST_P(DraftModelTest, AbandonedBehindAnyLayerThenAgain) {
  std::vector<Sequence> truth = NewSequences(5);
  {
    const auto [injections, requests] = Calls(truth);
    ASSERT_TRUE(model_->Inject(injections, {}).ok());
    ASSERT_TRUE(model_->Draft(requests, {}).ok());
  }
  const std::atomic<bool> set{true}, clear{false};
  for (int32_t layers = 0; layers <= pair_.layers(); ++layers) {
    SCOPED_TRACE(layers);
    const std::unique_ptr<DraftModel> first = pair_.NewModel(layers);
    std::vector<Sequence> sequences = NewSequences(5);
    const auto [injections, requests] = Calls(sequences);
    EXPECT_TRUE(absl::IsCancelled(model_->Inject(injections, &set)));
    ASSERT_TRUE(first->Inject(injections, {}).ok());
    const std::atomic<bool>* flags[] = {&set, &clear};
    ASSERT_TRUE(model_->Inject(injections, CancelFlags(flags)).ok());
    EXPECT_TRUE(absl::IsCancelled(model_->Draft(requests, &set)));
    ASSERT_TRUE(first->Draft(requests, {}).ok());
    ASSERT_TRUE(model_->Draft(requests, CancelFlags(flags)).ok());
    for (size_t i = 0; i < truth.size(); ++i) {
      ExpectSame(truth[i], sequences[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftModelTest,
                         ::testing::Values(Files{"odd", "odd_draft"},
                                           Files{"t", "t_draft_symmetric"},
                                           Files{"wide", "wide_draft"}),
                         [](const auto& info) {
                           return std::string(info.param.draft);
                         });

}  // namespace
}  // namespace deltaedge
