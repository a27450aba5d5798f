// SPDX-License-Identifier: Apache-2.0

#include "kernels/moe/moe.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/moe.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/base/logistic-inl.h"
#include "kernels/base/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// exp(logit - largest) of `n` logits, none of them larger, to `e`, which may be
// `logits`; returns their sum.
float ExpVector(int64_t n, const float* logits, float largest, float* e) {
  const hn::CappedTag<float, 16> d;
  const auto max = hn::Set(d, largest);
  auto sum = hn::Zero(d);
  ForEachVector(d, n, [&](auto io, int64_t i) HWY_ATTR {
    const auto x = hn::Sub(io.Load(logits + i), max);
    // Exp drops a NaN.
    io.Store(hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x)), e + i);
    sum = hn::Add(sum, io.Load(e + i));
  });
  return hn::ReduceSum(d, sum);
}

void CombineRow(int64_t dim, int32_t top_k, const float* x,
                const int32_t* places, const float* weights, float shared_logit,
                float* y) {
  const hn::CappedTag<float, 16> d;
  const auto gate = Sigmoid(d, hn::Set(d, shared_logit));
  ForEachVector(d, dim, [&](auto io, int64_t i) HWY_ATTR {
    auto sum =
        hn::Mul(hn::Set(d, weights[0]), io.Load(x + places[0] * dim + i));
    for (int32_t j = 1; j < top_k; ++j) {
      sum = hn::MulAdd(hn::Set(d, weights[j]), io.Load(x + places[j] * dim + i),
                       sum);
    }
    io.Store(hn::MulAdd(gate, io.Load(y + i), sum), y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(ExpVector);
HWY_EXPORT(CombineRow);

// Fewer floats than this are not worth waking a thread.
constexpr int64_t kTaskFloats = 16384;

size_t TaskRows(int64_t row_floats) {
  return static_cast<size_t>(std::max<int64_t>(kTaskFloats / row_floats, 1));
}

struct Route {
  int32_t experts, top_k;
  bool normalise;
  const float* logits;
  int64_t logits_stride;
  int32_t* ids;
  float* weights;
  float (*exp)(int64_t, const float*, float, float*);
};

// The largest logits first; a sort of all would take longer, as top_k is small.
void Choose(const Route& r, const float* logits, int32_t* ids) {
  bool taken[kMoeMaxExperts] = {};
  for (int32_t rank = 0; rank < r.top_k; ++rank) {
    int32_t best = -1;
    for (int32_t i = 0; i < r.experts; ++i) {
      if (taken[i]) continue;
      if (best < 0 || logits[i] > logits[best] ||
          (std::isnan(logits[best]) && !std::isnan(logits[i]))) {
        best = i;
      }
    }
    taken[best] = true;
    ids[rank] = best;
  }
}

void RouteRows(void* context, size_t begin, size_t rows) {
  const Route& r = *static_cast<const Route*>(context);
  for (size_t row = begin; row < begin + rows; ++row) {
    const float* const logits =
        r.logits + static_cast<int64_t>(row) * r.logits_stride;
    int32_t* const ids = r.ids + row * static_cast<size_t>(r.top_k);
    float* const weights = r.weights + row * static_cast<size_t>(r.top_k);
    Choose(r, logits, ids);
    float e[kMoeMaxExperts];
    float sum = r.exp(r.experts, logits, logits[ids[0]], e);
    for (int32_t j = 0; j < r.top_k; ++j) weights[j] = e[ids[j]];
    if (r.normalise) {
      sum = 0;
      for (int32_t j = 0; j < r.top_k; ++j) sum += weights[j];
    }
    for (int32_t j = 0; j < r.top_k; ++j) weights[j] /= sum;
  }
}

struct Gather {
  int64_t dim;
  int32_t top_k;
  const float* h;
  const int32_t* places;
  float* x;
};

void GatherRows(void* context, size_t begin, size_t rows) {
  const Gather& g = *static_cast<const Gather*>(context);
  for (size_t i = begin; i < begin + rows; ++i) {
    const int64_t row = static_cast<int64_t>(i);
    for (int32_t j = 0; j < g.top_k; ++j) {
      std::copy_n(g.h + row * g.dim, g.dim,
                  g.x + g.places[row * g.top_k + j] * g.dim);
    }
  }
}

struct Combine {
  int64_t dim;
  int32_t top_k;
  const float* x;
  const int32_t* places;
  const float* weights;
  const float* shared_logit;
  int64_t shared_logit_stride;
  float* y;
  void (*row)(int64_t, int32_t, const float*, const int32_t*, const float*,
              float, float*);
};

void CombineRows(void* context, size_t begin, size_t rows) {
  const Combine& c = *static_cast<const Combine*>(context);
  for (size_t i = begin; i < begin + rows; ++i) {
    const int64_t row = static_cast<int64_t>(i);
    c.row(c.dim, c.top_k, c.x, c.places + row * c.top_k,
          c.weights + row * c.top_k,
          c.shared_logit[row * c.shared_logit_stride], c.y + row * c.dim);
  }
}

}  // namespace

void MoeRoute(int32_t rows, int32_t experts, int32_t top_k, bool normalise,
              const float* logits, int64_t logits_stride, int32_t* ids,
              float* weights, pthreadpool_t pool) {
  assert(rows >= 0 && top_k >= 1 && top_k <= experts &&
         experts <= kMoeMaxExperts);
  Route route = {
      experts,       top_k, normalise, logits,
      logits_stride, ids,   weights,   HWY_DYNAMIC_POINTER(ExpVector)};
  pthreadpool_parallelize_1d_tile_1d(
      pool, RouteRows, &route, static_cast<size_t>(rows),
      TaskRows(int64_t{experts} * top_k), PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

void MoeGather(int32_t rows, int32_t dim, int32_t top_k, const float* h,
               const int32_t* places, float* x, pthreadpool_t pool) {
  assert(rows >= 0 && dim >= 1 && top_k >= 1);
  Gather gather = {dim, top_k, h, places, x};
  pthreadpool_parallelize_1d_tile_1d(
      pool, GatherRows, &gather, static_cast<size_t>(rows),
      TaskRows(int64_t{dim} * top_k), PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

void MoeCombine(int32_t rows, int32_t dim, int32_t top_k, const float* x,
                const int32_t* places, const float* weights,
                const float* shared_logit, int64_t shared_logit_stride,
                float* y, pthreadpool_t pool) {
  assert(rows >= 0 && dim >= 1 && top_k >= 1);
  Combine combine = {dim,
                     top_k,
                     x,
                     places,
                     weights,
                     shared_logit,
                     shared_logit_stride,
                     y,
                     HWY_DYNAMIC_POINTER(CombineRow)};
  pthreadpool_parallelize_1d_tile_1d(
      pool, CombineRows, &combine, static_cast<size_t>(rows),
      TaskRows(int64_t{dim} * top_k), PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
