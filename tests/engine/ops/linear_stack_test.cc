// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear_stack.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/allocation_hooks.h"
#include "engine/base/thread_pool.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/packed_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/ops/linear_case.h"
#include "tests/testing/canary.h"
#include "tests/testing/emulated.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::CanaryBuffer;
using ::deltaedge::testing::SameBits;
using Size = ::deltaedge::testing::LinearSize;  // Of one matrix.
using ::testing::HasSubstr;
using Group = LinearStack::Group;

constexpr int kMatrices = 5;
constexpr int kMaxRows = 64;

class LinearStackTest : public testing::LinearCase {
 protected:
  LinearStackTest()
      : LinearCase(kMaxRows, kMatrices),
        x_(random_.Uniforms(size_t{kMaxRows} * in_), /*misalign=*/1) {}

  std::unique_ptr<LinearStack> Stack(const LinearOptions& options = {}) const {
    auto stack =
        LinearStack::Create(matrix_.View(), kMatrices, "test", options);
    EXPECT_TRUE(stack.ok()) << stack.status();
    return *std::move(stack);
  }

  // Row i times matrix i % kMatrices, by a product of that matrix alone.
  std::vector<float> Singly(int rows) {
    std::vector<float> y(static_cast<size_t>(rows) * out_);
    for (int m = 0; m < kMatrices; ++m) {
      const auto linear =
          Linear::Create({matrix_.View(m * out_, out_)}, "test");
      EXPECT_TRUE(linear.ok()) << linear.status();
      for (int row = m; row < rows; row += kMatrices) {
        input_.Set(x_.data() + row * in_, 1, in_);
        (*linear)->Run(input_, y.data() + row * out_, nullptr);
      }
    }
    return y;
  }

  // Of a row for each matrix, the bits of that matrix alone.
  void ExpectLikeSingly(const LinearStack& stack) {
    const std::vector<float> singly = Singly(kMatrices);
    std::vector<Group> groups;
    for (int m = 0; m < kMatrices; ++m) groups.push_back({m, 1});
    std::vector<float> y(static_cast<size_t>(kMatrices) * out_);
    input_.Set(x_.data(), kMatrices, in_);
    stack.Run(input_, groups, y.data(), nullptr);
    EXPECT_TRUE(SameBits(y, singly));
  }

  const CanaryBuffer<float> x_;
};

// However rows are grouped: with matrices in any order, some twice, some not at
// all, on any number of threads.
TEST_P(LinearStackTest, RowsHaveTheBitsOfTheirMatrixAlone) {
  const std::vector<float> singly = Singly(kMaxRows);
  const auto stack = Stack();
  ASSERT_EQ(stack->in_features(), in_);
  ASSERT_EQ(stack->out_features(), out_);
  for (int threads = 1; threads <= 3; ++threads) {
    const auto pool = ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    const int rounds = threads == 1
                           ? testing::FewerIfEmulated("rounds", 20, 3)
                           : testing::FewerIfEmulated("with threads", 5, 1);
    for (int round = 0; round < rounds; ++round) {
      std::vector<Group> groups;
      std::vector<float> x;
      std::vector<int> which;
      while (which.size() < kMaxRows && !random_.OneIn(6)) {
        const int matrix = random_.Int(0, kMatrices - 1);
        const int rows =
            random_.Int(1, kMaxRows - static_cast<int>(which.size()));
        groups.push_back({matrix, rows});
        for (int i = 0; i < rows; ++i) {
          const int row =
              matrix + kMatrices * random_.Int(0, kMaxRows / kMatrices - 1);
          which.push_back(row);
          x.insert(x.end(), x_.begin() + row * in_,
                   x_.begin() + (row + 1) * in_);
        }
      }
      const CanaryBuffer<float> gathered(x, /*misalign=*/2);
      CanaryBuffer<float> y(which.size() * static_cast<size_t>(out_),
                            /*misalign=*/3);
      input_.Set(gathered.data(), static_cast<int32_t>(which.size()), in_);
      stack->Run(input_, groups, y.data(), (*pool)->get());
      ASSERT_TRUE(y.Intact());
      for (size_t i = 0; i < which.size(); ++i) {
        ASSERT_TRUE(SameBits(y.data() + i * static_cast<size_t>(out_),
                             singly.data() + which[i] * out_,
                             static_cast<size_t>(out_)))
            << "row " << i << " of " << which.size();
      }
    }
  }
}

TEST_P(LinearStackTest, OneKernelForAllGivesTheSame) {
  LinearOptions options;
  options.one_kernel = true;
  const auto stack = Stack(options);
  ExpectLikeSingly(*stack);
}

// From packed weights it is made without a copy of any, whatever the number of
// outputs.
TEST_P(LinearStackTest, PackedWeightsAreUsedWhereTheyLie) {
  const std::string path = ::testing::TempDir() + "/stack.packed";
  auto writer = PackedCacheWriter::Create(path, "key");
  ASSERT_TRUE(writer.ok()) << writer.status();
  LinearOptions options;
  PackedPieces written(writer->get(), /*in_file=*/false);
  options.packed = &written;
  Stack(options);
  ASSERT_TRUE(written.status().ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto cache =
      PackedCache::Open(path, "key", PackedCache::Verify::kStructure);
  ASSERT_TRUE(cache.ok()) << cache.status();
  PackedPieces pieces(cache->get());
  options.packed = &pieces;
  const int64_t before = AllocationCount();
  const auto stack = Stack(options);
  // Scales that stand for others.
  EXPECT_EQ(AllocationCount() - before,
            matrix_.View().scales == nullptr ? 0 : 1);
  EXPECT_EQ(stack->packed_bytes(), 0);

  ExpectLikeSingly(*stack);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearStackTest,
                         testing::LinearCases(Size{1, 1}, Size{64, 32},
                                              Size{127, 40}, Size{256, 96},
                                              Size{1027, 67}),
                         testing::LinearCaseName);

// What nobody chooses is not read: here it is NaN.
TEST(LinearStackTest, MatricesOfNoGroupAreNotRead) {
  constexpr int kIn = 8, kOut = 32;
  std::vector<float> weights(kMatrices * kOut * kIn,
                             std::numeric_limits<float>::quiet_NaN());
  std::fill_n(weights.begin() + 2 * kOut * kIn, kOut * kIn, 1.0f);
  const MatrixView view = {weights.data(), WeightType::kF32, kMatrices * kOut,
                           kIn};
  const auto stack = LinearStack::Create(view, kMatrices, "test");
  ASSERT_TRUE(stack.ok()) << stack.status();
  const CanaryBuffer<float> x(std::vector<float>(3 * kIn, 0.5f));
  std::vector<float> y(3 * kOut);
  LinearInput input = LinearInput::Allocate(3, kIn).value();
  input.Set(x.data(), 3, kIn);
  (*stack)->Run(input, {{2, 3}}, y.data(), nullptr);
  EXPECT_THAT(y, ::testing::Each(4.0f));
}

TEST(LinearStackTest, NoRowsDoNothing) {
  const std::vector<float> weights(2 * 3 * 4);
  const MatrixView view = {weights.data(), WeightType::kF32, 2 * 3, 4};
  const auto stack = LinearStack::Create(view, 2, "test");
  ASSERT_TRUE(stack.ok());
  LinearInput input = LinearInput::Allocate(1, 4).value();
  input.Set(weights.data(), 0, 4);
  (*stack)->Run(input, {}, nullptr, nullptr);
}

TEST(LinearStackTest, UnsoundStacksAreRefused) {
  const std::vector<float> weights(6 * 4);
  MatrixView view = {weights.data(), WeightType::kF32, 6, 4};
  for (const int count : {0, -1, 4, 7}) {
    const absl::Status status =
        LinearStack::Create(view, count, "experts").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("product 'experts' has 6 rows"));
  }
  view.data = nullptr;
  EXPECT_EQ(LinearStack::Create(view, 2, "experts").status().code(),
            absl::StatusCode::kInvalidArgument);
  view.data = weights.data();
  view.type = WeightType::kUnknown;
  view.scales = weights.data();
  EXPECT_EQ(LinearStack::Create(view, 2, "experts").status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace deltaedge
