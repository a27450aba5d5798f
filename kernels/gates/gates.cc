// SPDX-License-Identifier: Apache-2.0

#include "kernels/gates/gates.h"

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "pthreadpool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gates/gates.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#ifndef DELTAEDGE_KERNELS_GATES_GATES_ONCE_
#define DELTAEDGE_KERNELS_GATES_GATES_ONCE_
namespace deltaedge {
namespace {

struct Gates {
  size_t heads;
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  const float* neg_exp_a;
  const float* dt_bias;
  float* log_decay;
  float* beta;
};

}  // namespace
}  // namespace deltaedge
#endif  // DELTAEDGE_KERNELS_GATES_GATES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void Row(const Gates& gates, size_t row) {
  const hn::CappedTag<float, 16> d;
  using V = hn::Vec<decltype(d)>;
  const V one = hn::Set(d, 1.0f);
  const V threshold = hn::Set(d, 20.0f);
  const float* a_row = gates.a + row * gates.a_stride;
  const float* b_row = gates.b + row * gates.b_stride;
  for (size_t h = 0; h < gates.heads; h += hn::Lanes(d)) {
    const size_t count = gates.heads - h;
    const V x = hn::Add(hn::LoadN(d, a_row + h, count),
                        hn::LoadN(d, gates.dt_bias + h, count));
    const V soft = hn::Log1p(d, hn::Exp(d, hn::Min(x, threshold)));
    const V softplus = hn::IfThenElse(hn::Gt(x, threshold), x, soft);
    const V log_decay =
        hn::Mul(hn::LoadN(d, gates.neg_exp_a + h, count), softplus);
    // exp(104) is infinite and the last argument that hn::Exp takes.
    const V minus_b =
        hn::Min(hn::Neg(hn::LoadN(d, b_row + h, count)), hn::Set(d, 104.0f));
    const V beta = hn::Div(one, hn::Add(one, hn::Exp(d, minus_b)));
    hn::StoreN(log_decay, d, gates.log_decay + row * gates.heads + h, count);
    hn::StoreN(beta, d, gates.beta + row * gates.heads + h, count);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaedge {

HWY_EXPORT(Row);

namespace {

void RunRow(void* context, size_t row) {
  HWY_DYNAMIC_DISPATCH(Row)(*static_cast<const Gates*>(context), row);
}

}  // namespace

void GdnGatesForward(int32_t rows, int32_t heads, const float* a,
                     int64_t a_stride, const float* b, int64_t b_stride,
                     const float* neg_exp_a, const float* dt_bias,
                     float* log_decay, float* beta) {
  assert(rows >= 0 && heads >= 1);
  assert(a_stride >= heads && b_stride >= heads);
  Gates gates = {static_cast<size_t>(heads),
                 a,
                 a_stride,
                 b,
                 b_stride,
                 neg_exp_a,
                 dt_bias,
                 log_decay,
                 beta};
  // Without a pool this is a loop with denormals flushed.
  pthreadpool_parallelize_1d(nullptr, RunRow, &gates, static_cast<size_t>(rows),
                             PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge
#endif  // HWY_ONCE
