// SPDX-License-Identifier: Apache-2.0

// Times the gated delta rule (kernels/gdn/gdn_block.h) on one layer of the
// published shapes, 16 key heads and heads of 128 x 128:
//
//   gdn_bench --benchmark_filter=journal/32/16/.*/1/cold
//
// Names are what / value heads / rows / rows folded / threads / cold|warm:
//
//   journal   a block that is recorded; the kept rows of the block before are
//             folded into the state, in place
//   slots     the state after each row is stored
//   prefill   the state after the last row is stored, elsewhere
//
// Cold: successive calls go round the states and journals of many layers, which
// take kColdBytes together, as the layers of a model do with its weights in
// between. Floors (floors.h): the state read once and written as often as the
// way asks for, journals read and written; five operations for each element of
// the state and row. What is folded counts as bytes, not as operations.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "engine/base/aligned_buffer.h"
#include "kernels/gdn/gdn_block.h"
#include "tools/bench/micro/fixture.h"
#include "tools/bench/micro/floors.h"

namespace deltaedge {
namespace {

constexpr int32_t kKeyHeads = 16;
constexpr int32_t kDim = 128;
constexpr int32_t kFloatBytes = sizeof(float);

enum class Way { kJournal, kSlots, kPrefill };

struct Case {
  Way way;
  int32_t heads, rows, fold_rows;
  int threads;
  bool cold;
};

std::string NameOf(const Case& c) {
  const char* way = c.way == Way::kJournal ? "journal"
                    : c.way == Way::kSlots ? "slots"
                                           : "prefill";
  return absl::StrCat(way, "/", c.heads, "/", c.rows, "/", c.fold_rows, "/",
                      c.threads, c.cold ? "/cold" : "/warm");
}

int64_t JournalFloats(const Case& c) {
  return int64_t{c.rows} * (kKeyHeads * kDim + c.heads * kDim + c.heads);
}

// What one layer remembers.
struct Layer {
  Layer(const Case& c, int64_t state_floats) {
    const int64_t states = c.way == Way::kJournal ? 1 : c.rows + 1;
    for (int64_t i = 0; i < (c.way == Way::kPrefill ? 2 : states); ++i) {
      state.push_back(RandomFloats(state_floats));
    }
    if (c.way == Way::kJournal) {
      for (AlignedArray<float>& j : journal) {
        j = RandomFloats(JournalFloats(c), 0.08f);
      }
    }
  }

  GdnJournal Journal(const Case& c, int which) {
    GdnJournal result;
    result.k = journal[which].data();
    result.u = result.k + int64_t{c.rows} * kKeyHeads * kDim;
    result.gamma = result.u + int64_t{c.rows} * c.heads * kDim;
    return result;
  }

  std::vector<AlignedArray<float>> state;
  AlignedArray<float> journal[2];
};

void BM_Gdn(benchmark::State& benchmark_state, Case c) {
  GdnBlock block = {};
  block.shape = {kKeyHeads, c.heads, kDim, kDim};
  const int64_t state_floats = GdnStateFloats(block.shape);
  const int64_t journal_bytes =
      c.way == Way::kJournal ? JournalFloats(c) * kFloatBytes : 0;
  const int64_t state_bytes = state_floats * kFloatBytes;

  std::vector<Layer> layers;
  layers.emplace_back(c, state_floats);
  const int64_t layer_bytes =
      static_cast<int64_t>(layers[0].state.size()) * state_bytes +
      2 * journal_bytes;
  const int64_t count = c.cold ? kColdBytes / layer_bytes + 1 : 1;
  while (static_cast<int64_t>(layers.size()) < count) {
    layers.emplace_back(c, state_floats);
  }

  const int64_t keys = kKeyHeads * kDim;
  const int64_t values = int64_t{c.heads} * kDim;
  // Rows of length near one.
  const AlignedArray<float> q = RandomFloats(c.rows * keys, 0.15f);
  const AlignedArray<float> k = RandomFloats(c.rows * keys, 0.15f);
  const AlignedArray<float> v = RandomFloats(c.rows * values);
  AlignedArray<float> log_decay = RandomFloats(c.rows * c.heads, 0.1f);
  for (float& value : log_decay) value -= 0.1f;
  AlignedArray<float> beta = RandomFloats(c.rows * c.heads, 0.5f);
  for (float& value : beta) value += 0.5f;
  AlignedArray<float> out = RandomFloats(c.rows * values);
  const int32_t row_begin[] = {0, c.rows};
  std::vector<float*> each(static_cast<size_t>(c.rows));

  GdnSequence sequence;
  block.sequences = 1;
  block.row_begin = row_begin;
  block.q = q.data();
  block.k = k.data();
  block.v = v.data();
  block.log_decay = log_decay.data();
  block.beta = beta.data();
  block.q_stride = keys;
  block.k_stride = keys;
  block.v_stride = values;
  block.sequence = &sequence;
  block.out = out.data();
  block.out_stride = values;

  size_t next = 0;
  size_t round = 0;
  for (auto _ : benchmark_state) {
    Layer& layer = layers[next];
    if (c.way == Way::kJournal) {
      sequence.state = layer.state[0].data();
      sequence.folded = layer.state[0].data();
      sequence.fold = layer.Journal(c, round % 2);
      sequence.fold_rows = c.fold_rows;
      sequence.record = layer.Journal(c, 1 - round % 2);
    } else {
      const size_t columns = layer.state.size();
      const size_t source = round % columns;
      sequence.state = layer.state[source].data();
      if (c.way == Way::kPrefill) {
        sequence.last = layer.state[1 - source].data();
      } else {
        for (size_t t = 0; t < each.size(); ++t) {
          each[t] = layer.state[(source + 1 + t) % columns].data();
        }
        sequence.each = each.data();
      }
    }
    GdnForward(block, Pool(c.threads));
    if (++next == layers.size()) {
      next = 0;
      ++round;
    }
  }

  Work work;
  work.read_bytes = journal_bytes / c.rows * c.fold_rows;
  work.updated_bytes =
      journal_bytes + state_bytes * (c.way == Way::kSlots ? 1 + c.rows : 2);
  work.operations = 5 * state_floats * c.rows;
  SetFloors(benchmark_state, c.threads, work);
}

void Register(const Case& c) {
  benchmark::RegisterBenchmark(NameOf(c).c_str(), BM_Gdn, c)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  for (const int32_t heads : {16, 32}) {
    for (const int threads : {1, 2}) {
      for (const bool cold : {true, false}) {
        for (const int32_t rows : {1, 2, 4, 8, 16}) {
          Register({Way::kJournal, heads, rows, (rows + 1) / 2, threads, cold});
        }
        Register({Way::kJournal, heads, 16, 0, threads, cold});
        for (const int32_t rows : {1, 8, 16}) {
          Register({Way::kSlots, heads, rows, 0, threads, cold});
        }
        Register({Way::kPrefill, heads, 256, 0, threads, cold});
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
