// SPDX-License-Identifier: Apache-2.0

// Vector functions for the bodies of kernels. Compiled once for every target,
// so include it after hwy/foreach_target.h, where hwy/highway.h goes.

#if defined(DELTAEDGE_KERNELS_BASE_LOGISTIC_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef DELTAEDGE_KERNELS_BASE_LOGISTIC_INL_H_
#undef DELTAEDGE_KERNELS_BASE_LOGISTIC_INL_H_
#else
#define DELTAEDGE_KERNELS_BASE_LOGISTIC_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

// 1 + exp(-x), in [1, infinity]; NaN for NaN. Dividing by it is exact at both
// ends: no x overflows into a NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V LogisticDenominator(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  // Exp is infinite from 88.73 on and undefined beyond 104.
  const V e = hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 104.0f)));
  // Neither Min nor Exp keeps a NaN.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Add(hn::Set(d, 1.0f), e));
}

// 1 / (1 + exp(-x)).
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::Div(hn::Set(d, 1.0f), LogisticDenominator(d, x));
}

// x / (1 + exp(-x)), also called swish.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hwy::HWY_NAMESPACE::Div(x, LogisticDenominator(d, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#endif  // DELTAEDGE_KERNELS_BASE_LOGISTIC_INL_H_
