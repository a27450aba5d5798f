// SPDX-License-Identifier: Apache-2.0

// Times causal attention (kernels/attn/attention.h) of one layer of the
// published shapes, with heads of 256:
//
//   attention_bench --benchmark_filter=/8:2/16/4096/1
//
// Names are query heads : key heads / rows / position of the first / threads.
// Successive calls go round the keys and values of many layers, which take
// kColdBytes together. Floors (floors.h): keys and values that some row sees
// read once; two fused multiply-adds for each row, head, key that it sees, and
// element of the head.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "engine/base/aligned_buffer.h"
#include "kernels/attn/attention.h"
#include "tools/bench/micro/fixture.h"
#include "tools/bench/micro/floors.h"

namespace deltaedge {
namespace {

constexpr int32_t kHeadDim = 256;

struct Case {
  int32_t q_heads, kv_heads, rows;
  int64_t position;
  int threads;
};

struct Layer {
  AlignedArray<float> k, v;
};

void BM_Attention(benchmark::State& state, Case c) {
  const int64_t end = c.position + c.rows;
  const int64_t key_floats = KvKeyFloats(c.kv_heads, kHeadDim, end);
  const int64_t value_floats = KvValueFloats(c.kv_heads, kHeadDim, end);
  const int64_t layer_bytes = (key_floats + value_floats) * sizeof(float);
  std::vector<Layer> layers;
  for (int64_t bytes = 0; bytes < kColdBytes; bytes += layer_bytes) {
    layers.push_back({RandomFloats(key_floats), RandomFloats(value_floats)});
  }
  const int64_t row_floats = int64_t{c.q_heads} * kHeadDim;
  const AlignedArray<float> q = RandomFloats(c.rows * row_floats);
  AlignedArray<float> out = RandomFloats(c.rows * row_floats);
  std::vector<KeyRange> range;
  int64_t seen = 0;
  for (int32_t r = 0; r < c.rows; ++r) {
    range.push_back({0, c.position + r + 1});
    seen += range.back().end;
  }

  AttentionBlock block = {};
  block.rows = c.rows;
  block.q_heads = c.q_heads;
  block.kv = {nullptr, nullptr, c.kv_heads, kHeadDim, end};
  block.q = q.data();
  block.q_row_stride = row_floats;
  block.q_head_stride = kHeadDim;
  block.range = range.data();
  block.scale = 0.0625f;
  block.out = out.data();
  block.out_row_stride = row_floats;
  size_t next = 0;
  for (auto _ : state) {
    block.kv.k = layers[next].k.data();
    block.kv.v = layers[next].v.data();
    AttentionForward(block, Pool(c.threads));
    next = (next + 1) % layers.size();
  }

  Work work;
  work.read_bytes = 2 * end * c.kv_heads * kHeadDim * sizeof(float);
  work.operations = 2 * seen * row_floats;
  SetFloors(state, c.threads, work);
}

void RegisterAll() {
  for (const auto& heads : {std::pair<int32_t, int32_t>(8, 2), {16, 4}}) {
    for (const int32_t rows : {1, 8, 16, 256}) {
      for (const int64_t position : {256, 4096}) {
        for (const int threads : {1, 2}) {
          benchmark::RegisterBenchmark(
              absl::StrCat("attention/", heads.first, ":", heads.second, "/",
                           rows, "/", position, "/", threads)
                  .c_str(),
              BM_Attention,
              Case{heads.first, heads.second, rows, position, threads})
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
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
  deltaedge::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
