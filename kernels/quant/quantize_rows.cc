// SPDX-License-Identifier: Apache-2.0

#include "kernels/quant/quantize_rows.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quant/quantize_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/base/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

RowQuantization QuantizeRow(int64_t dim, const float* HWY_RESTRICT x,
                            int8_t* HWY_RESTRICT q) {
  const hn::CappedTag<float, 16> d;
  auto low = hn::Zero(d), high = hn::Zero(d);
  // 0 for finite numbers, NaN for others: Min and Max lose a NaN.
  auto blemish = hn::Zero(d);
  ForEachVector(d, dim, [&](auto io, int64_t i) HWY_ATTR {
    const auto v = io.Load(x + i);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
    blemish = hn::MulAdd(v, hn::Zero(d), blemish);
  });
  const float least = hn::ReduceMin(d, low);
  const float span = hn::ReduceMax(d, high) - least;
  if (std::isnan(hn::ReduceSum(d, blemish)) || std::isinf(span)) {
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  if (span < 1e-30f) {
    std::fill_n(q, dim, int8_t{0});
    return {0, 1.0f};
  }

  const float steps = 255.0f / span;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto vector_steps = hn::Set(d, steps);
  const int32_t zero_point =
      hn::GetLane(hn::NearestInt(hn::Set(d, -128.0f - least * steps)));
  const auto offset = hn::Set(di, zero_point);
  const auto quantize = [&](hn::Vec<decltype(d)> v) HWY_ATTR {
    const auto rounded = hn::NearestInt(hn::Mul(v, vector_steps));
    return hn::DemoteTo(d8, hn::Add(rounded, offset));
  };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    hn::StoreU(quantize(hn::LoadU(d, x + i)), d8, q + i);
  }
  if (i < dim) {
    const size_t rest = static_cast<size_t>(dim - i);
    hn::StoreN(quantize(hn::LoadN(d, x + i, rest)), d8, q + i, rest);
  }
  return {zero_point, span / 255.0f};
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(QuantizeRow);

// Fewer floats than this are not worth waking a thread.
constexpr int64_t kTaskFloats = 16384;

struct Launch {
  int64_t dim;
  const float* x;
  int8_t* q;
  RowQuantization* quantization;
  RowQuantization (*row)(int64_t, const float*, int8_t*);
};

void RunRows(void* context, size_t begin, size_t rows) {
  const Launch& l = *static_cast<const Launch*>(context);
  for (size_t r = begin; r < begin + rows; ++r) {
    const int64_t start = static_cast<int64_t>(r) * l.dim;
    l.quantization[r] = l.row(l.dim, l.x + start, l.q + start);
  }
}

}  // namespace

void QuantizeRows(int32_t rows, int32_t dim, const float* x, int8_t* q,
                  RowQuantization* quantization, pthreadpool_t pool) {
  assert(rows >= 0 && dim >= 1);
  Launch launch = {dim, x, q, quantization, HWY_DYNAMIC_POINTER(QuantizeRow)};
  const int64_t task_rows = std::max<int64_t>(kTaskFloats / dim, 1);
  pthreadpool_parallelize_1d_tile_1d(
      rows <= task_rows ? nullptr : pool, RunRows, &launch,
      static_cast<size_t>(rows), static_cast<size_t>(task_rows),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
