// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/base/huge_page_arena.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/ops/linear_input.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/ops/random_matrix.h"
#include "tests/testing/canary.h"
#include "tests/testing/random.h"
#include "xnnpack.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::CanaryBuffer;
using ::deltaedge::testing::Random;
using ::deltaedge::testing::RandomMatrix;
using ::deltaedge::testing::SameBits;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kOut = 75;
constexpr int kRows = 12;

class LinearTest : public ::testing::TestWithParam<WeightType> {
 protected:
  LinearTest()
      : in_(testing::Columns(GetParam(), 163)),
        random_(1),
        matrix_(GetParam(), kOut, in_, random_),
        x_(random_.Gaussians(size_t{kRows} * in_)),
        input_(LinearInput::Allocate(kRows, in_).value()) {}

  void SetUp() override {
    const absl::Status status =
        Linear::Create({matrix_.View()}, "test").status();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  }

  std::vector<float> Product(const Linear& linear, int rows = kRows) {
    CanaryBuffer<float> y(static_cast<size_t>(rows) * linear.out_features());
    input_.Set(x_.data(), rows, in_);
    linear.Run(input_, y.data(), /*pool=*/nullptr);
    EXPECT_TRUE(y.Intact());
    return y.ToVector();
  }

  std::vector<float> Product(absl::Span<const MatrixView> parts,
                             const LinearOptions& options = {}) {
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create(parts, "test", options);
    EXPECT_TRUE(linear.ok()) << linear.status();
    return linear.ok() ? Product(**linear) : std::vector<float>();
  }

  absl::Status Refusal(absl::Span<const MatrixView> parts) {
    const absl::Status status = Linear::Create(parts, "layer 3 out").status();
    EXPECT_NE(status.message().find("layer 3 out"), std::string::npos)
        << status;
    return status;
  }

  const int in_;
  Random random_;
  RandomMatrix matrix_;
  const CanaryBuffer<float> x_;
  LinearInput input_;
};

TEST_P(LinearTest, PutsPartsSideBySide) {
  const std::vector<float> whole = Product({matrix_.View()});
  EXPECT_TRUE(SameBits(Product({matrix_.View(0, 1), matrix_.View(1, 40),
                                matrix_.View(41, kOut - 41)}),
                       whole));
  // Parts that are no neighbours in memory.
  const std::vector<float> swapped =
      Product({matrix_.View(70, kOut - 70), matrix_.View(0, 70)});
  for (int row = 0; row < kRows; ++row) {
    EXPECT_TRUE(SameBits(swapped.data() + row * kOut + kOut - 70,
                         whole.data() + row * kOut, 70));
    EXPECT_TRUE(SameBits(swapped.data() + row * kOut,
                         whole.data() + row * kOut + 70, kOut - 70));
  }
}

TEST_P(LinearTest, JoinsNumbersAndScalesEachForItself) {
  // The same numbers, the scales somewhere else.
  const MatrixView view = matrix_.View();
  if (view.scales == nullptr) GTEST_SKIP() << "no scales";
  Random again(1);
  const RandomMatrix copy(GetParam(), kOut, in_, again);
  MatrixView front = matrix_.View(0, 30), back = matrix_.View(30, kOut - 30);
  back.scales = copy.View(30, kOut - 30).scales;
  EXPECT_TRUE(SameBits(Product({front, back}), Product({view})));
  back = matrix_.View(30, kOut - 30);
  back.data = copy.View(30, kOut - 30).data;
  EXPECT_TRUE(SameBits(Product({front, back}), Product({view})));
}

TEST_P(LinearTest, DoesNotNeedItsSourceAfterwards) {
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> before = Product(**linear);
  matrix_.Erase();
  EXPECT_TRUE(SameBits(Product(**linear), before));
}

TEST_P(LinearTest, TellsItsSize) {
  const int64_t before = LiveAllocatedBytes();
  {
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({matrix_.View(0, 3), matrix_.View(8, 4)}, "test");
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_EQ((*linear)->in_features(), in_);
    EXPECT_EQ((*linear)->out_features(), 7);
    EXPECT_GE((*linear)->packed_bytes(), 7 * in_ / 2);
    // Nothing but the packed weights and a tail is kept.
    EXPECT_GE(LiveAllocatedBytes() - before, (*linear)->packed_bytes());
    EXPECT_LE(LiveAllocatedBytes() - before, (*linear)->packed_bytes() + 128);
  }
  EXPECT_EQ(LiveAllocatedBytes(), before);
}

TEST_P(LinearTest, SharesAnArena) {
  const std::vector<float> expected = Product({matrix_.View()});
  LinearOptions options;
  options.arena = std::make_shared<HugePageArena>();
  const int64_t before = AllocationCount();
  std::vector<std::unique_ptr<Linear>> linears;
  for (int i = 0; i < 20; ++i) {
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create({matrix_.View()}, "test", options);
    ASSERT_TRUE(linear.ok()) << linear.status();
    linears.push_back(*std::move(linear));
  }
  EXPECT_EQ(AllocationCount() - before, 2);
  options.arena = nullptr;
  linears.erase(linears.begin());
  for (const std::unique_ptr<Linear>& linear : linears) {
    EXPECT_TRUE(SameBits(Product(*linear), expected));
  }
}

TEST_P(LinearTest, NoRowsDoNothing) {
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  input_.Set(nullptr, 0, in_);
  (*linear)->Run(input_, nullptr, nullptr);
}

TEST_P(LinearTest, RunAllocatesNothing) {
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  const int64_t count = AllocationCount();
  for (int rows = 1; rows <= kRows; ++rows) Product(**linear, rows);
  EXPECT_EQ(AllocationCount(), count);
}

TEST_P(LinearTest, OneKernelGivesTheSameHere) {
  // On machines that need no such option.
  LinearOptions options;
  options.one_kernel = true;
  absl::StatusOr<std::unique_ptr<Linear>> one =
      Linear::Create({matrix_.View()}, "test", options);
  absl::StatusOr<std::unique_ptr<Linear>> many =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(one.ok() && many.ok());
  for (int rows = 1; rows <= kRows; ++rows) {
    EXPECT_TRUE(SameBits(Product(**one, rows), Product(**many, rows))) << rows;
  }
}

TEST_P(LinearTest, SharesAnInput) {
  absl::StatusOr<std::unique_ptr<Linear>> front =
      Linear::Create({matrix_.View(0, 30)}, "front");
  absl::StatusOr<std::unique_ptr<Linear>> back =
      Linear::Create({matrix_.View(30, kOut - 30)}, "back");
  ASSERT_TRUE(front.ok() && back.ok());
  const std::vector<float> y0 = Product(**front);
  const std::vector<float> y1 = Product(**back);
  std::vector<float> x = x_.ToVector();
  x.resize(x.size() + LinearInput::kReadablePastEnd / sizeof(float));
  std::vector<float> shared0(y0.size()), shared1(y1.size());
  input_.Set(x.data(), kRows, in_);
  (*front)->Run(input_, shared0.data(), nullptr);
  (*back)->Run(input_, shared1.data(), nullptr);
  EXPECT_TRUE(SameBits(shared0, y0));
  EXPECT_TRUE(SameBits(shared1, y1));
}

TEST_P(LinearTest, ARowWithNanGivesNoNumbers) {
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({matrix_.View()}, "test");
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> clean = Product(**linear);
  std::vector<float> x = x_.ToVector();
  x.resize(x.size() + LinearInput::kReadablePastEnd / sizeof(float));
  x[static_cast<size_t>(5 * in_ + 17)] = NAN;
  std::vector<float> y(clean.size());
  input_.Set(x.data(), kRows, in_);
  (*linear)->Run(input_, y.data(), nullptr);
  for (int row = 0; row < kRows; ++row) {
    if (row == 5) {
      for (int i = 0; i < kOut; ++i)
        EXPECT_FALSE(std::isfinite(y[5 * kOut + i]));
    } else {
      EXPECT_TRUE(
          SameBits(y.data() + row * kOut, clean.data() + row * kOut, kOut));
    }
  }
}

TEST_P(LinearTest, RefusesUnsoundParts) {
  const auto code = [&](absl::Span<const MatrixView> parts) {
    return Refusal(parts).code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({matrix_.View(0, 3), MatrixView{}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({matrix_.View(0, 0)}), absl::StatusCode::kInvalidArgument);
  MatrixView narrow = matrix_.View(0, 3);
  narrow.cols = in_ - 32;
  EXPECT_EQ(code({matrix_.View(0, 3), narrow}),
            absl::StatusCode::kInvalidArgument);
  MatrixView huge = matrix_.View(0, 2147483647);
  EXPECT_EQ(code({huge, huge}), absl::StatusCode::kInvalidArgument);
  for (int type : {0, 5, 99}) {
    MatrixView foreign = matrix_.View(0, 3);
    foreign.type = static_cast<WeightType>(type);
    foreign.scales = foreign.data;
    EXPECT_EQ(code({foreign}), absl::StatusCode::kUnimplemented);
  }
  for (const WeightType type : kWeightTypes) {
    if (type == GetParam()) continue;
    MatrixView other = matrix_.View(0, 3);
    other.type = type;
    other.scales = other.data;
    EXPECT_EQ(code({matrix_.View(0, 3), other}),
              absl::StatusCode::kInvalidArgument);
  }
  MatrixView bare = matrix_.View(0, 3);
  bare.scales = nullptr;
  if (GetParam() != WeightType::kF32) {
    EXPECT_EQ(code({bare}), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(LinearTest, SurvivesEveryRefusedAllocation) {
  const MatrixView parts[] = {matrix_.View(0, 3), matrix_.View(8, 4)};
  const int64_t before = LiveAllocatedBytes();
  int refused = 0;
  for (int64_t nth = 1;; ++nth) {
    const ScopedAllocationFailure failure(nth);
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        Linear::Create(parts, "layer 3 out");
    if (linear.ok()) break;
    ++refused;
    EXPECT_EQ(linear.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(linear.status().message().find("layer 3 out"), std::string::npos)
        << linear.status();
    EXPECT_EQ(LiveAllocatedBytes(), before);
  }
  // To join the parts, and their scales if they have any; packed weights.
  EXPECT_EQ(refused, GetParam() == WeightType::kF32 ? 2 : 3);
}

INSTANTIATE_TEST_SUITE_P(Types, LinearTest, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& info) {
                           return std::string(WeightTypeName(info.param));
                         });

TEST(LinearLimitsTest, FourBitsComeInBlocks) {
  const std::vector<uint8_t> bytes(64, 0x12);
  const std::vector<uint16_t> scales(8, 0x3F80);
  for (const int cols : {1, 31, 33, 48}) {
    const MatrixView view = {bytes.data(), WeightType::kQ4, 1, cols,
                             scales.data()};
    const absl::Status status = Linear::Create({view}, "odd").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(cols)), std::string::npos)
        << status;
  }
}

// All processors take pairs of blocks; some take no others, and say so.
TEST(LinearLimitsTest, FourBitsMayHaveToComeInPairsOfBlocks) {
  const std::vector<uint8_t> bytes(128, 0x12);
  const std::vector<uint16_t> scales(8, 0x3F80);
  for (const int cols : {32, 64, 96, 128, 160, 192, 224, 256}) {
    const MatrixView view = {bytes.data(), WeightType::kQ4, 1, cols,
                             scales.data()};
    const absl::Status status = Linear::Create({view}, "narrow").status();
    if (status.ok()) continue;
    EXPECT_NE(cols % 64, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("'narrow' has " + std::to_string(cols)),
                      HasSubstr("without AVX2"), HasSubstr("multiples of 64")));
  }
}

TEST(LinearLimitsTest, ScalesOfEightBitsArePositiveAndNormal) {
  const std::vector<int8_t> bytes(2 * 32, 7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const WeightType type : {WeightType::kQ8, WeightType::kQ8W}) {
    for (const float bad : {0.0f, -1.0f, 1e-40f, kInfinity, -kInfinity,
                            std::numeric_limits<float>::quiet_NaN()}) {
      const float scales[] = {1.0f, bad};
      const MatrixView view = {bytes.data(), type, 2, 32, scales};
      const absl::Status status = Linear::Create({view}, "bad").status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bad;
      EXPECT_THAT(status.message(), HasSubstr("'bad': scale 1 is "));
    }
    const float scales[] = {1.0f, std::numeric_limits<float>::min()};
    const MatrixView view = {bytes.data(), type, 2, 32, scales};
    EXPECT_TRUE(Linear::Create({view}, "good").ok());
  }
}

TEST(LinearLimitsTest, ScalesOfFourBitsArePositiveAndNormal) {
  const std::vector<uint8_t> bytes(32, 0x12);
  // 0, -1, a denormal, infinity, a NaN; then the least normal and 1.
  for (const int bits : {0x0000, 0xBF80, 0x0040, 0x7F80, 0x7FC0}) {
    const uint16_t scales[] = {0x3F80, static_cast<uint16_t>(bits)};
    const MatrixView view = {bytes.data(), WeightType::kQ4, 1, 64, scales};
    EXPECT_EQ(Linear::Create({view}, "bad").status().code(),
              absl::StatusCode::kDataLoss)
        << bits;
  }
  for (const int bits : {0x0080, 0x3F80}) {
    const uint16_t scales[] = {0x3F80, static_cast<uint16_t>(bits)};
    const MatrixView view = {bytes.data(), WeightType::kQ4, 1, 64, scales};
    EXPECT_TRUE(Linear::Create({view}, "good").ok()) << bits;
  }
}

// The largest sum that there can be.
TEST(LinearLimitsTest, EightBitsDoNotOverflow) {
  constexpr int kIn = Linear::kMaxQ8Features;
  const std::vector<int8_t> bytes(kIn + 1, 127);
  const float scale = 1.0f;
  MatrixView view = {bytes.data(), WeightType::kQ8, 1, kIn, &scale};
  absl::StatusOr<std::unique_ptr<Linear>> linear =
      Linear::Create({view}, "wide");
  ASSERT_TRUE(linear.ok()) << linear.status();
  LinearInput input = LinearInput::Allocate(1, kIn).value();
  const CanaryBuffer<float> x(std::vector<float>(kIn, 1.0f));
  input.Set(x.data(), 1, kIn);
  float y = 0;
  (*linear)->Run(input, &y, nullptr);
  EXPECT_NEAR(y, 127.0 * kIn, 127.0 * kIn * 1e-6);
  view.cols = kIn + 1;
  EXPECT_EQ(Linear::Create({view}, "wide").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Packed weights of another version would be read as noise.
TEST(PackingIdentityTest, NamesTheLibrary) {
  const absl::string_view library(
      static_cast<const char*>(xnn_experimental_get_build_identifier_data()),
      xnn_experimental_get_build_identifier_size());
  EXPECT_THAT(library, HasSubstr("xnnpack"));
  EXPECT_THAT(PackingIdentity(), HasSubstr(absl::BytesToHexString(library)));
}

}  // namespace
}  // namespace deltaedge
