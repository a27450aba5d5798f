// SPDX-License-Identifier: Apache-2.0

#include "kernels/conv1d/conv1d.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/argument_error.h"
#include "kernels/conv1d/conv1d_reference.h"
#include "pthreadpool.h"
#include "tests/testing/canary.h"
#include "tests/testing/hwy_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/safetensors_lite.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::ForEachHwyTarget;
using testing::Golden;
using testing::GoldenTensor;
using testing::Random;
using testing::SameBits;

using Floats = std::vector<float>;

// Four products and one exponential: a few units in the last place.
constexpr double kLimit = 1e-6;

// A ring full of NaN, into which columns are written by position.
class Ring {
 public:
  Ring(int channels, int rows)
      : channels_(channels),
        rows_(rows),
        data_(static_cast<size_t>(channels) * rows, 1) {}

  void Write(int64_t position, const float* column) {
    std::copy(column, column + channels_,
              &data_[static_cast<size_t>(position % rows_) * channels_]);
  }
  const float* data() const { return data_.data(); }
  int rows() const { return rows_; }

 private:
  int channels_;
  int rows_;
  CanaryBuffer<float> data_;
};

// Runs `rows` dense columns at `position`, laid out with odd strides and NaN
// between the rows, and gives [rows, channels] back.
Floats Convolve(int channels, int64_t position, const Ring& ring,
                const float* x, int rows, const float* weight,
                pthreadpool_t pool = nullptr) {
  const size_t stride = static_cast<size_t>(channels) + 3;
  CanaryBuffer<float> strided(rows * stride, 3);
  CanaryBuffer<float> out(rows * stride, 1);
  for (int t = 0; t < rows; ++t) {
    std::copy(x + t * channels, x + (t + 1) * channels, &strided[t * stride]);
  }
  Conv1dBlock block;
  block.channels = channels;
  block.rows = rows;
  block.position = position;
  block.ring = position == 0 ? nullptr : ring.data();
  block.ring_rows = ring.rows();
  block.x = strided.data();
  block.x_stride = static_cast<int64_t>(stride);
  block.weight = weight;
  block.out = out.data();
  block.out_stride = static_cast<int64_t>(stride);
  ArgumentError error = {"", 0, 0, ""};
  EXPECT_TRUE(CheckConv1dBlock(block, &error)) << error.argument;
  Conv1dSiluForward(block, pool);
  EXPECT_TRUE(out.Intact());
  Floats result;
  for (int t = 0; t < rows; ++t) {
    const float* row = &out[t * stride];
    result.insert(result.end(), row, row + channels);
    for (size_t c = static_cast<size_t>(channels); c < stride; ++c) {
      EXPECT_TRUE(std::isnan(row[c])) << "wrote between rows";
    }
  }
  return result;
}

template <class Expected>
void ExpectNear(const Floats& actual, const Expected& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0.0;
  for (const auto value : expected) {
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], kLimit * largest) << "at " << i;
  }
}

// [C, T] to [T, C], from a tensor [B, C, T].
Floats Columns(const GoldenTensor& x, int64_t batch) {
  const int64_t channels = x.dim(1);
  const int64_t rows = x.dim(2);
  Floats columns(static_cast<size_t>(channels * rows));
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < rows; ++t) {
      columns[t * channels + c] = x.floats[(batch * channels + c) * rows + t];
    }
  }
  return columns;
}

TEST(Conv1dTest, AgreesWithTheGoldens) {
  const Golden golden("tests/testdata/ops/causal_conv1d.safetensors");
  ASSERT_EQ(golden.error(), "");
  ForEachHwyTarget([&] {
    // Cases 2 and 5 have a bias, which no model of this family has.
    for (const char* name : {"conv0.", "conv1.", "conv3.", "conv4."}) {
      SCOPED_TRACE(name);
      const GoldenTensor& x = golden[std::string(name) + "x"];
      const GoldenTensor& weight = golden[std::string(name) + "weight"];
      ASSERT_EQ(weight.dim(1), 4);
      const int channels = static_cast<int>(x.dim(1));
      const int rows = static_cast<int>(x.dim(2));
      Floats taps(weight.floats.size());
      for (int c = 0; c < channels; ++c) {
        for (int i = 0; i < 4; ++i) {
          taps[i * channels + c] = weight.floats[c * 4 + i];
        }
      }
      for (int64_t b = 0; b < x.dim(0); ++b) {
        const Floats columns = Columns(x, b);
        ExpectNear(Convolve(channels, 0, Ring(channels, 3), columns.data(),
                            rows, taps.data()),
                   Columns(golden[std::string(name) + "prefill_out"], b));
        const Floats before =
            Columns(golden[std::string(name) + "state_in"], b);
        Ring ring(channels, 19);
        for (int i = 1; i < 4; ++i) {
          ring.Write(96 + i, &before[static_cast<size_t>(i) * channels]);
        }
        ExpectNear(
            Convolve(channels, 100, ring, columns.data(), rows, taps.data()),
            Columns(golden[std::string(name) + "update_out"], b));
      }
    }
  });
}

TEST(Conv1dTest, AgreesWithTheReference) {
  std::vector<int> sizes;
  for (int channels = 1; channels <= 35; ++channels) sizes.push_back(channels);
  sizes.insert(sizes.end(), {1023, 1024, 1025, 2100});
  ForEachHwyTarget([&] {
    for (const int channels : sizes) {
      SCOPED_TRACE(std::to_string(channels) + " channels");
      constexpr int kPositions = 6;
      Random random(static_cast<uint64_t>(channels));
      const size_t size = static_cast<size_t>(channels);
      const Floats columns = random.Gaussians(kPositions * size, 3.0f);
      const CanaryBuffer<float> weight(random.Gaussians(4 * size), 1);
      std::vector<double> expected(columns.size());
      Conv1dSiluReference(channels, kPositions, columns.data(), weight.data(),
                          expected.data());
      ExpectNear(Convolve(channels, 0, Ring(channels, 3), columns.data(),
                          kPositions, weight.data()),
                 expected);
    }
  });
}

TEST(Conv1dTest, SiluIsRightFarFromZero) {
  ForEachHwyTarget([] {
    Floats x;
    for (const float y : {0.0f, 1e-30f, 1e-4f, 1.0f, 20.0f, 80.0f, 87.0f, 88.6f,
                          88.8f, 89.0f, 103.9f, 104.1f, 120.0f, 1e4f, 1e30f}) {
      x.push_back(y);
      x.push_back(-y);
    }
    const int channels = static_cast<int>(x.size());
    Floats weight(4 * x.size(), 0.0f);
    std::fill(weight.end() - channels, weight.end(), 1.0f);
    const Floats out =
        Convolve(channels, 0, Ring(channels, 3), x.data(), 1, weight.data());
    for (int c = 0; c < channels; ++c) {
      const double y = x[c];
      const double expected = y / (1.0 + std::exp(-y));
      // Where exp(-y) is beyond float, the result is 0 and not some 1e-37.
      EXPECT_NEAR(out[c], expected, kLimit * std::fabs(expected) + 1e-36) << y;
    }
  });
}

// A sequence under speculation: blocks whose tail is wrong, any number of rows
// kept, wrong columns left in the ring.
TEST(Conv1dTest, AnyScheduleOfBlocksAndKeepsGivesTheSameBits) {
  constexpr int kPositions = 30;
  constexpr int kMaxRows = 5;
  ForEachHwyTarget([&] {
    for (const int channels : {1, 7, 16, 37}) {
      Random random(static_cast<uint64_t>(channels));
      const size_t size = static_cast<size_t>(channels);
      const Floats columns = random.Gaussians(kPositions * size);
      const Floats weight = random.Gaussians(4 * size);
      const Floats truth = Convolve(channels, 0, Ring(channels, 3),
                                    columns.data(), kPositions, weight.data());
      for (int schedule = 0; schedule < 100; ++schedule) {
        SCOPED_TRACE(std::to_string(channels) + " channels, schedule " +
                     std::to_string(schedule));
        Ring ring(channels, kMaxRows + 3);
        int position = 0;
        while (position < kPositions) {
          const int rows =
              std::min(random.Int(1, kMaxRows), kPositions - position);
          const int right = random.Int(0, rows);
          Floats block(columns.begin() + position * size,
                       columns.begin() + (position + rows) * size);
          for (size_t i = right * size; i < block.size(); ++i) {
            block[i] = random.Gaussian();
          }
          const Floats out = Convolve(channels, position, ring, block.data(),
                                      rows, weight.data());
          ASSERT_TRUE(
              SameBits(out.data(), &truth[position * size], right * size));
          for (int t = 0; t < rows; ++t) {
            ring.Write(position + t, &block[t * size]);
          }
          position += random.Int(0, right);
        }
      }
    }
  });
}

TEST(Conv1dTest, ThreadsDoNotChangeABit) {
  constexpr int kChannels = 2500;
  constexpr int kRows = 5;
  ForEachHwyTarget([&] {
    Random random(1);
    const Floats columns = random.Gaussians(kRows * kChannels);
    const Floats weight = random.Gaussians(4 * kChannels);
    const Ring ring(kChannels, 3);
    const Floats expected =
        Convolve(kChannels, 0, ring, columns.data(), kRows, weight.data());
    for (size_t threads = 1; threads <= 3; ++threads) {
      const std::unique_ptr<pthreadpool, void (*)(pthreadpool_t)> pool(
          pthreadpool_create(threads), pthreadpool_destroy);
      EXPECT_TRUE(SameBits(Convolve(kChannels, 0, ring, columns.data(), kRows,
                                    weight.data(), pool.get()),
                           expected));
    }
  });
}

TEST(Conv1dTest, FlushesDenormals) {
  ForEachHwyTarget([] {
    const Floats x(5, 1e-20f);
    const Floats weight(20, 1e-19f);
    EXPECT_TRUE(SameBits(Convolve(5, 0, Ring(5, 3), x.data(), 1, weight.data()),
                         Floats(5, 0.0f)));
  });
}

class CheckConv1dBlockTest : public ::testing::Test {
 protected:
  CheckConv1dBlockTest() {
    block_.channels = 5;
    block_.rows = 2;
    block_.position = 7;
    block_.ring = ring_.data();
    block_.ring_rows = 4;
    block_.x = x_.data();
    block_.x_stride = 6;
    block_.weight = weight_.data();
    block_.out = out_.data();
    block_.out_stride = 8;
  }

  // Sets `place` to `value`, expects an error, and restores it.
  template <class T, class U>
  void Refuses(T& place, U value, const std::string& argument,
               int64_t error_value) {
    const T before = place;
    place = value;
    ArgumentError error = {"", 0, 0, ""};
    EXPECT_FALSE(CheckConv1dBlock(block_, &error)) << argument;
    EXPECT_FALSE(CheckConv1dBlock(block_, nullptr)) << argument;
    EXPECT_EQ(error.argument, argument);
    EXPECT_EQ(error.index, -1);
    EXPECT_EQ(error.value, error_value);
    EXPECT_NE(std::string(error.allowed), "");
    place = before;
    EXPECT_TRUE(CheckConv1dBlock(block_, &error)) << error.argument;
  }

  Floats ring_ = Floats(20), x_ = Floats(12), weight_ = Floats(20),
         out_ = Floats(16);
  Conv1dBlock block_;
};

TEST_F(CheckConv1dBlockTest, AcceptsWhatIsSound) {
  EXPECT_TRUE(CheckConv1dBlock(block_, nullptr));
  block_.position = 0;
  block_.ring = nullptr;
  EXPECT_TRUE(CheckConv1dBlock(block_, nullptr));
  block_.rows = 0;
  block_.x = block_.weight = nullptr;
  block_.out = nullptr;
  EXPECT_TRUE(CheckConv1dBlock(block_, nullptr));
}

TEST_F(CheckConv1dBlockTest, NamesWhatIsNot) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Refuses(block_.channels, 0, "channels", 0);
  Refuses(block_.channels, (1 << 28) + 1, "channels", (1 << 28) + 1);
  Refuses(block_.rows, -1, "rows", -1);
  Refuses(block_.position, -1, "position", -1);
  Refuses(block_.position, kMax, "position", kMax);
  Refuses(block_.ring, nullptr, "ring", 0);
  Refuses(block_.ring_rows, 2, "ring_rows", 2);
  Refuses(block_.x, nullptr, "x", 0);
  Refuses(block_.x_stride, 4, "x_stride", 4);
  Refuses(block_.x_stride, kMax, "x_stride", kMax);
  Refuses(block_.weight, nullptr, "weight", 0);
  Refuses(block_.out, nullptr, "out", 0);
  Refuses(block_.out_stride, 4, "out_stride", 4);
  Refuses(block_.out, x_.data(), "out", 0);
  Refuses(block_.out, ring_.data() + 19, "out", 0);
  Refuses(block_.out, weight_.data() + 7, "out", 0);
}

}  // namespace
}  // namespace deltaedge
