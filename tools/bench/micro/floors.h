// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_H_
#define DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_H_

#include <cstdint>

#include "benchmark/benchmark.h"

namespace deltaedge {

// What threads of this machine reach together, measured in this process: the
// best of a few passes.
struct MachineRates {
  // From memory, over a buffer in huge pages that no cache holds.
  double read_bytes_per_second;
  // The same in place, x = c * x: bytes read plus bytes written.
  double update_bytes_per_second;
  // Fused multiply-adds of independent floats in registers, with the vectors
  // that the kernels use.
  double fmas_per_second;
};

// Measured when first asked for, which takes a second, and kept.
// 1 <= threads <= ThreadPool::kMaxThreads.
const MachineRates& Rates(int threads);

// The least that an iteration of a benchmark must do.
struct Work {
  int64_t read_bytes = 0;     // Of what is only read.
  int64_t updated_bytes = 0;  // Read and written, of what is also written.
  int64_t operations = 0;     // On single floats, a fused one counting once.
};

// Adds counters to `state`, whose clock must be UseRealTime(): memory_us and
// arithmetic_us, what the work of an iteration takes at the machine's rates,
// and x_memory_floor and x_arithmetic_floor, how often that goes into what the
// iteration took. Those of no work are left out.
void SetFloors(benchmark::State& state, int threads, const Work& work);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_H_
