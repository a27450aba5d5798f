// SPDX-License-Identifier: Apache-2.0

#include "kernels/rope/rope.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/base/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void RotateRow(int64_t heads, int64_t half, float* x, int64_t head_stride,
               const float* cos, const float* sin) {
  const hn::CappedTag<float, 16> d;
  for (int64_t head = 0; head < heads; ++head, x += head_stride) {
    ForEachVector(d, half, [&](auto io, int64_t i) HWY_ATTR {
      const auto a = io.Load(x + i);
      const auto b = io.Load(x + half + i);
      const auto c = io.Load(cos + i);
      const auto s = io.Load(sin + i);
      io.Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), x + i);
      io.Store(hn::MulAdd(a, s, hn::Mul(b, c)), x + half + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(RotateRow);

// Fewer floats than this are not worth waking a thread.
constexpr int64_t kTaskFloats = 16384;

struct Launch {
  int64_t heads, half;
  float* x;
  int64_t row_stride, head_stride;
  const float *cos, *sin;
  void (*rotate)(int64_t, int64_t, float*, int64_t, const float*, const float*);
};

void RunRows(void* context, size_t begin, size_t rows) {
  const Launch& l = *static_cast<const Launch*>(context);
  for (size_t r = begin; r < begin + rows; ++r) {
    const int64_t row = static_cast<int64_t>(r);
    l.rotate(l.heads, l.half, l.x + row * l.row_stride, l.head_stride,
             l.cos + row * l.half, l.sin + row * l.half);
  }
}

}  // namespace

void RopeTable(int64_t position, int32_t rows, int32_t rotary_dim, double theta,
               float* cos, float* sin) {
  assert(position >= 0 && rows >= 0 && rotary_dim >= 0);
  assert(rotary_dim % 2 == 0 && theta > 0);
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / rotary_dim);
    for (int64_t r = 0; r < rows; ++r) {
      const double angle = static_cast<double>(position + r) * frequency;
      cos[r * half + i] = static_cast<float>(std::cos(angle));
      sin[r * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void RopeApply(int32_t rows, int32_t heads, int32_t rotary_dim, float* x,
               int64_t row_stride, int64_t head_stride, const float* cos,
               const float* sin, pthreadpool_t pool) {
  assert(rows >= 0 && heads >= 0 && rotary_dim >= 0 && rotary_dim % 2 == 0);
  Launch launch = {heads,       rotary_dim / 2,
                   x,           row_stride,
                   head_stride, cos,
                   sin,         HWY_DYNAMIC_POINTER(RotateRow)};
  const int64_t row_floats = std::max<int64_t>(int64_t{heads} * rotary_dim, 1);
  pthreadpool_parallelize_1d_tile_1d(
      pool, RunRows, &launch, static_cast<size_t>(rows),
      static_cast<size_t>(std::max<int64_t>(kTaskFloats / row_floats, 1)),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
