// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear_input.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/allocation_hooks.h"
#include "gtest/gtest.h"
#include "kernels/quant/quantize_rows.h"
#include "kernels/quant/quantize_rows_reference.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

constexpr int kRows = 20;
constexpr int kFeatures = 65;

void ExpectQuantized(const LinearInput::Quantized& quantized,
                     const std::vector<float>& x, int rows, int features) {
  std::vector<int8_t> q(static_cast<size_t>(features));
  RowQuantization expected = {};
  for (int row = 0; row < rows; ++row) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * features;
    expected = QuantizeRowReference(features, x.data() + begin, q.data());
    const int8_t* actual = quantized.q + begin;
    EXPECT_EQ(std::vector<int8_t>(actual, actual + features), q) << row;
    EXPECT_EQ(quantized.quantization[row].scale, expected.scale);
    EXPECT_EQ(quantized.quantization[row].zero_point, expected.zero_point);
  }
}

TEST(LinearInputTest, QuantizesOnceForEachBatch) {
  absl::StatusOr<LinearInput> input = LinearInput::Allocate(kRows, kFeatures);
  ASSERT_TRUE(input.ok()) << input.status();
  std::vector<float> x(kRows * kFeatures, 3.0f);
  input->Set(x.data(), kRows, kFeatures);
  input->Quantize(nullptr);
  // Against the rules, to see that it is not read again.
  x[0] = 1000.0f;
  const LinearInput::Quantized again = input->Quantize(nullptr);
  EXPECT_EQ(again.quantization[0].scale, 3.0f / 255);
  input->Set(x.data(), kRows, kFeatures);
  ExpectQuantized(input->Quantize(nullptr), x, kRows, kFeatures);
}

TEST(LinearInputTest, TakesBatchesOfAnyShapeThatFits) {
  absl::StatusOr<LinearInput> input = LinearInput::Allocate(4, 300);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_GE(input->bytes(), 4 * 300);
  testing::Random random(2);
  for (const int features : {1, 7, 150, 300}) {
    const std::vector<float> x =
        random.Gaussians(4 * static_cast<size_t>(features));
    input->Set(x.data(), 4, features);
    EXPECT_EQ(input->x(), x.data());
    EXPECT_EQ(input->rows(), 4);
    EXPECT_EQ(input->features(), features);
    ExpectQuantized(input->Quantize(nullptr), x, 4, features);
  }
}

TEST(LinearInputTest, SaysWhenThereIsNoMemory) {
  for (int64_t nth = 1; nth <= 2; ++nth) {
    const ScopedAllocationFailure failure(nth);
    EXPECT_EQ(LinearInput::Allocate(4, 8).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace deltaedge
