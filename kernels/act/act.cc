// SPDX-License-Identifier: Apache-2.0

#include "kernels/act/act.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/act/act.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/base/logistic-inl.h"
#include "kernels/base/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One vector of `dim` floats: to = f(a, b). `to` may be `a` or `b`.

void SwiGluVector(int64_t dim, const float* gate, const float* up, float* to) {
  const hn::CappedTag<float, 16> d;
  ForEachVector(d, dim, [&](auto io, int64_t i) HWY_ATTR {
    io.Store(hn::Mul(Silu(d, io.Load(gate + i)), io.Load(up + i)), to + i);
  });
}

void SigmoidGateVector(int64_t dim, const float* x, const float* gate,
                       float* to) {
  const hn::CappedTag<float, 16> d;
  ForEachVector(d, dim, [&](auto io, int64_t i) HWY_ATTR {
    io.Store(hn::Mul(io.Load(x + i), Sigmoid(d, io.Load(gate + i))), to + i);
  });
}

void AddVector(int64_t dim, const float* x, const float* y, float* to) {
  const hn::CappedTag<float, 16> d;
  ForEachVector(d, dim, [&](auto io, int64_t i) HWY_ATTR {
    io.Store(hn::Add(io.Load(x + i), io.Load(y + i)), to + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(SwiGluVector);
HWY_EXPORT(SigmoidGateVector);
HWY_EXPORT(AddVector);

// Fewer floats than this are not worth waking a thread.
constexpr int64_t kTaskFloats = 16384;

struct Launch {
  int64_t heads, dim;
  const float* a;
  int64_t a_row_stride, a_head_stride;
  const float* b;
  int64_t b_row_stride, b_head_stride;
  float* to;
  int64_t to_row_stride, to_head_stride;
  void (*vector)(int64_t, const float*, const float*, float*);
};

void RunRows(void* context, size_t begin, size_t rows) {
  const Launch& l = *static_cast<const Launch*>(context);
  for (size_t r = begin; r < begin + rows; ++r) {
    const int64_t row = static_cast<int64_t>(r);
    for (int64_t head = 0; head < l.heads; ++head) {
      l.vector(l.dim, l.a + row * l.a_row_stride + head * l.a_head_stride,
               l.b + row * l.b_row_stride + head * l.b_head_stride,
               l.to + row * l.to_row_stride + head * l.to_head_stride);
    }
  }
}

void Run(Launch launch, int32_t rows, pthreadpool_t pool) {
  assert(rows >= 0 && launch.heads >= 0 && launch.dim >= 0);
  const int64_t row_floats = std::max<int64_t>(launch.heads * launch.dim, 1);
  pthreadpool_parallelize_1d_tile_1d(
      pool, RunRows, &launch, static_cast<size_t>(rows),
      static_cast<size_t>(std::max<int64_t>(kTaskFloats / row_floats, 1)),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace

void SwiGlu(int32_t rows, int32_t dim, const float* gate, int64_t gate_stride,
            const float* up, int64_t up_stride, float* y, int64_t y_stride,
            pthreadpool_t pool) {
  Run({1, dim, gate, gate_stride, 0, up, up_stride, 0, y, y_stride, 0,
       HWY_DYNAMIC_POINTER(SwiGluVector)},
      rows, pool);
}

void SigmoidGateHeads(int32_t rows, int32_t heads, int32_t dim, float* x,
                      int64_t x_row_stride, int64_t x_head_stride,
                      const float* gate, int64_t gate_row_stride,
                      int64_t gate_head_stride, pthreadpool_t pool) {
  Run({heads, dim, x, x_row_stride, x_head_stride, gate, gate_row_stride,
       gate_head_stride, x, x_row_stride, x_head_stride,
       HWY_DYNAMIC_POINTER(SigmoidGateVector)},
      rows, pool);
}

void AddRows(int32_t rows, int32_t dim, float* x, int64_t x_stride,
             const float* y, int64_t y_stride, pthreadpool_t pool) {
  Run({1, dim, x, x_stride, 0, y, y_stride, 0, x, x_stride, 0,
       HWY_DYNAMIC_POINTER(AddVector)},
      rows, pool);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
