// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "gtest/gtest.h"
#include "pthreadpool.h"
#include "tests/engine/ops/random_matrix.h"

namespace deltaedge {
namespace {

// Not much of a product: y is the row's first number. Rounds it otherwise in
// batches of less than `tile` rows, unless one kernel takes all.
class FickleLinear final : public Linear {
 public:
  struct Faults {
    int32_t tile = 0;
    bool one_kernel_helps = true;
    WeightType type = WeightType::kF32;
  };

  FickleLinear(const MatrixView& matrix, const LinearOptions& options,
               const Faults& faults)
      : Linear(Shape{matrix.cols, matrix.rows}),
        tile_(matrix.type != faults.type ||
                      (options.one_kernel && faults.one_kernel_helps)
                  ? 0
                  : faults.tile) {}

  // Nobody asks.
  void RunPart(LinearInput&, const Part&) const override {}
  int32_t panel_outputs() const override { return 1; }
  int32_t PartOutputs(int64_t, int64_t) const override { return 1; }

 protected:
  void Multiply(LinearInput& input, float* y, pthreadpool_t) const override {
    for (int32_t row = 0; row < input.rows(); ++row) {
      std::fill_n(y + row * out_features(), out_features(),
                  input.x()[row * in_features()]);
    }
    if (input.rows() < tile_) y[0] = std::nextafter(y[0], HUGE_VALF);
  }
  // Nobody asks.
  void MultiplyArgMax(LinearInput&, ArgMax*, float*,
                      pthreadpool_t) const override {}

 private:
  const int32_t tile_;
};

class RowCheckTest : public ::testing::Test {
 protected:
  RowCheckTest() {
    SetLogSink([this](LogLevel level, absl::string_view message) {
      EXPECT_EQ(level, LogLevel::kWarning);
      log_.emplace_back(message);
    });
  }
  ~RowCheckTest() override { SetLogSink(nullptr); }

  static absl::StatusOr<LinearOptions> Find(
      absl::Span<const WeightType> types, const FickleLinear::Faults& faults) {
    return FindLinearOptions(
        types, /*pool=*/nullptr,
        [&](absl::Span<const MatrixView> parts, absl::string_view,
            const LinearOptions& options) -> std::unique_ptr<Linear> {
          return std::make_unique<FickleLinear>(parts[0], options, faults);
        });
  }

  std::vector<std::string> log_;
};

TEST_F(RowCheckTest, ThisMachineIsFine) {
  for (int threads = 1; threads <= 3; ++threads) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    log_.clear();  // That there are fewer processors than threads.
    for (const WeightType type : kWeightTypes) {
      absl::StatusOr<LinearOptions> options =
          FindLinearOptions({type}, (*pool)->get());
      ASSERT_TRUE(options.ok()) << options.status();
      EXPECT_FALSE(options->one_kernel) << WeightTypeName(type);
    }
    EXPECT_TRUE(log_.empty());
  }
}

TEST_F(RowCheckTest, OneKernelWhereFewRowsDiffer) {
  for (int32_t tile : {2, 3, 8, 16, 17}) {
    log_.clear();
    absl::StatusOr<LinearOptions> options = Find({WeightType::kF32}, {tile});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_TRUE(options->one_kernel) << tile;
    EXPECT_EQ(log_.size(), 1u);
  }
  EXPECT_FALSE(Find({WeightType::kF32}, {1})->one_kernel);
}

TEST_F(RowCheckTest, LooksAtTheTypesInUse) {
  for (const WeightType fickle : kWeightTypes) {
    for (const WeightType used : kWeightTypes) {
      EXPECT_EQ(Find({used}, {4, true, fickle})->one_kernel, used == fickle);
    }
    EXPECT_TRUE(Find(kWeightTypes, {4, true, fickle})->one_kernel);
  }
  EXPECT_FALSE(Find({}, {4})->one_kernel);
}

TEST_F(RowCheckTest, GivesUpWhereOneKernelDoesNotHelp) {
  EXPECT_EQ(Find({WeightType::kF32}, {4, false}).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(RowCheckTest, PassesErrorsOn) {
  EXPECT_EQ(
      FindLinearOptions(
          {WeightType::kF32}, /*pool=*/nullptr,
          [](absl::Span<const MatrixView>, absl::string_view,
             const LinearOptions&) -> absl::StatusOr<std::unique_ptr<Linear>> {
            return absl::UnimplementedError("no");
          })
          .status(),
      absl::UnimplementedError("no"));
}

}  // namespace
}  // namespace deltaedge
