// SPDX-License-Identifier: Apache-2.0

// Times what stands between the products of a layer, and picking a token, in
// the sizes of Qwen3.5-0.8B, on one thread:
//
//   rowwise_bench --benchmark_filter=/8$
//
// Names are what / rows. One call each, so that times add up to a layer: one of
// the delta rule has 2 rms_norm, 2 quantize_hidden, quantize_values, swiglu and
// quantize_mlp, 2 add, and conv1d, 2 l2_norm, gates, gated_rms_norm; one of
// attention has rms_norm_heads, rope and sigmoid_gate instead of the last four.
// Rows are warm, as a product has just left them, so that x_memory_floor
// (floors.h), what is read and written through memory, can be less than one.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "engine/base/aligned_buffer.h"
#include "kernels/act/act.h"
#include "kernels/conv1d/conv1d.h"
#include "kernels/gates/gates.h"
#include "kernels/logits/argmax.h"
#include "kernels/norm/norm.h"
#include "kernels/quant/quantize_rows.h"
#include "kernels/rope/rope.h"
#include "tools/bench/micro/fixture.h"
#include "tools/bench/micro/floors.h"

namespace deltaedge {
namespace {

constexpr int32_t kHidden = 1024;
constexpr int32_t kMlp = 3584;
constexpr int32_t kVocabulary = 248320;
constexpr int32_t kGdnHeads = 16;
constexpr int32_t kGdnDim = 128;
constexpr int32_t kValues = kGdnHeads * kGdnDim;
constexpr int32_t kChannels = 3 * kValues;
constexpr int32_t kRingRows = 19;
constexpr int32_t kQueryHeads = 8;
constexpr int32_t kHeadDim = 256;
constexpr int32_t kQueries = kQueryHeads * kHeadDim;
constexpr int32_t kRotary = 64;
constexpr double kTheta = 1e7;
constexpr float kEps = 1e-6f;
constexpr int32_t kMaxRows = 16;

// The arrays of a call: inputs, weights and outputs.
struct Arrays {
  float *x, *gate, *weight, *y;
};
using Kernel = std::function<void(int32_t rows, const Arrays&)>;

// `in`, `out`: floats of a row that are read and written; an operation in place
// has them once each.
void Register(const char* what, int32_t in, int32_t out, const Kernel& kernel) {
  for (const int32_t rows : {1, 8, kMaxRows}) {
    const auto run = [=](benchmark::State& state) {
      const int64_t floats = int64_t{rows} * std::max(in, out);
      AlignedArray<float> x = RandomFloats(floats);
      AlignedArray<float> gate = RandomFloats(floats);
      AlignedArray<float> weight = RandomFloats(int64_t{kRingRows} * kChannels);
      AlignedArray<float> y = RandomFloats(floats);
      const Arrays arrays = {x.data(), gate.data(), weight.data(), y.data()};
      for (auto _ : state) kernel(rows, arrays);
      Work work;
      const int64_t bytes = int64_t{rows} * (in + out) * sizeof(float);
      (out == 0 ? work.read_bytes : work.updated_bytes) = bytes;
      SetFloors(state, /*threads=*/1, work);
    };
    benchmark::RegisterBenchmark(absl::StrCat(what, "/", rows).c_str(), run)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

void RegisterQuantize(const char* what, int32_t dim) {
  Register(what, dim, dim / 4, [dim](int32_t rows, const Arrays& a) {
    RowQuantization quantization[kMaxRows];
    QuantizeRows(rows, dim, a.x, reinterpret_cast<int8_t*>(a.y), quantization,
                 nullptr);
  });
}

void RegisterAll() {
  Register("rms_norm", kHidden, kHidden, [](int32_t rows, const Arrays& a) {
    RmsNorm(rows, kHidden, a.x, kHidden, a.weight, kEps, a.y, kHidden, nullptr);
  });
  Register("add", 2 * kHidden, kHidden, [](int32_t rows, const Arrays& a) {
    AddRows(rows, kHidden, a.x, kHidden, a.y, kHidden, nullptr);
  });
  RegisterQuantize("quantize_hidden", kHidden);
  RegisterQuantize("quantize_values", kValues);
  RegisterQuantize("quantize_mlp", kMlp);
  Register("swiglu", 2 * kMlp, kMlp, [](int32_t rows, const Arrays& a) {
    SwiGlu(rows, kMlp, a.x, 2 * kMlp, a.x + kMlp, 2 * kMlp, a.y, kMlp, nullptr);
  });

  Register("conv1d", kChannels, kChannels, [](int32_t rows, const Arrays& a) {
    Conv1dBlock block = {};
    block.channels = kChannels;
    block.rows = rows;
    block.position = kRingRows;
    block.ring = a.weight;
    block.ring_rows = kRingRows;
    block.x = a.x;
    block.x_stride = kChannels;
    block.weight = a.weight;
    block.out = a.y;
    block.out_stride = kChannels;
    Conv1dSiluForward(block, nullptr);
  });
  Register("l2_norm", kValues, kValues, [](int32_t rows, const Arrays& a) {
    L2NormHeads(rows, kGdnHeads, kGdnDim, a.x, kValues, kGdnDim, kEps, 0.1f,
                a.y, kValues, kGdnDim, nullptr);
  });
  Register("gates", 2 * kGdnHeads, 2 * kGdnHeads,
           [](int32_t rows, const Arrays& a) {
             GdnGatesForward(rows, kGdnHeads, a.x, 2 * kGdnHeads,
                             a.x + kGdnHeads, 2 * kGdnHeads, a.weight,
                             a.weight + kGdnHeads, a.y, a.y + rows * kGdnHeads);
           });
  Register("gated_rms_norm", 2 * kValues, kValues,
           [](int32_t rows, const Arrays& a) {
             GatedRmsNormHeads(rows, kGdnHeads, kGdnDim, a.x, kValues, kGdnDim,
                               a.gate, kValues, kGdnDim, a.weight, kEps, a.y,
                               kValues, kGdnDim, nullptr);
           });

  Register("rms_norm_heads", kQueries, kQueries,
           [](int32_t rows, const Arrays& a) {
             RmsNormHeads(rows, kQueryHeads, kHeadDim, a.x, kQueries, kHeadDim,
                          a.weight, kEps, a.y, kQueries, kHeadDim, nullptr);
           });
  // True angles, so that turning the same rows again and again keeps their
  // size.
  std::vector<float> cos(kMaxRows * kRotary / 2);
  std::vector<float> sin(cos.size());
  RopeTable(0, kMaxRows, kRotary, kTheta, cos.data(), sin.data());
  Register("rope", kQueryHeads * kRotary, kQueryHeads * kRotary,
           [cos, sin](int32_t rows, const Arrays& a) {
             RopeApply(rows, kQueryHeads, kRotary, a.x, kQueryHeads * kRotary,
                       kRotary, cos.data(), sin.data(), nullptr);
           });
  Register("rope_table", 0, kRotary, [](int32_t rows, const Arrays& a) {
    RopeTable(1000, rows, kRotary, kTheta, a.x, a.y);
  });
  Register("sigmoid_gate", 2 * kQueries, kQueries,
           [](int32_t rows, const Arrays& a) {
             SigmoidGateHeads(rows, kQueryHeads, kHeadDim, a.x, kQueries,
                              kHeadDim, a.gate, kQueries, kHeadDim, nullptr);
           });

  Register("argmax", kVocabulary, 0, [](int32_t rows, const Arrays& a) {
    ArgMax best[kMaxRows];
    ArgMaxRows(rows, kVocabulary, a.x, kVocabulary, best, nullptr);
    benchmark::DoNotOptimize(best);
  });
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  deltaedge::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
