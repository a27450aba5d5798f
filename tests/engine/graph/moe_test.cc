// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/moe.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/thread_pool.h"
#include "engine/graph/mlp.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/packed_cache.h"
#include "gtest/gtest.h"
#include "kernels/moe/moe_reference.h"
#include "pthreadpool.h"
#include "tests/engine/ops/random_matrix.h"
#include "tests/testing/canary.h"
#include "tests/testing/heap_calls.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::CanaryBuffer;
using testing::Random;
using testing::RandomMatrix;
using testing::SameBits;

constexpr int32_t kMaxRows = 40;

struct Shape {
  int32_t hidden;
  MoeConfig config;
};

Shape MakeShape(int32_t hidden, int32_t experts, int32_t top_k, int32_t size,
                int32_t shared, bool normalise) {
  return {hidden, {experts, top_k, size, shared, normalise, {true}}};
}

// All sizes odd; and sizes that int4 can have.
const Shape kOdd = MakeShape(23, 7, 3, 13, 9, true);
const Shape kEven = MakeShape(64, 6, 2, 32, 96, false);
// An expert is several pages of memory, whatever its weights' type.
const Shape kMapped = MakeShape(256, 6, 2, 96, 32, true);

// A mixture with random weights and the buffers to run it.
class Mixture {
 public:
  Mixture(const Shape& shape, WeightType type)
      : shape_(shape),
        random_(static_cast<uint64_t>(shape.hidden)),
        router_(WeightType::kF32, E(), H(), random_),
        shared_router_(WeightType::kF32, 1, H(), random_),
        gate_up_(type, E() * 2 * Im(), H(), random_),
        down_(type, E() * H(), Im(), random_),
        gate_(type, Is(), H(), random_),
        up_(type, Is(), H(), random_),
        shared_down_(type, H(), Is(), random_) {
    weights_ = {router_.View(),
                shared_router_.View(),
                gate_up_.View(),
                down_.View(),
                {gate_.View(), up_.View(), shared_down_.View()}};
    input_ = LinearInput::Allocate(kMaxRows, 256).value();
    mlp_ = MlpScratch::Allocate(kMaxRows, Is()).value();
    scratch_ = MoeScratch::Allocate(kMaxRows, H(), shape_.config).value();
  }

  // Unimplemented: not with this type on this processor.
  absl::Status Make(const LinearOptions& options = {}) {
    auto moe = Moe::Create(weights_, shape_.config, "moe", options);
    if (moe.ok()) moe_ = std::make_unique<Moe>(*std::move(moe));
    return moe.status();
  }

  std::vector<float> Inputs(int rows) {
    return random_.Gaussians(static_cast<size_t>(rows) * H());
  }

  std::vector<float> Run(const float* h, int rows,
                         pthreadpool_t pool = nullptr) {
    const CanaryBuffer<float> in(std::vector<float>(h, h + rows * H()), 1);
    CanaryBuffer<float> y(static_cast<size_t>(rows) * H(), 3);
    moe_->Run(in.data(), rows, &input_, &mlp_, &scratch_, y.data(), pool);
    EXPECT_TRUE(y.Intact());
    return y.ToVector();
  }

  // Requests for memory that a run of `rows` rows, of any numbers, makes.
  int64_t HeapCallsOf(int rows) {
    const CanaryBuffer<float> h(Inputs(rows), 1);
    std::vector<float> y(static_cast<size_t>(rows) * H());
    const int64_t before = testing::HeapCalls();
    moe_->Run(h.data(), rows, &input_, &mlp_, &scratch_, y.data(), nullptr);
    return testing::HeapCalls() - before;
  }

  // In double, of one row.
  std::vector<double> Truth(const float* h) const {
    const std::vector<double> x(h, h + H());
    const MoeChoice choice = MoeRouteReference(Times(weights_.router, x),
                                               shape_.config.experts_per_token,
                                               shape_.config.normalise);
    const std::vector<double> shared = SwiGluMlp(
        weights_.shared.gate, weights_.shared.up, weights_.shared.down, x);
    const double logit = Times(weights_.shared_router, x)[0];
    std::vector<std::vector<double>> answers;
    for (const int32_t id : choice.ids) {
      answers.push_back(SwiGluMlp(gate_up_.View(id * 2 * Im(), Im()),
                                  gate_up_.View((id * 2 + 1) * Im(), Im()),
                                  down_.View(id * H(), H()), x));
    }
    std::vector<double> y;
    for (int32_t i = 0; i < H(); ++i) {
      std::vector<double> of;
      for (const auto& answer : answers) of.push_back(answer[i]);
      y.push_back(MoeCombineReference(of, choice.weights, logit, shared[i]));
    }
    return y;
  }

  MoeWeights& weights() { return weights_; }
  int32_t E() const { return shape_.config.experts; }
  int32_t H() const { return shape_.hidden; }
  int32_t Im() const { return shape_.config.expert_size; }
  int32_t Is() const { return shape_.config.shared_size; }

 private:
  static std::vector<double> Times(const MatrixView& w,
                                   const std::vector<double>& x) {
    std::vector<float> row(x.size());
    std::vector<double> y;
    for (int32_t i = 0; i < w.rows; ++i) {
      DequantiseRow(w, i, row.data());
      double sum = 0;
      for (size_t k = 0; k < x.size(); ++k) sum += x[k] * row[k];
      y.push_back(sum);
    }
    return y;
  }
  static std::vector<double> SwiGluMlp(const MatrixView& gate,
                                       const MatrixView& up,
                                       const MatrixView& down,
                                       const std::vector<double>& x) {
    std::vector<double> inner = Times(gate, x);
    const std::vector<double> ups = Times(up, x);
    for (size_t i = 0; i < inner.size(); ++i) {
      inner[i] = inner[i] / (1 + std::exp(-inner[i])) * ups[i];
    }
    return Times(down, inner);
  }

  const Shape shape_;
  Random random_;
  const RandomMatrix router_, shared_router_, gate_up_, down_, gate_, up_,
      shared_down_;
  MoeWeights weights_;
  LinearInput input_;
  MlpScratch mlp_;
  MoeScratch scratch_;
  std::unique_ptr<Moe> moe_;
};

class MoeTest : public ::testing::TestWithParam<WeightType> {
 protected:
  std::vector<Shape> Shapes() const {
    return GetParam() == WeightType::kQ4 ? std::vector<Shape>{kEven}
                                         : std::vector<Shape>{kOdd, kEven};
  }
};

TEST_P(MoeTest, RowHasTheSameBitsInAnyCompanyAndWithThreads) {
  for (const Shape& shape : Shapes()) {
    for (const bool one_kernel : {false, true}) {
      Mixture mixture(shape, GetParam());
      LinearOptions options;
      options.one_kernel = one_kernel;
      const absl::Status status = mixture.Make(options);
      if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
      ASSERT_EQ(status, absl::OkStatus());
      const size_t width = static_cast<size_t>(shape.hidden);
      std::vector<float> h = mixture.Inputs(kMaxRows);
      // Rows that are alike choose alike.
      std::copy_n(h.begin(), width, h.begin() + 5 * width);
      std::vector<float> singly;
      for (int32_t row = 0; row < kMaxRows; ++row) {
        const std::vector<float> y = mixture.Run(h.data() + row * width, 1);
        singly.insert(singly.end(), y.begin(), y.end());
      }
      for (int threads = 1; threads <= 3; ++threads) {
        const auto pool = ThreadPool::Create(threads);
        ASSERT_TRUE(pool.ok());
        for (const int32_t rows : {2, 3, 5, 8, 16, 17, kMaxRows}) {
          const size_t first = static_cast<size_t>(kMaxRows - rows) * width;
          const std::vector<float> y =
              mixture.Run(h.data() + first, rows, (*pool)->get());
          EXPECT_TRUE(SameBits(y.data(), singly.data() + first, y.size()))
              << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(MoeTest, IsNearTheReference) {
  constexpr int kRows = 12;
  for (const Shape& shape : Shapes()) {
    Mixture mixture(shape, GetParam());
    const absl::Status status = mixture.Make();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
    ASSERT_EQ(status, absl::OkStatus());
    const std::vector<float> h = mixture.Inputs(kRows);
    const std::vector<float> y = mixture.Run(h.data(), kRows);
    double error = 0, size = 0;
    for (int row = 0; row < kRows; ++row) {
      const std::vector<double> truth =
          mixture.Truth(h.data() + row * shape.hidden);
      for (int32_t i = 0; i < shape.hidden; ++i) {
        error += std::pow(y[row * shape.hidden + i] - truth[i], 2);
        size += std::pow(truth[i], 2);
      }
    }
    // Types that round their inputs do so twice in a row, with steps of 1 % of
    // a deviation.
    const bool rounds =
        GetParam() == WeightType::kQ8 || GetParam() == WeightType::kQ4;
    EXPECT_LE(std::sqrt(error / size), rounds ? 0.05 : 2e-6);
  }
}

TEST_P(MoeTest, TakesNoMemory) {
  for (const Shape& shape : Shapes()) {
    Mixture mixture(shape, GetParam());
    const absl::Status status = mixture.Make();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
    ASSERT_EQ(status, absl::OkStatus());
    for (const int rows : {kMaxRows, 1, 7, kMaxRows}) {
      EXPECT_EQ(mixture.HeapCallsOf(rows), 0) << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MoeTest, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& info) {
                           return std::string(WeightTypeName(info.param));
                         });

// Experts 1 and 4 have the largest logits of any positive row.
std::vector<float> RouterTo1And4(const Shape& shape) {
  const int32_t hidden = shape.hidden;
  std::vector<float> router(shape.config.experts * hidden, 0.0f);
  std::fill_n(router.begin() + 1 * hidden, hidden, 2.0f);
  std::fill_n(router.begin() + 4 * hidden, hidden, 1.0f);
  return router;
}

// An expert that no row chose may hold anything.
TEST(MoeTest, OnlyChosenExpertsAreRead) {
  Mixture mixture(kEven, WeightType::kF32);
  const int32_t hidden = kEven.hidden, size = kEven.config.expert_size;
  const std::vector<float> router = RouterTo1And4(kEven);
  std::vector<float> gate_up(6 * 2 * size * hidden,
                             std::numeric_limits<float>::quiet_NaN());
  std::vector<float> down(6 * hidden * size,
                          std::numeric_limits<float>::quiet_NaN());
  for (const int32_t expert : {1, 4}) {
    std::fill_n(gate_up.begin() + expert * 2 * size * hidden, 2 * size * hidden,
                0.1f);
    std::fill_n(down.begin() + expert * hidden * size, hidden * size, 0.1f);
  }
  mixture.weights().router.data = router.data();
  mixture.weights().gate_up.data = gate_up.data();
  mixture.weights().down.data = down.data();
  ASSERT_EQ(mixture.Make(), absl::OkStatus());
  const std::vector<float> h(3 * hidden, 0.5f);
  for (const float y : mixture.Run(h.data(), 3)) {
    EXPECT_TRUE(std::isfinite(y));
  }
}

// Packed weights in a file whose pages can be taken away.
class MappedExpertsTest : public ::testing::TestWithParam<WeightType> {
 protected:
  void SetUp() override {
    const std::string path = ::testing::TempDir() + "/experts.packed";
    const auto writer = PackedCacheWriter::Create(path, "key");
    ASSERT_EQ(writer.status(), absl::OkStatus());
    PackedPieces to(writer->get(), /*in_file=*/false);
    mixture_.weights().router.data = router_.data();
    const absl::Status made = Make(&to);
    if (absl::IsUnimplemented(made)) GTEST_SKIP() << made;
    ASSERT_EQ(made, absl::OkStatus());
    ASSERT_EQ(to.status(), absl::OkStatus());
    ASSERT_EQ((*writer)->Commit(), absl::OkStatus());
    auto opened = PackedCache::Open(
        path, "key", PackedCache::Verify::kStructure, PackedCache::Use::kSome);
    ASSERT_EQ(opened.status(), absl::OkStatus());
    cache_ = *std::move(opened);
    PackedPieces from(cache_.get());
    ASSERT_EQ(Make(&from), absl::OkStatus());
  }

  absl::Status Make(PackedPieces* pieces) {
    LinearOptions options;
    options.packed = pieces;
    return mixture_.Make(options);
  }

  // Takes away the whole pages of an expert's gate_up and down, or gives them
  // back; returns how many there are.
  int Protect(int32_t expert, int protection) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    int pages = 0;
    for (const int piece : {1, 2}) {
      const absl::Span<const std::byte> all = cache_->piece(piece);
      const auto size = static_cast<int64_t>(all.size()) / mixture_.E();
      const auto begin = reinterpret_cast<intptr_t>(all.data()) + expert * size;
      const intptr_t first = (begin + page - 1) / page * page;
      const intptr_t last = (begin + size) / page * page;
      EXPECT_LT(first, last);
      EXPECT_EQ(mprotect(reinterpret_cast<void*>(first),
                         static_cast<size_t>(last - first), protection),
                0);
      pages += static_cast<int>((last - first) / page);
    }
    return pages;
  }

  std::vector<float> Run() {
    const std::vector<float> h(3 * kMapped.hidden, 0.5f);
    return mixture_.Run(h.data(), 3);
  }

  const std::vector<float> router_ = RouterTo1And4(kMapped);
  Mixture mixture_{kMapped, GetParam()};
  std::unique_ptr<PackedCache> cache_;
};

// Not so much as touched, so that of a mapped file they take no memory.
TEST_P(MappedExpertsTest, UnchosenOnesAreNotTouched) {
  const std::vector<float> y = Run();
  for (const int32_t expert : {0, 2, 3, 5}) {
    EXPECT_GE(Protect(expert, PROT_NONE), 3);
  }
  EXPECT_EQ(Run(), y);
  Protect(4, PROT_NONE);
  EXPECT_DEATH(Run(), "");
}

INSTANTIATE_TEST_SUITE_P(Types, MappedExpertsTest,
                         ::testing::Values(WeightType::kF32, WeightType::kQ8,
                                           WeightType::kQ4, WeightType::kQ8W),
                         [](const auto& info) {
                           return std::string(WeightTypeName(info.param));
                         });

// Scores that are no numbers are for the stepper to find; nothing breaks here.
TEST(MoeTest, RowsThatAreNoNumbersStayAmongThemselves) {
  Mixture mixture(kOdd, WeightType::kF32);
  ASSERT_EQ(mixture.Make(), absl::OkStatus());
  const size_t width = static_cast<size_t>(kOdd.hidden);
  std::vector<float> h = mixture.Inputs(3);
  const std::vector<float> alone = mixture.Run(h.data(), 1);
  h[width] = std::numeric_limits<float>::quiet_NaN();
  h[2 * width] = std::numeric_limits<float>::infinity();
  const std::vector<float> y = mixture.Run(h.data(), 3);
  EXPECT_TRUE(SameBits(y.data(), alone.data(), width));
  EXPECT_TRUE(std::isnan(y[width]));
}

}  // namespace
}  // namespace deltaedge
