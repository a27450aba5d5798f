// SPDX-License-Identifier: Apache-2.0

// Times products (engine/ops/linear.h), and XNNPACK's own operators beside
// them:
//
//   linear_bench --benchmark_filter=/q8/3584x1024/
//       --benchmark_enable_random_interleaving --benchmark_repetitions=20
//
// Names are what / weights / outputs x inputs / rows / threads; what is linear,
// operator, argmax (Linear::RunArgMax) or linear_argmax (the same in two
// passes).
// bytes_per_second is the rate at which weights are read, items_per_second that
// of multiplications; the floor (floors.h) is that of reading the weights once.
// Interleaving lets all cases share whatever else the
// machine does meanwhile; "min" and "median" are over the repetitions.
//
// Weights are met cold: successive calls go round copies of the matrix that
// take kColdBytes together.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmark/benchmark.h"
#include "engine/base/huge_page_arena.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "kernels/logits/argmax.h"
#include "pthreadpool.h"
#include "tools/bench/micro/fixture.h"
#include "tools/bench/micro/floors.h"
#include "xnnpack.h"

namespace deltaedge {
namespace {

struct Shape {
  int32_t out, in;
};

constexpr Shape kShapes[] = {
    {256, 128},      // For a test of this program.
    {3584, 1024},    // 0.8B: gate and up of half the width.
    {1024, 3584},    // 0.8B: down.
    {9216, 2560},    // 4B: one of gate and up.
    {248320, 1024},  // 0.8B: scores of the vocabulary.
};
constexpr int32_t kRows[] = {1, 2, 4, 6, 7, 8, 16, 32, 128, 512};
constexpr int kThreads[] = {1, 2};

void OrDie(xnn_status status) {
  if (status == xnn_status_success) return;
  std::cerr << "XNNPACK: status " << status << "\n";
  std::exit(1);
}

struct Matrix {
  Matrix(WeightType type, Shape shape)
      : view{nullptr, type, shape.out, shape.in} {
    Numbers numbers;
    const TensorLayout layout = *LayoutOf(type, {shape.out, shape.in});
    bytes.resize(static_cast<size_t>(layout.size_bytes()));
    view.data = bytes.data();
    if (type == WeightType::kF32) {
      float* data = reinterpret_cast<float*>(bytes.data());
      std::generate_n(data, bytes.size() / 4, [&] { return numbers.Float(); });
      return;
    }
    std::generate_n(bytes.begin(), layout.number_bytes,
                    [&] { return static_cast<uint8_t>(numbers.Bits()); });
    uint8_t* const scales = bytes.data() + layout.scale_offset;
    view.scales = scales;
    if (type == WeightType::kQ4) {
      std::fill_n(reinterpret_cast<uint16_t*>(scales), layout.scale_bytes / 2,
                  uint16_t{0x3C80});
    } else {
      std::fill_n(reinterpret_cast<float*>(scales), layout.scale_bytes / 4,
                  0.01f);
    }
  }

  std::vector<uint8_t> bytes;
  MatrixView view;
};

// An operator of XNNPACK's, run as a program would that has no Linear.
class Operator {
 public:
  explicit Operator(const MatrixView& w) : type_(w.type) {
    OrDie(xnn_initialize(/*allocator=*/nullptr));
    const size_t in = static_cast<size_t>(w.cols);
    const size_t out = static_cast<size_t>(w.rows);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float* scales = static_cast<const float*>(w.scales);
    const int8_t* int8 = static_cast<const int8_t*>(w.data);
    switch (type_) {
      case WeightType::kQ8:
        OrDie(xnn_create_fully_connected_nc_qd8_f32_qc8w(
            in, out, in, out, scales, int8, nullptr, -kInfinity, kInfinity, 0,
            nullptr, nullptr, &op_));
        break;
      case WeightType::kQ4:
        OrDie(xnn_create_fully_connected_nc_qd8_f32_qb4w(
            in, out, in, out, kQ4Block, 8,
            static_cast<const uint16_t*>(w.scales), w.data, nullptr, -kInfinity,
            kInfinity, 0, nullptr, nullptr, &op_));
        break;
      case WeightType::kQ8W:
        OrDie(xnn_create_fully_connected_nc_f32_qc8w(
            in, out, in, out, scales, int8, nullptr, -kInfinity, kInfinity, 0,
            nullptr, nullptr, &op_));
        break;
      default:
        OrDie(xnn_create_fully_connected_nc_f32(in, out, in, out, w.f32(),
                                                nullptr, -kInfinity, kInfinity,
                                                0, nullptr, nullptr, &op_));
    }
    OrDie(xnn_create_convert_nc_f32_qd8(0, &convert_));
  }
  ~Operator() {
    xnn_delete_operator(op_);
    xnn_delete_operator(convert_);
  }

  void Run(const LinearInput& input, float* y, pthreadpool_t pool) {
    const size_t rows = static_cast<size_t>(input.rows());
    const size_t in = static_cast<size_t>(input.features());
    if (type_ == WeightType::kQ8 || type_ == WeightType::kQ4) {
      x_.resize(rows * in + XNN_EXTRA_BYTES);
      quantization_.resize(rows + XNN_EXTRA_QUANTIZATION_PARAMS);
      OrDie(xnn_reshape_convert_nc_f32_qd8(convert_, rows, in, in, in, pool));
      OrDie(xnn_setup_convert_nc_f32_qd8(convert_, input.x(), x_.data(),
                                         quantization_.data()));
      OrDie(xnn_run_operator(convert_, pool));
    }
    switch (type_) {
      case WeightType::kQ8:
        OrDie(xnn_reshape_fully_connected_nc_qd8_f32_qc8w(op_, rows, pool));
        OrDie(xnn_setup_fully_connected_nc_qd8_f32_qc8w(op_, x_.data(), y,
                                                        quantization_.data()));
        break;
      case WeightType::kQ4:
        OrDie(xnn_reshape_fully_connected_nc_qd8_f32_qb4w(op_, rows, pool));
        OrDie(xnn_setup_fully_connected_nc_qd8_f32_qb4w(op_, x_.data(), y,
                                                        quantization_.data()));
        break;
      case WeightType::kQ8W:
        OrDie(xnn_reshape_fully_connected_nc_f32_qc8w(op_, rows, pool));
        OrDie(xnn_setup_fully_connected_nc_f32_qc8w(op_, input.x(), y));
        break;
      default:
        OrDie(xnn_reshape_fully_connected_nc_f32(op_, rows, pool));
        OrDie(xnn_setup_fully_connected_nc_f32(op_, input.x(), y));
    }
    OrDie(xnn_run_operator(op_, pool));
  }

 private:
  const WeightType type_;
  xnn_operator_t op_ = nullptr, convert_ = nullptr;
  std::vector<int8_t> x_;
  std::vector<xnn_quantization_params> quantization_;
};

// The best output of each row, as greedy decoding wants it.
class Best {
 public:
  Best(std::unique_ptr<Linear> linear, bool in_one)
      : linear_(std::move(linear)), in_one_(in_one) {}

  void Run(LinearInput& input, float* y, pthreadpool_t pool) {
    best_.resize(static_cast<size_t>(input.rows()));
    if (in_one_) {
      linear_->RunArgMax(input, best_.data(), /*second=*/nullptr, pool);
      return;
    }
    linear_->Run(input, y, pool);
    ArgMaxRows(input.rows(), linear_->out_features(), y,
               linear_->out_features(), best_.data(), pool);
  }

 private:
  const std::unique_ptr<Linear> linear_;
  const bool in_one_;
  std::vector<ArgMax> best_;
};

class BestInOne : public Best {
 public:
  explicit BestInOne(std::unique_ptr<Linear> linear)
      : Best(std::move(linear), true) {}
};
class BestInTwo : public Best {
 public:
  explicit BestInTwo(std::unique_ptr<Linear> linear)
      : Best(std::move(linear), false) {}
};

// Copies of one product, made when first asked for and kept.
template <class Product, class Make>
const std::vector<std::unique_ptr<Product>>& Copies(WeightType type,
                                                    Shape shape,
                                                    const Make& make) {
  static auto& made = *new std::map<std::tuple<WeightType, int32_t, int32_t>,
                                    std::vector<std::unique_ptr<Product>>>;
  std::vector<std::unique_ptr<Product>>& copies =
      made[{type, shape.out, shape.in}];
  if (copies.empty()) {
    const Matrix matrix(type, shape);
    const int64_t bytes = static_cast<int64_t>(matrix.bytes.size());
    const int64_t cold = shape.out <= 256 ? bytes : kColdBytes;
    for (int64_t total = 0; total < cold; total += bytes) {
      copies.push_back(make(matrix.view));
    }
  }
  return copies;
}

template <class Product, class Make>
void BM_Product(benchmark::State& state, WeightType type, Shape shape,
                int32_t rows, int threads, const Make& make) {
  const auto& copies = Copies<Product>(type, shape, make);
  Numbers numbers;
  std::vector<float> x(static_cast<size_t>(rows) * shape.in +
                       LinearInput::kReadablePastEnd / sizeof(float));
  for (float& value : x) value = numbers.Float();
  std::vector<float> y(static_cast<size_t>(rows) * shape.out);
  LinearInput input = OrDie(LinearInput::Allocate(rows, shape.in));
  size_t next = 0;
  for (auto _ : state) {
    input.Set(x.data(), rows, shape.in);
    copies[next]->Run(input, y.data(), Pool(threads));
    next = (next + 1) % copies.size();
  }
  const int64_t bytes = *TensorBytes(type, {shape.out, shape.in});
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetItemsProcessed(state.iterations() * rows * shape.out * shape.in);
  Work work;
  work.read_bytes = bytes;
  SetFloors(state, threads, work);
}

template <class Product, class Make>
void Register(absl::string_view what, const Make& make) {
  for (const WeightType type : kWeightTypes) {
    for (const Shape shape : kShapes) {
      for (const int32_t rows : kRows) {
        for (const int threads : kThreads) {
          const std::string name =
              absl::StrCat(what, "/", WeightTypeName(type), "/", shape.out, "x",
                           shape.in, "/", rows, "/", threads);
          benchmark::RegisterBenchmark(name.c_str(), BM_Product<Product, Make>,
                                       type, shape, rows, threads, make)
              ->UseRealTime()
              ->ComputeStatistics("min", [](const std::vector<double>& times) {
                return *std::min_element(times.begin(), times.end());
              });
        }
      }
    }
  }
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  using deltaedge::BestInOne;
  using deltaedge::BestInTwo;
  using deltaedge::Linear;
  using deltaedge::MatrixView;
  using deltaedge::Operator;
  deltaedge::LinearOptions options;
  options.arena = std::make_shared<deltaedge::HugePageArena>();
  const auto linear = [&options](const MatrixView& w) {
    return deltaedge::OrDie(Linear::Create({w}, "bench", options));
  };
  deltaedge::Register<Linear>("linear", linear);
  deltaedge::Register<BestInOne>("argmax", [linear](const MatrixView& w) {
    return std::make_unique<BestInOne>(linear(w));
  });
  deltaedge::Register<BestInTwo>(
      "linear_argmax", [linear](const MatrixView& w) {
        return std::make_unique<BestInTwo>(linear(w));
      });
  deltaedge::Register<Operator>("operator", [](const MatrixView& w) {
    return std::make_unique<Operator>(w);
  });
  benchmark::RunSpecifiedBenchmarks();
}
