// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/allocation_hooks.h"
#include "engine/model/weights.h"
#include "engine/ops/linear_reference.h"
#include "gtest/gtest.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::CanaryBuffer;
using ::deltaedge::testing::Random;
using ::deltaedge::testing::SameBits;

constexpr int kIn = 131;
constexpr int kOut = 75;
constexpr int kRows = 12;

class LinearTest : public ::testing::Test {
 protected:
  LinearTest()
      : random_(1),
        w_(random_.Gaussians(kOut * kIn)),
        x_(random_.Gaussians(kRows * kIn)) {}

  MatrixView View(int first_row, int rows) const {
    return {w_.data() + first_row * kIn, WeightType::kF32, rows, kIn};
  }

  std::vector<float> Product(Linear& linear, int rows = kRows) const {
    CanaryBuffer<float> y(static_cast<size_t>(rows) * linear.out_features());
    EXPECT_TRUE(linear.Run(x_.data(), rows, y.data(), /*pool=*/nullptr).ok());
    EXPECT_TRUE(y.Intact());
    return y.ToVector();
  }

  std::vector<float> Product(absl::Span<const MatrixView> parts) const {
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create(parts, "test");
    EXPECT_TRUE(linear.ok()) << linear.status();
    return linear.ok() ? Product(**linear) : std::vector<float>();
  }

  Random random_;
  const CanaryBuffer<float> w_;
  const CanaryBuffer<float> x_;
};

TEST_F(LinearTest, PutsPartsSideBySide) {
  const std::vector<float> whole = Product({View(0, kOut)});
  EXPECT_TRUE(
      SameBits(Product({View(0, 1), View(1, 40), View(41, kOut - 41)}), whole));
  // Parts that are no neighbours in memory.
  const CanaryBuffer<float> copy(w_.ToVector());
  MatrixView elsewhere = View(5, kOut - 5);
  elsewhere.data = copy.data() + 5 * kIn;
  EXPECT_TRUE(SameBits(Product({View(0, 5), elsewhere}), whole));

  const std::vector<float> swapped =
      Product({View(70, kOut - 70), View(0, 70)});
  for (int row = 0; row < kRows; ++row) {
    EXPECT_TRUE(SameBits(swapped.data() + row * kOut + kOut - 70,
                         whole.data() + row * kOut, 70));
    EXPECT_TRUE(SameBits(swapped.data() + row * kOut,
                         whole.data() + row * kOut + 70, kOut - 70));
  }
}

TEST_F(LinearTest, DoesNotNeedItsSourceAfterwards) {
  std::vector<float> weights = w_.ToVector();
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({{weights.data(), WeightType::kF32, kOut, kIn}}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  weights.assign(weights.size(), 0.0f);
  EXPECT_TRUE(SameBits(Product(**linear), Product({View(0, kOut)})));
}

TEST_F(LinearTest, TellsItsSize) {
  const int64_t before = LiveAllocatedBytes();
  {
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({View(0, 3), View(8, 4)}, "test");
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_EQ((*linear)->in_features(), kIn);
    EXPECT_EQ((*linear)->out_features(), 7);
    EXPECT_GE((*linear)->packed_bytes(), 7 * kIn * 4);
    // Nothing but the packed weights and a tail is kept.
    EXPECT_GE(LiveAllocatedBytes() - before, (*linear)->packed_bytes());
    EXPECT_LE(LiveAllocatedBytes() - before, (*linear)->packed_bytes() + 128);
  }
  EXPECT_EQ(LiveAllocatedBytes(), before);
}

TEST_F(LinearTest, NoRowsDoNothing) {
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({View(0, kOut)}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_TRUE((*linear)->Run(nullptr, 0, nullptr, nullptr).ok());
}

TEST_F(LinearTest, RunAllocatesNothing) {
  for (int min_rows : {1, 8}) {
    LinearOptions options;
    options.min_rows = min_rows;
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({View(0, kOut)}, "test", options);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const int64_t count = AllocationCount();
    for (int rows = 1; rows <= kRows; ++rows) Product(**linear, rows);
    EXPECT_EQ(AllocationCount(), count);
  }
}

TEST_F(LinearTest, PaddingChangesNothing) {
  const std::vector<float> expected = Product({View(0, kOut)});
  for (int min_rows : {1, 2, 5, kRows, 16, LinearOptions::kMaxMinRows}) {
    LinearOptions options;
    options.min_rows = min_rows;
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({View(0, kOut)}, "test", options);
    ASSERT_TRUE(linear.ok()) << linear.status();
    for (int rows = 0; rows <= kRows; ++rows) {
      const std::vector<float> y = Product(**linear, rows);
      EXPECT_TRUE(SameBits(y.data(), expected.data(), y.size()))
          << rows << " of at least " << min_rows;
    }
  }
}

// Notes which rows it was given.
class Recorder final : public Linear {
 public:
  explicit Recorder(const LinearOptions& options) : Linear(Shape{2, 1}) {
    EXPECT_TRUE(Configure(options, "recorder").ok());
  }
  std::vector<float> seen;

 protected:
  absl::Status Multiply(const float* x, int32_t rows, float* y,
                        pthreadpool_t) override {
    seen.assign(x, x + 2 * rows);
    for (int32_t row = 0; row < rows; ++row) y[row] = x[2 * row];
    return absl::OkStatus();
  }
};

TEST(LinearPaddingTest, RepeatsTheLastRow) {
  LinearOptions options;
  options.min_rows = 4;
  Recorder linear(options);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CanaryBuffer<float> y(2);
  ASSERT_TRUE(linear.Run(x.data(), 2, y.data(), nullptr).ok());
  EXPECT_EQ(linear.seen, (std::vector<float>{1, 2, 3, 4, 3, 4, 3, 4}));
  EXPECT_EQ(y.ToVector(), (std::vector<float>{1, 3}));
  EXPECT_TRUE(y.Intact());
  CanaryBuffer<float> y5(5);
  ASSERT_TRUE(linear.Run(x.data(), 5, y5.data(), nullptr).ok());
  EXPECT_EQ(linear.seen, x);
  EXPECT_EQ(y5.ToVector(), (std::vector<float>{1, 3, 5, 7, 9}));
}

TEST_F(LinearTest, RefusesUnsoundParts) {
  const auto code = [](absl::Span<const MatrixView> parts,
                       LinearOptions options = {}) {
    const absl::Status status =
        Linear::Create(parts, "layer 3 out", options).status();
    EXPECT_NE(status.message().find("layer 3 out"), std::string::npos)
        << status;
    return status.code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({View(0, 3), MatrixView{}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({View(0, 0)}), absl::StatusCode::kInvalidArgument);
  MatrixView narrow = View(0, 3);
  narrow.cols = kIn - 1;
  EXPECT_EQ(code({View(0, 3), narrow}), absl::StatusCode::kInvalidArgument);
  MatrixView huge = View(0, 2147483647);
  EXPECT_EQ(code({huge, huge}), absl::StatusCode::kInvalidArgument);
  for (int type : {0, 2, 99}) {
    MatrixView foreign = View(0, 3);
    foreign.type = static_cast<WeightType>(type);
    EXPECT_EQ(code({View(0, 3), foreign}), absl::StatusCode::kUnimplemented);
  }
  LinearOptions options;
  for (int min_rows : {-1, 0, LinearOptions::kMaxMinRows + 1}) {
    options.min_rows = min_rows;
    EXPECT_EQ(code({View(0, 3)}, options), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(LinearTest, SurvivesEveryRefusedAllocation) {
  const CanaryBuffer<float> copy(w_.ToVector());
  MatrixView elsewhere = View(3, 4);
  elsewhere.data = copy.data();
  LinearOptions options;
  options.min_rows = 2;
  const int64_t before = LiveAllocatedBytes();
  int refused = 0;
  for (int64_t nth = 1;; ++nth) {
    const ScopedAllocationFailure failure(nth);
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({View(0, 3), elsewhere}, "layer 3 out", options);
    if (linear.ok()) break;
    ++refused;
    EXPECT_EQ(linear.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(linear.status().message().find("layer 3 out"), std::string::npos)
        << linear.status();
    EXPECT_EQ(LiveAllocatedBytes(), before);
  }
  // Two for padding, one to join the parts, one for packed weights.
  EXPECT_EQ(refused, 4);
}

}  // namespace
}  // namespace deltaedge
