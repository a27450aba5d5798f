// SPDX-License-Identifier: Apache-2.0

#include "kernels/conv1d/conv1d.h"

#include <cassert>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv1d/conv1d.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "kernels/base/logistic-inl.h"
#include "kernels/base/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// Channels [begin, end) of one row.
void Row(const Conv1dBlock& block, size_t row, size_t begin, size_t end) {
  constexpr size_t kTaps = 4;
  const D d;
  const size_t channels = static_cast<size_t>(block.channels);
  const float* column[kTaps];  // null: before position 0
  for (size_t i = 0; i < kTaps; ++i) {
    const int64_t t = static_cast<int64_t>(row + i) - 3;
    const int64_t position = block.position + t;
    if (t >= 0) {
      column[i] = block.x + t * block.x_stride + begin;
    } else if (position >= 0) {
      column[i] =
          block.ring + position % block.ring_rows * block.channels + begin;
    } else {
      column[i] = nullptr;
    }
  }
  const float* w0 = block.weight + begin;
  const float* w1 = w0 + channels;
  const float* w2 = w1 + channels;
  const float* w3 = w2 + channels;
  float* out = block.out + row * block.out_stride + begin;
  ForEachVector(
      d, static_cast<int64_t>(end - begin), [&](auto io, int64_t c) HWY_ATTR {
        V y = hn::Mul(io.Load(w0 + c),
                      column[0] ? io.Load(column[0] + c) : hn::Zero(d));
        y = hn::MulAdd(io.Load(w1 + c),
                       column[1] ? io.Load(column[1] + c) : hn::Zero(d), y);
        y = hn::MulAdd(io.Load(w2 + c),
                       column[2] ? io.Load(column[2] + c) : hn::Zero(d), y);
        y = hn::MulAdd(io.Load(w3 + c), io.Load(column[3] + c), y);
        io.Store(Silu(d, y), out + c);
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaedge {

HWY_EXPORT(Row);

namespace {

constexpr int32_t kMaxChannels = int32_t{1} << 28;
constexpr int64_t kMaxStride = int64_t{1} << 30;
// A multiple of every vector, so that only a row's end has a part of one.
constexpr size_t kItemChannels = 1024;

bool CheckPointer(ArgumentError* error, const char* argument,
                  const void* pointer) {
  return pointer != nullptr || FailArgument(error, argument, -1, 0, "not null");
}

bool CheckStride(ArgumentError* error, const char* argument, int64_t stride,
                 int32_t channels) {
  return (stride >= channels && stride <= kMaxStride) ||
         FailArgument(error, argument, -1, stride,
                      "at least channels, at most 2^30");
}

bool Overlap(const float* a, int64_t a_floats, const float* b,
             int64_t b_floats) {
  const uintptr_t a_begin = reinterpret_cast<uintptr_t>(a);
  const uintptr_t b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + b_floats * sizeof(float) &&
         b_begin < a_begin + a_floats * sizeof(float);
}

void RunRow(void* context, size_t row, size_t begin, size_t count) {
  HWY_DYNAMIC_DISPATCH(Row)
  (*static_cast<const Conv1dBlock*>(context), row, begin, begin + count);
}

}  // namespace

bool CheckConv1dBlock(const Conv1dBlock& block, ArgumentError* error) {
  if (block.channels < 1 || block.channels > kMaxChannels) {
    return FailArgument(error, "channels", -1, block.channels, "1 to 2^28");
  }
  if (block.rows < 0)
    return FailArgument(error, "rows", -1, block.rows, "at least 0");
  if (block.position < 0 || block.position > INT64_MAX - block.rows) {
    return FailArgument(error, "position", -1, block.position,
                        "at least 0, with rows no overflow");
  }
  if (block.ring_rows < 3) {
    return FailArgument(error, "ring_rows", -1, block.ring_rows, "at least 3");
  }
  if (block.rows == 0) return true;
  if (block.position > 0 && !CheckPointer(error, "ring", block.ring)) {
    return false;
  }
  if (!CheckPointer(error, "x", block.x) ||
      !CheckStride(error, "x_stride", block.x_stride, block.channels) ||
      !CheckPointer(error, "weight", block.weight) ||
      !CheckPointer(error, "out", block.out) ||
      !CheckStride(error, "out_stride", block.out_stride, block.channels)) {
    return false;
  }
  const int64_t channels = block.channels;
  const int64_t out_floats = (block.rows - 1) * block.out_stride + channels;
  const int64_t x_floats = (block.rows - 1) * block.x_stride + channels;
  const int64_t ring_floats =
      block.position > 0 ? block.ring_rows * channels : 0;
  if (Overlap(block.out, out_floats, block.x, x_floats)) {
    return FailArgument(error, "out", -1, 0, "no overlap with x");
  }
  if (ring_floats > 0 &&
      Overlap(block.out, out_floats, block.ring, ring_floats)) {
    return FailArgument(error, "out", -1, 0, "no overlap with ring");
  }
  if (Overlap(block.out, out_floats, block.weight, 4 * channels)) {
    return FailArgument(error, "out", -1, 0, "no overlap with weight");
  }
  return true;
}

void Conv1dSiluForward(const Conv1dBlock& block, pthreadpool_t pool) {
  assert(CheckConv1dBlock(block, nullptr));
  Conv1dBlock copy = block;
  pthreadpool_parallelize_2d_tile_1d(
      pool, RunRow, &copy, static_cast<size_t>(block.rows),
      static_cast<size_t>(block.channels), kItemChannels,
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge
#endif  // HWY_ONCE
