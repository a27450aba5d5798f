// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/row_check.h"

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
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_reference.h"
#include "gtest/gtest.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

// Rounds its first output otherwise in batches of less than `tile` rows.
class FickleLinear final : public Linear {
 public:
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options, int32_t tile) {
    auto linear = std::make_unique<FickleLinear>(
        Shape{parts[0].cols, parts[0].rows}, tile);
    linear->exact_ = ReferenceLinear::Create(parts, name).value();
    absl::Status status = linear->Configure(options, name);
    if (!status.ok()) return status;
    return linear;
  }
  FickleLinear(const Shape& shape, int32_t tile) : Linear(shape), tile_(tile) {}

 protected:
  absl::Status Multiply(const float* x, int32_t rows, float* y,
                        pthreadpool_t pool) override {
    absl::Status status = exact_->Run(x, rows, y, pool);
    if (rows < tile_) y[0] = std::nextafter(y[0], HUGE_VALF);
    return status;
  }

 private:
  std::unique_ptr<Linear> exact_;
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

  static absl::StatusOr<LinearOptions> Find(int32_t tile) {
    return FindLinearOptions(
        /*pool=*/nullptr,
        [tile](absl::Span<const MatrixView> parts, absl::string_view name,
               const LinearOptions& options) {
          return FickleLinear::Create(parts, name, options, tile);
        });
  }

  std::vector<std::string> log_;
};

TEST_F(RowCheckTest, ThisMachineNeedsNoPadding) {
  for (int threads = 1; threads <= 3; ++threads) {
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok()) << pool.status();
    absl::StatusOr<LinearOptions> options = FindLinearOptions((*pool)->get());
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->min_rows, 1);
  }
  EXPECT_TRUE(log_.empty());
}

TEST_F(RowCheckTest, PadsWhereFewRowsDiffer) {
  for (int32_t tile : {2, 3, 8, 16}) {
    log_.clear();
    absl::StatusOr<LinearOptions> options = Find(tile);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->min_rows, 16) << tile;
    EXPECT_EQ(log_.size(), 1u);
  }
  EXPECT_EQ(Find(1)->min_rows, 1);
}

TEST_F(RowCheckTest, GivesUpWherePaddingDoesNotHelp) {
  EXPECT_EQ(Find(17).status().code(), absl::StatusCode::kInternal);
}

TEST_F(RowCheckTest, PassesErrorsOn) {
  EXPECT_EQ(
      FindLinearOptions(
          /*pool=*/nullptr,
          [](absl::Span<const MatrixView>, absl::string_view,
             const LinearOptions&) -> absl::StatusOr<std::unique_ptr<Linear>> {
            return absl::UnimplementedError("no");
          })
          .status(),
      absl::UnimplementedError("no"));
}

}  // namespace
}  // namespace deltaedge
