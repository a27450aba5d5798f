// SPDX-License-Identifier: Apache-2.0

#include "kernels/norm/norm.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/base/logistic-inl.h"
#include "kernels/base/vectors-inl.h"

#ifndef DELTAEDGE_KERNELS_NORM_NORM_ONCE_
#define DELTAEDGE_KERNELS_NORM_NORM_ONCE_

namespace deltaedge {

// The arguments of all norms; each reads those of its signature.
struct NormArguments {
  int64_t heads, dim;
  const float* x;
  int64_t x_row_stride, x_head_stride;
  const float* gate;
  int64_t gate_row_stride, gate_head_stride;
  const float* weight;
  float eps, scale;
  float* y;
  int64_t y_row_stride, y_head_stride;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_NORM_NORM_ONCE_

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Four vectors of partial sums, whatever the length.
template <class D>
HWY_INLINE float SquareSum(D d, const float* HWY_RESTRICT x, int64_t dim) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= dim; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i);
    const auto x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes);
    const auto x3 = hn::LoadU(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  for (; i < dim; i += lanes) {
    const auto x0 = hn::LoadN(d, x + i, static_cast<size_t>(dim - i));
    s0 = hn::MulAdd(x0, x0, s0);
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

// scale / sqrt(square + eps) in all lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V InverseNorm(D d, V square, float eps, float scale) {
  return hn::Div(hn::Set(d, scale), hn::Sqrt(hn::Add(square, hn::Set(d, eps))));
}

// The mean of squares in all lanes.
template <class D>
HWY_INLINE hn::Vec<D> MeanSquare(D d, const float* x, int64_t dim) {
  return hn::Div(hn::Set(d, SquareSum(d, x, dim)),
                 hn::Set(d, static_cast<float>(dim)));
}

void RmsNormRows(const NormArguments& n, int64_t row, int64_t end) {
  const hn::CappedTag<float, 16> d;
  for (; row < end; ++row) {
    for (int64_t head = 0; head < n.heads; ++head) {
      const float* x = n.x + row * n.x_row_stride + head * n.x_head_stride;
      float* y = n.y + row * n.y_row_stride + head * n.y_head_stride;
      const auto inverse = InverseNorm(d, MeanSquare(d, x, n.dim), n.eps, 1.0f);
      ForEachVector(d, n.dim, [&](auto io, int64_t i) HWY_ATTR {
        const auto v = hn::Mul(io.Load(x + i), inverse);
        io.Store(hn::Mul(v, io.Load(n.weight + i)), y + i);
      });
    }
  }
}

void L2NormRows(const NormArguments& n, int64_t row, int64_t end) {
  const hn::CappedTag<float, 16> d;
  for (; row < end; ++row) {
    for (int64_t head = 0; head < n.heads; ++head) {
      const float* x = n.x + row * n.x_row_stride + head * n.x_head_stride;
      float* y = n.y + row * n.y_row_stride + head * n.y_head_stride;
      const auto inverse =
          InverseNorm(d, hn::Set(d, SquareSum(d, x, n.dim)), n.eps, n.scale);
      ForEachVector(d, n.dim, [&](auto io, int64_t i) HWY_ATTR {
        io.Store(hn::Mul(io.Load(x + i), inverse), y + i);
      });
    }
  }
}

void GatedRmsNormRows(const NormArguments& n, int64_t row, int64_t end) {
  const hn::CappedTag<float, 16> d;
  for (; row < end; ++row) {
    for (int64_t head = 0; head < n.heads; ++head) {
      const float* x = n.x + row * n.x_row_stride + head * n.x_head_stride;
      const float* gate =
          n.gate + row * n.gate_row_stride + head * n.gate_head_stride;
      float* y = n.y + row * n.y_row_stride + head * n.y_head_stride;
      const auto inverse = InverseNorm(d, MeanSquare(d, x, n.dim), n.eps, 1.0f);
      ForEachVector(d, n.dim, [&](auto io, int64_t i) HWY_ATTR {
        const auto v = hn::Mul(io.Load(x + i), inverse);
        const auto w = hn::Mul(v, io.Load(n.weight + i));
        io.Store(hn::Mul(w, Silu(d, io.Load(gate + i))), y + i);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(L2NormRows);
HWY_EXPORT(GatedRmsNormRows);

// Fewer floats than this are not worth waking a thread.
constexpr int64_t kTaskFloats = 16384;

struct Launch {
  NormArguments arguments;
  void (*rows)(const NormArguments&, int64_t, int64_t);
};

void RunRows(void* context, size_t row, size_t rows) {
  const Launch& launch = *static_cast<const Launch*>(context);
  launch.rows(launch.arguments, static_cast<int64_t>(row),
              static_cast<int64_t>(row + rows));
}

void Run(Launch launch, int32_t rows, pthreadpool_t pool) {
  const NormArguments& n = launch.arguments;
  assert(rows >= 0 && n.heads >= 0 && n.dim > 0 && n.eps > 0);
  const int64_t row_floats = std::max<int64_t>(n.heads * n.dim, 1);
  pthreadpool_parallelize_1d_tile_1d(
      pool, RunRows, &launch, static_cast<size_t>(rows),
      static_cast<size_t>(std::max<int64_t>(kTaskFloats / row_floats, 1)),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace

void RmsNorm(int32_t rows, int32_t dim, const float* x, int64_t x_stride,
             const float* weight, float eps, float* y, int64_t y_stride,
             pthreadpool_t pool) {
  RmsNormHeads(rows, 1, dim, x, x_stride, 0, weight, eps, y, y_stride, 0, pool);
}

void RmsNormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                  int64_t x_row_stride, int64_t x_head_stride,
                  const float* weight, float eps, float* y,
                  int64_t y_row_stride, int64_t y_head_stride,
                  pthreadpool_t pool) {
  Run({{heads, dim, x, x_row_stride, x_head_stride, nullptr, 0, 0, weight, eps,
        1.0f, y, y_row_stride, y_head_stride},
       HWY_DYNAMIC_POINTER(RmsNormRows)},
      rows, pool);
}

void L2NormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                 int64_t x_row_stride, int64_t x_head_stride, float eps,
                 float scale, float* y, int64_t y_row_stride,
                 int64_t y_head_stride, pthreadpool_t pool) {
  Run({{heads, dim, x, x_row_stride, x_head_stride, nullptr, 0, 0, nullptr, eps,
        scale, y, y_row_stride, y_head_stride},
       HWY_DYNAMIC_POINTER(L2NormRows)},
      rows, pool);
}

void GatedRmsNormHeads(int32_t rows, int32_t heads, int32_t dim, const float* x,
                       int64_t x_row_stride, int64_t x_head_stride,
                       const float* gate, int64_t gate_row_stride,
                       int64_t gate_head_stride, const float* weight, float eps,
                       float* y, int64_t y_row_stride, int64_t y_head_stride,
                       pthreadpool_t pool) {
  Run({{heads, dim, x, x_row_stride, x_head_stride, gate, gate_row_stride,
        gate_head_stride, weight, eps, 1.0f, y, y_row_stride, y_head_stride},
       HWY_DYNAMIC_POINTER(GatedRmsNormRows)},
      rows, pool);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
