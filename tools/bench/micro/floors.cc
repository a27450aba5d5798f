// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/micro/floors.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/micro/floors.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"

#ifndef DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_ONCE_
#define DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_ONCE_
namespace deltaedge {
namespace {

constexpr int64_t kFmaRounds = 1 << 20;
constexpr int64_t kFmaChains = 12;

}  // namespace
}  // namespace deltaedge
#endif  // DELTAEDGE_TOOLS_BENCH_MICRO_FLOORS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;

// `count` is a multiple of four vectors. The result keeps the loads alive.
float Read(float* x, int64_t count) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i < count; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::Load(d, x + i));
    s1 = hn::Add(s1, hn::Load(d, x + i + lanes));
    s2 = hn::Add(s2, hn::Load(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

float Update(float* x, int64_t count) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto c = hn::Set(d, 0.5f);
  for (int64_t i = 0; i < count; i += lanes) {
    hn::Store(hn::Mul(c, hn::Load(d, x + i)), d, x + i);
  }
  return 0.0f;
}

float Fmas(float* x, int64_t) {
  const D d;
  const auto a = hn::LoadU(d, x);
  // Each starts elsewhere: compilers know equal chains when they see them.
  auto s0 = hn::LoadU(d, x + 1), s1 = hn::LoadU(d, x + 2);
  auto s2 = hn::LoadU(d, x + 3), s3 = hn::LoadU(d, x + 4);
  auto s4 = hn::LoadU(d, x + 5), s5 = hn::LoadU(d, x + 6);
  auto s6 = hn::LoadU(d, x + 7), s7 = hn::LoadU(d, x + 8);
  auto s8 = hn::LoadU(d, x + 9), s9 = hn::LoadU(d, x + 10);
  auto s10 = hn::LoadU(d, x + 11), s11 = hn::LoadU(d, x + 12);
  for (int64_t i = 0; i < kFmaRounds; ++i) {
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(a, a, s1);
    s2 = hn::MulAdd(a, a, s2);
    s3 = hn::MulAdd(a, a, s3);
    s4 = hn::MulAdd(a, a, s4);
    s5 = hn::MulAdd(a, a, s5);
    s6 = hn::MulAdd(a, a, s6);
    s7 = hn::MulAdd(a, a, s7);
    s8 = hn::MulAdd(a, a, s8);
    s9 = hn::MulAdd(a, a, s9);
    s10 = hn::MulAdd(a, a, s10);
    s11 = hn::MulAdd(a, a, s11);
  }
  s0 = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  s4 = hn::Add(hn::Add(s4, s5), hn::Add(s6, s7));
  s8 = hn::Add(hn::Add(s8, s9), hn::Add(s10, s11));
  return hn::ReduceSum(d, hn::Add(s0, hn::Add(s4, s8)));
}

int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(D())); }

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "engine/base/aligned_buffer.h"
#include "pthreadpool.h"
#include "tools/bench/micro/fixture.h"

namespace deltaedge {
namespace {

HWY_EXPORT(Read);
HWY_EXPORT(Update);
HWY_EXPORT(Fmas);
HWY_EXPORT(Lanes);

constexpr int kPasses = 10;
// A multiple of every vector, and several times what an L1 cache holds.
constexpr int64_t kPartFloats = 1 << 18;

struct Pass {
  float* x;
  float (*part)(float*, int64_t);
};

void RunPart(void* context, size_t part) {
  const Pass& pass = *static_cast<const Pass*>(context);
  benchmark::DoNotOptimize(pass.part(
      pass.x + static_cast<int64_t>(part) * kPartFloats, kPartFloats));
}

// Of the fastest of several.
double Seconds(Pass pass, size_t parts, int threads) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> best = Clock::duration::max();
  for (int i = 0; i < kPasses; ++i) {
    const Clock::time_point start = Clock::now();
    pthreadpool_parallelize_1d(Pool(threads), RunPart, &pass, parts,
                               PTHREADPOOL_FLAG_DISABLE_DENORMALS);
    best = std::min<std::chrono::duration<double>>(best, Clock::now() - start);
  }
  return best.count();
}

MachineRates Measure(int threads) {
  constexpr size_t kParts = kColdBytes / sizeof(float) / kPartFloats;
  constexpr double kBytes = kParts * kPartFloats * sizeof(float);
  const AlignedBuffer buffer =
      OrDie(AlignedBuffer::AllocateHugePages(kColdBytes, "a stream"));
  float* x = reinterpret_cast<float*>(const_cast<std::byte*>(buffer.data()));
  MachineRates rates;
  // The first passes also touch the pages.
  rates.update_bytes_per_second =
      2 * kBytes / Seconds({x, HWY_DYNAMIC_POINTER(Update)}, kParts, threads);
  rates.read_bytes_per_second =
      kBytes / Seconds({x, HWY_DYNAMIC_POINTER(Read)}, kParts, threads);
  const double fmas = static_cast<double>(kFmaRounds * kFmaChains * threads *
                                          HWY_DYNAMIC_DISPATCH(Lanes)());
  rates.fmas_per_second = fmas / Seconds({x, HWY_DYNAMIC_POINTER(Fmas)},
                                         static_cast<size_t>(threads), threads);
  return rates;
}

}  // namespace

const MachineRates& Rates(int threads) {
  static auto& rates = *new std::map<int, MachineRates>;
  const auto found = rates.find(threads);
  if (found != rates.end()) return found->second;
  return rates[threads] = Measure(threads);
}

void SetFloors(benchmark::State& state, int threads, const Work& work) {
  using benchmark::Counter;
  const MachineRates& rates = Rates(threads);
  const auto set = [&state](const char* floor, const char* ratio,
                            double seconds) {
    if (seconds == 0.0) return;
    state.counters[floor] = seconds * 1e6;
    state.counters[ratio] =
        Counter(seconds, Counter::kIsIterationInvariantRate | Counter::kInvert);
  };
  set("memory_us", "x_memory_floor",
      work.read_bytes / rates.read_bytes_per_second +
          work.updated_bytes / rates.update_bytes_per_second);
  set("arithmetic_us", "x_arithmetic_floor",
      work.operations / rates.fmas_per_second);
}

}  // namespace deltaedge
#endif  // HWY_ONCE
