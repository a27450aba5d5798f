// SPDX-License-Identifier: Apache-2.0

// The loop of element-wise kernels. Compiled once for every target, so include
// it after hwy/foreach_target.h, where hwy/highway.h goes.

#if defined(DELTAEDGE_KERNELS_BASE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAEDGE_KERNELS_BASE_VECTORS_INL_H_
#undef DELTAEDGE_KERNELS_BASE_VECTORS_INL_H_
#else
#define DELTAEDGE_KERNELS_BASE_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

// How a body reads and writes: a whole vector, or its first lanes only (the
// others read as zero and are not written).
template <class D>
struct WholeVector {
  D d;
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(const float* from) const {
    return hwy::HWY_NAMESPACE::LoadU(d, from);
  }
  HWY_INLINE void Store(hwy::HWY_NAMESPACE::Vec<D> v, float* to) const {
    hwy::HWY_NAMESPACE::StoreU(v, d, to);
  }
};

template <class D>
struct FirstLanes {
  D d;
  size_t lanes;
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Load(const float* from) const {
    return hwy::HWY_NAMESPACE::LoadN(d, from, lanes);
  }
  HWY_INLINE void Store(hwy::HWY_NAMESPACE::Vec<D> v, float* to) const {
    hwy::HWY_NAMESPACE::StoreN(v, d, to, lanes);
  }
};

// Calls body(io, i) for the vectors at i = 0, lanes, 2 * lanes, .. below n, in
// order; the last may be a part. Every element goes through the same operations
// wherever it lies. The body is a lambda marked HWY_ATTR:
//
//   ForEachVector(d, n, [&](auto io, int64_t i) HWY_ATTR {
//     io.Store(hn::Add(io.Load(x + i), io.Load(y + i)), x + i);
//   });
template <class D, class Body>
HWY_INLINE void ForEachVector(D d, int64_t n, const Body& body) {
  const int64_t lanes = static_cast<int64_t>(hwy::HWY_NAMESPACE::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(WholeVector<D>{d}, i);
  if (i < n) body(FirstLanes<D>{d, static_cast<size_t>(n - i)}, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#endif  // DELTAEDGE_KERNELS_BASE_VECTORS_INL_H_
