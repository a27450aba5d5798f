// SPDX-License-Identifier: Apache-2.0

#include "kernels/logits/argmax.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logits/argmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The largest of x [dim].
void ArgMaxPart(int64_t dim, const float* HWY_RESTRICT x, ArgMax* out) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Two chains of compare and select; 0 * x is a NaN unless x is finite.
  auto max0 = lowest, max1 = lowest;
  auto finite0 = zero, finite1 = zero;
  auto index0 = hn::Zero(di), index1 = index0;
  auto at0 = hn::Iota(di, 0);
  auto at1 = hn::Iota(di, static_cast<int32_t>(lanes));
  const auto step = hn::Set(di, static_cast<int32_t>(2 * lanes));
  int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto x0 = hn::LoadU(d, x + i);
    const auto x1 = hn::LoadU(d, x + i + lanes);
    const auto more0 = hn::Gt(x0, max0);
    const auto more1 = hn::Gt(x1, max1);
    max0 = hn::IfThenElse(more0, x0, max0);
    max1 = hn::IfThenElse(more1, x1, max1);
    index0 = hn::IfThenElse(hn::RebindMask(di, more0), at0, index0);
    index1 = hn::IfThenElse(hn::RebindMask(di, more1), at1, index1);
    finite0 = hn::MulAdd(x0, zero, finite0);
    finite1 = hn::MulAdd(x1, zero, finite1);
    at0 = hn::Add(at0, step);
    at1 = hn::Add(at1, step);
  }
  for (; i < dim; i += lanes) {
    const size_t left = static_cast<size_t>(dim - i);
    const auto x0 = hn::LoadNOr(lowest, d, x + i, left);
    const auto more0 = hn::Gt(x0, max0);
    max0 = hn::IfThenElse(more0, x0, max0);
    index0 = hn::IfThenElse(hn::RebindMask(di, more0), at0, index0);
    finite0 = hn::MulAdd(hn::LoadN(d, x + i, left), zero, finite0);
    at0 = at1;
  }
  const auto max = hn::Set(d, hn::ReduceMax(d, hn::Max(max0, max1)));
  const auto none = hn::Set(di, std::numeric_limits<int32_t>::max());
  index0 = hn::IfThenElse(hn::RebindMask(di, hn::Eq(max0, max)), index0, none);
  index1 = hn::IfThenElse(hn::RebindMask(di, hn::Eq(max1, max)), index1, none);
  out->index = hn::ReduceMin(di, hn::Min(index0, index1));
  // The sum makes a denormal 0, which is what the comparisons took it for.
  out->value = hn::GetLane(hn::Add(max, zero));
  out->finite = hn::AllTrue(d, hn::Eq(hn::Add(finite0, finite1), zero));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(ArgMaxPart);

// Rows are cut into parts so that one row of a large vocabulary keeps several
// threads busy; the parts of one launch lie on the stack.
constexpr int64_t kPartFloats = 16384;
constexpr int64_t kMaxParts = 256;

struct Launch {
  int32_t dim;
  const float* x;
  int64_t stride;
  int64_t part_floats, row_parts;
  ArgMax parts[kMaxParts];
};

void RunPart(void* context, size_t row, size_t part) {
  Launch& l = *static_cast<Launch*>(context);
  const int64_t begin = static_cast<int64_t>(part) * l.part_floats;
  l.parts[static_cast<int64_t>(row) * l.row_parts + part] =
      ArgMaxOfPart(static_cast<int32_t>(std::min(l.part_floats, l.dim - begin)),
                   l.x + static_cast<int64_t>(row) * l.stride + begin,
                   static_cast<int32_t>(begin));
}

}  // namespace

ArgMax ArgMaxOfPart(int32_t dim, const float* x, int32_t begin) {
  ArgMax part;
  HWY_DYNAMIC_DISPATCH(ArgMaxPart)(dim, x, &part);
  part.index += begin;
  return part;
}

float SecondOfPart(int32_t dim, float* x, int32_t begin, const ArgMax& best) {
  x[best.index - begin] = -std::numeric_limits<float>::infinity();
  return ArgMaxOfPart(dim, x, begin).value;
}

void ArgMaxRows(int32_t rows, int32_t dim, const float* x, int64_t stride,
                ArgMax* out, pthreadpool_t pool) {
  assert(rows >= 0 && dim > 0);
  Launch launch;
  launch.dim = dim;
  launch.stride = stride;
  launch.row_parts =
      std::min<int64_t>((dim + kPartFloats - 1) / kPartFloats, 32);
  launch.part_floats = (dim + launch.row_parts - 1) / launch.row_parts;
  // No part is empty: there are at most 32, of thousands of floats each.
  const int64_t launch_rows = kMaxParts / launch.row_parts;
  for (int64_t row = 0; row < rows; row += launch_rows) {
    const int64_t count = std::min<int64_t>(launch_rows, rows - row);
    launch.x = x + row * stride;
    pthreadpool_parallelize_2d(pool, RunPart, &launch,
                               static_cast<size_t>(count),
                               static_cast<size_t>(launch.row_parts),
                               PTHREADPOOL_FLAG_DISABLE_DENORMALS);
    for (int64_t r = 0; r < count; ++r) {
      const ArgMax* part = launch.parts + r * launch.row_parts;
      ArgMax best = part[0];
      for (int64_t i = 1; i < launch.row_parts; ++i) {
        best = Together(best, part[i]);
      }
      out[row + r] = best;
    }
  }
}

}  // namespace deltaedge

#endif  // HWY_ONCE
