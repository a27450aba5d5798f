// SPDX-License-Identifier: Apache-2.0

#include "kernels/attn/attention.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attn/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#ifndef DELTAEDGE_KERNELS_ATTN_ATTENTION_ONCE_
#define DELTAEDGE_KERNELS_ATTN_ATTENTION_ONCE_

namespace deltaedge {

// Queries, (row, head) pairs of one key head, that share a pass over the keys.
constexpr int64_t kMaxTileQueries = 64;
// Floats of a cache line.
constexpr int64_t kLineFloats = 16;

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ATTN_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// c[m] = scale[m] * c[m] + sum_i a[m][i] * b[i] for kRows rows m and kVecs
// vectors, `second` floats apart in b and adjacent in c. Each element is one
// chain over ascending i, so the shape of the tile does not change its bits.
// Without `scale` the chains start from zero. With kAhead, every step also asks
// for as many bytes at `ahead` as it reads of b.
template <int kRows, int kVecs, bool kAhead, class D, class V = hn::Vec<D>>
HWY_NOINLINE void Chains(D d, int64_t n, const float* const* HWY_RESTRICT a,
                         int64_t a_offset, const float* HWY_RESTRICT b,
                         int64_t pitch, int64_t second,
                         const float* HWY_RESTRICT scale,
                         float* const* HWY_RESTRICT c, int64_t c_offset,
                         const float* ahead) {
  static_assert(kRows == 1 || kRows == 2 || kRows == 4, "");
  static_assert(kVecs == 1 || kVecs == 2, "");
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT a0 = a[0] + a_offset;
  const float* HWY_RESTRICT a1 = a[kRows > 1 ? 1 : 0] + a_offset;
  const float* HWY_RESTRICT a2 = a[kRows > 2 ? 2 : 0] + a_offset;
  const float* HWY_RESTRICT a3 = a[kRows > 2 ? 3 : 0] + a_offset;
  float* HWY_RESTRICT c0 = c[0] + c_offset;
  float* HWY_RESTRICT c1 = c[kRows > 1 ? 1 : 0] + c_offset;
  float* HWY_RESTRICT c2 = c[kRows > 2 ? 2 : 0] + c_offset;
  float* HWY_RESTRICT c3 = c[kRows > 2 ? 3 : 0] + c_offset;
  V s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00;
  V s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  if (scale != nullptr) {
    s00 = hn::Mul(hn::Set(d, scale[0]), hn::LoadU(d, c0));
    if (kVecs > 1)
      s01 = hn::Mul(hn::Set(d, scale[0]), hn::LoadU(d, c0 + lanes));
    if (kRows > 1) {
      s10 = hn::Mul(hn::Set(d, scale[1]), hn::LoadU(d, c1));
      if (kVecs > 1) {
        s11 = hn::Mul(hn::Set(d, scale[1]), hn::LoadU(d, c1 + lanes));
      }
    }
    if (kRows > 2) {
      s20 = hn::Mul(hn::Set(d, scale[2]), hn::LoadU(d, c2));
      s30 = hn::Mul(hn::Set(d, scale[3]), hn::LoadU(d, c3));
      if (kVecs > 1) {
        s21 = hn::Mul(hn::Set(d, scale[2]), hn::LoadU(d, c2 + lanes));
        s31 = hn::Mul(hn::Set(d, scale[3]), hn::LoadU(d, c3 + lanes));
      }
    }
  }
  for (int64_t i = 0; i < n; ++i, b += pitch) {
    if (kAhead) {
      // Into the second-level cache: a block does not fit the first.
      __builtin_prefetch(ahead, 0, 2);
      if (2 * lanes > kLineFloats) {
        __builtin_prefetch(ahead + kLineFloats, 0, 2);
      }
      ahead += 2 * lanes;
    }
    const V b0 = hn::LoadU(d, b);
    const V b1 = kVecs > 1 ? hn::LoadU(d, b + second) : b0;
    const V x0 = hn::Set(d, a0[i]);
    s00 = hn::MulAdd(x0, b0, s00);
    if (kVecs > 1) s01 = hn::MulAdd(x0, b1, s01);
    if (kRows > 1) {
      const V x1 = hn::Set(d, a1[i]);
      s10 = hn::MulAdd(x1, b0, s10);
      if (kVecs > 1) s11 = hn::MulAdd(x1, b1, s11);
    }
    if (kRows > 2) {
      const V x2 = hn::Set(d, a2[i]);
      s20 = hn::MulAdd(x2, b0, s20);
      if (kVecs > 1) s21 = hn::MulAdd(x2, b1, s21);
      const V x3 = hn::Set(d, a3[i]);
      s30 = hn::MulAdd(x3, b0, s30);
      if (kVecs > 1) s31 = hn::MulAdd(x3, b1, s31);
    }
  }
  hn::StoreU(s00, d, c0);
  if (kVecs > 1) hn::StoreU(s01, d, c0 + lanes);
  if (kRows > 1) {
    hn::StoreU(s10, d, c1);
    if (kVecs > 1) hn::StoreU(s11, d, c1 + lanes);
  }
  if (kRows > 2) {
    hn::StoreU(s20, d, c2);
    hn::StoreU(s30, d, c3);
    if (kVecs > 1) {
      hn::StoreU(s21, d, c2 + lanes);
      hn::StoreU(s31, d, c3 + lanes);
    }
  }
}

// Of one tile's queries against one block of keys.
struct TileState {
  const float* q[kMaxTileQueries];
  float* out[kMaxTileQueries];
  float max[kMaxTileQueries];
  float sum[kMaxTileQueries];
  float rescale[kMaxTileQueries];  // of what `out` holds
  float* weight[kMaxTileQueries];  // rows of `score`: scores, then weights
  int32_t from[kMaxTileQueries];   // keys seen of the block, [from, to) of
  int32_t to[kMaxTileQueries];     // 0 .. 64
  HWY_ALIGN float score[kMaxTileQueries * kSoftmaxBlock];
};

// Scores of kVecs vectors of keys, `second` floats apart at `k`, for queries m
// .. m + kRows - 1; `key`: the first of them in the block.
template <int kRows, int kVecs, class D>
HWY_INLINE void ScoreKeys(D d, const TileState& t, int64_t m, int64_t head_dim,
                          const float* k, int64_t second, int64_t key,
                          const float* ahead) {
  if (kVecs > 1 && m == 0) {
    Chains<kRows, kVecs, kVecs != 1>(d, head_dim, t.q + m, 0, k, kKeyGroup,
                                     second, nullptr, t.weight + m, key, ahead);
  } else {
    Chains<kRows, kVecs, false>(d, head_dim, t.q + m, 0, k, kKeyGroup, second,
                                nullptr, t.weight + m, key, nullptr);
  }
}

template <int kVecs, class D>
HWY_INLINE void ScoreKeysOfAll(D d, const TileState& t, int64_t queries,
                               int64_t head_dim, const float* k, int64_t second,
                               int64_t key, const float* ahead) {
  int64_t m = 0;
  for (; m + 4 <= queries; m += 4) {
    ScoreKeys<4, kVecs>(d, t, m, head_dim, k, second, key, ahead);
  }
  if (queries - m >= 2) {
    ScoreKeys<2, kVecs>(d, t, m, head_dim, k, second, key, ahead);
    m += 2;
  }
  if (m < queries) {
    ScoreKeys<1, kVecs>(d, t, m, head_dim, k, second, key, ahead);
  }
}

// Turns the scores of keys [from, to) of query m into weights and merges them
// into its maximum and sum.
template <class D>
HWY_INLINE void MergeBlock(D d, TileState& t, int64_t m, float scale) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t from = t.from[m];
  const int64_t to = t.to[m];
  const int64_t first = from / lanes * lanes;
  float* HWY_RESTRICT s = t.weight[m];
  const V lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  V max = lowest;
  for (int64_t p = first; p < to; p += lanes) {
    const auto seen = hn::AndNot(
        hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(from - p, 0))),
        hn::FirstN(d, static_cast<size_t>(to - p)));
    const V x = hn::IfThenElse(
        seen, hn::Mul(hn::LoadU(d, s + p), hn::Set(d, scale)), lowest);
    max = hn::Max(max, x);
    hn::StoreU(x, d, s + p);
  }
  const float new_max = std::max(t.max[m], hn::ReduceMax(d, max));
  const V shift = hn::Set(d, new_max);
  V sum = hn::Zero(d);
  for (int64_t p = first; p < to; p += lanes) {
    const auto seen = hn::AndNot(
        hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(from - p, 0))),
        hn::FirstN(d, static_cast<size_t>(to - p)));
    const V x = hn::Sub(hn::LoadU(d, s + p), shift);
    // Exp makes a NaN 0; a NaN among the keys seen is to show.
    const V e = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
    const V w = hn::IfThenElseZero(seen, e);
    sum = hn::Add(sum, w);
    hn::StoreU(w, d, s + p);
  }
  // Exp(0) is 1 exactly: the shortcut does not change a bit.
  const float c = new_max == t.max[m]
                      ? 1.0f
                      : hn::GetLane(hn::Exp(d, hn::Set(d, t.max[m] - new_max)));
  t.sum[m] = hn::GetLane(hn::MulAdd(hn::Set(d, t.sum[m]), hn::Set(d, c),
                                    hn::Set(d, hn::ReduceSum(d, sum))));
  t.rescale[m] = c;
  t.max[m] = new_max;
}

// Adds the weighted values of the block, columns h .. h + kVecs vectors, for
// queries m .. m + kRows - 1. `v`: the block's first row. Keys that only some
// of the queries see are added to those alone, in ascending order. `ahead`:
// null, or what the next block reads first.
template <int kRows, int kVecs, class D>
HWY_INLINE void AddValues(D d, const TileState& t, int64_t m, const float* v,
                          int64_t head_dim, int64_t h, const float* ahead) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int32_t from = t.from[m], to = t.to[m];
  bool same = true;
  for (int i = 1; i < kRows; ++i) {
    same &= t.from[m + i] == t.from[m] && t.to[m + i] == t.to[m];
    from = std::max(from, t.from[m + i]);
    to = std::min(to, t.to[m + i]);
  }
  const float* a[kRows];
  float* c[kRows];
  float rescale[kRows];
  for (int i = 0; i < kRows; ++i) {
    a[i] = t.weight[m + i];
    c[i] = t.out[m + i];
    rescale[i] = t.rescale[m + i];
  }
  if (kVecs > 1 && m == 0 && same && ahead != nullptr) {
    Chains<kRows, kVecs, kVecs != 1>(d, to - from, a, from,
                                     v + from * head_dim + h, head_dim, lanes,
                                     rescale, c, h, ahead);
    return;
  }
  to = std::max(from, to);
  for (int i = 0; i < kRows; ++i) {
    const int32_t begin = t.from[m + i];
    const int32_t end = std::min(from, t.to[m + i]);
    if (begin >= end) continue;
    Chains<1, kVecs, false>(d, end - begin, a + i, begin,
                            v + begin * head_dim + h, head_dim, lanes,
                            rescale + i, c + i, h, nullptr);
    rescale[i] = 1.0f;
  }
  if (from < to) {
    Chains<kRows, kVecs, false>(d, to - from, a, from, v + from * head_dim + h,
                                head_dim, lanes, rescale, c, h, nullptr);
    for (int i = 0; i < kRows; ++i) rescale[i] = 1.0f;
  }
  for (int i = 0; i < kRows; ++i) {
    const int32_t begin = std::max(to, t.from[m + i]);
    const int32_t end = t.to[m + i];
    if (begin >= end) continue;
    Chains<1, kVecs, false>(d, end - begin, a + i, begin,
                            v + begin * head_dim + h, head_dim, lanes,
                            rescale + i, c + i, h, nullptr);
  }
}

template <int kVecs, class D>
HWY_INLINE void AddValuesToAll(D d, const TileState& t, int64_t queries,
                               const float* v, int64_t head_dim, int64_t h,
                               const float* ahead) {
  int64_t m = 0;
  for (; m + 4 <= queries; m += 4) {
    AddValues<4, kVecs>(d, t, m, v, head_dim, h, ahead);
  }
  if (queries - m >= 2) {
    AddValues<2, kVecs>(d, t, m, v, head_dim, h, ahead);
    m += 2;
  }
  if (m < queries) AddValues<1, kVecs>(d, t, m, v, head_dim, h, ahead);
}

// Queries begin .. begin + queries - 1 of key head `kv_head`: query j is row
// j / ratio, head kv_head * ratio + j % ratio.
void AttentionTile(const AttentionBlock& block, int64_t kv_head, int64_t begin,
                   int64_t queries) {
  const hn::CappedTag<float, kKeyGroup> d;
  const hn::CappedTag<float, 4> d4;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t head_dim = block.kv.head_dim;
  const int64_t ratio = block.q_heads / block.kv.kv_heads;
  const int64_t groups = (block.kv.capacity + kKeyGroup - 1) / kKeyGroup;
  const float* k = block.kv.k + kv_head * groups * head_dim * kKeyGroup;
  const float* v = block.kv.v + kv_head * groups * kKeyGroup * head_dim;

  TileState t;
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = 0;
  for (int64_t m = 0; m < queries; ++m) {
    const int64_t row = (begin + m) / ratio;
    const int64_t head = kv_head * ratio + (begin + m) % ratio;
    t.q[m] = block.q + row * block.q_row_stride + head * block.q_head_stride;
    t.out[m] = block.out + row * block.out_row_stride + head * head_dim;
    t.max[m] = std::numeric_limits<float>::lowest();
    t.sum[m] = 0.0f;
    t.weight[m] = t.score + m * kSoftmaxBlock;
    std::fill(t.out[m], t.out[m] + head_dim, 0.0f);
    first = std::min(first, block.range[row].begin);
    last = std::max(last, block.range[row].end);
  }

  for (int64_t base = first / kSoftmaxBlock * kSoftmaxBlock; base < last;
       base += kSoftmaxBlock) {
    int32_t from = kSoftmaxBlock;
    int32_t to = 0;
    for (int64_t m = 0; m < queries; ++m) {
      const KeyRange& range = block.range[(begin + m) / ratio];
      t.from[m] = static_cast<int32_t>(
          std::min(std::max<int64_t>(range.begin - base, 0), kSoftmaxBlock));
      t.to[m] = static_cast<int32_t>(
          std::min(std::max<int64_t>(range.end - base, 0), kSoftmaxBlock));
      if (t.from[m] >= t.to[m]) {
        t.from[m] = t.to[m] = 0;
        continue;
      }
      from = std::min(from, t.from[m]);
      to = std::max(to, t.to[m]);
    }

    // Whole groups, which exist even if the capacity ends inside one. The
    // values of the keys being scored are asked for meanwhile, and the next
    // block's keys while the values are added: the two strided passes would
    // otherwise wait for memory in turn.
    const int64_t second = lanes == kKeyGroup ? head_dim * kKeyGroup : lanes;
    const float* keys = k + base * head_dim;
    const float* values = v + base * head_dim;
    int64_t key = from / kKeyGroup * kKeyGroup;
    const int64_t key_end = (to + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    for (; key < key_end;) {
      const float* group =
          keys + key / kKeyGroup * kKeyGroup * head_dim + key % kKeyGroup;
      if (key + 2 * lanes <= key_end) {
        ScoreKeysOfAll<2>(d, t, queries, head_dim, group, second, key,
                          values + key * head_dim);
        key += 2 * lanes;
      } else {
        ScoreKeysOfAll<1>(d, t, queries, head_dim, group, second, key, nullptr);
        key += lanes;
      }
    }

    for (int64_t m = 0; m < queries; ++m) {
      if (t.from[m] < t.to[m]) {
        MergeBlock(d, t, m, block.scale);
      } else {
        t.rescale[m] = 1.0f;
      }
    }

    const float* next = base + 2 * kSoftmaxBlock <= last
                            ? keys + kSoftmaxBlock * head_dim
                            : nullptr;
    int64_t h = 0;
    for (; h + 2 * lanes <= head_dim; h += 2 * lanes) {
      AddValuesToAll<2>(d, t, queries, values, head_dim, h,
                        next == nullptr ? nullptr : next + h * kSoftmaxBlock);
    }
    for (; h + lanes <= head_dim; h += lanes) {
      AddValuesToAll<1>(d, t, queries, values, head_dim, h, nullptr);
    }
    for (; h < head_dim; h += static_cast<int64_t>(hn::Lanes(d4))) {
      AddValuesToAll<1>(d4, t, queries, values, head_dim, h, nullptr);
    }
  }

  for (int64_t m = 0; m < queries; ++m) {
    float* HWY_RESTRICT out = t.out[m];
    int64_t h = 0;
    for (; h + lanes <= head_dim; h += lanes) {
      hn::StoreU(hn::Div(hn::LoadU(d, out + h), hn::Set(d, t.sum[m])), d,
                 out + h);
    }
    for (; h < head_dim; h += static_cast<int64_t>(hn::Lanes(d4))) {
      hn::StoreU(hn::Div(hn::LoadU(d4, out + h), hn::Set(d4, t.sum[m])), d4,
                 out + h);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deltaedge {
namespace {

HWY_EXPORT(AttentionTile);

using AttentionTileFunction = void (*)(const AttentionBlock&, int64_t, int64_t,
                                       int64_t);

struct Launch {
  const AttentionBlock* block;
  AttentionTileFunction tile;
};

void RunTile(void* context, size_t kv_head, size_t begin, size_t queries) {
  const Launch& launch = *static_cast<const Launch*>(context);
  launch.tile(*launch.block, static_cast<int64_t>(kv_head),
              static_cast<int64_t>(begin), static_cast<int64_t>(queries));
}

int64_t Groups(int64_t capacity) {
  return (capacity + kKeyGroup - 1) / kKeyGroup;
}

}  // namespace

int64_t KvKeyFloats(int32_t kv_heads, int32_t head_dim, int64_t capacity) {
  return int64_t{kv_heads} * Groups(capacity) * head_dim * kKeyGroup;
}

int64_t KvValueFloats(int32_t kv_heads, int32_t head_dim, int64_t capacity) {
  return int64_t{kv_heads} * Groups(capacity) * kKeyGroup * head_dim;
}

void KvWrite(const KvView& kv, int64_t position, int32_t rows, const float* k,
             int64_t k_stride, const float* v, int64_t v_stride) {
  assert(rows >= 0 && position >= 0 && position + rows <= kv.capacity);
  const int64_t head_dim = kv.head_dim;
  const int64_t groups = Groups(kv.capacity);
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    for (int64_t r = 0; r < rows;) {
      const int64_t lane = (position + r) % kKeyGroup;
      const int64_t count = std::min<int64_t>(rows - r, kKeyGroup - lane);
      const float* from = k + r * k_stride + h * head_dim;
      float* to =
          kv.k + lane +
          (h * groups + (position + r) / kKeyGroup) * head_dim * kKeyGroup;
      for (int64_t i = 0; i < head_dim; ++i) {
        for (int64_t j = 0; j < count; ++j) {
          to[i * kKeyGroup + j] = from[j * k_stride + i];
        }
      }
      r += count;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = v + r * v_stride + h * head_dim;
      std::copy(from, from + head_dim,
                kv.v + (h * groups * kKeyGroup + position + r) * head_dim);
    }
  }
}

void KvRead(const KvView& kv, int64_t position, int32_t rows, float* k,
            float* v) {
  assert(rows >= 0 && position >= 0 && position + rows <= kv.capacity);
  const int64_t head_dim = kv.head_dim;
  const int64_t groups = Groups(kv.capacity);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t p = position + r;
    for (int64_t h = 0; h < kv.kv_heads; ++h) {
      const float* key = kv.k +
                         (h * groups + p / kKeyGroup) * head_dim * kKeyGroup +
                         p % kKeyGroup;
      for (int64_t i = 0; i < head_dim; ++i) *k++ = key[i * kKeyGroup];
      const float* value = kv.v + (h * groups * kKeyGroup + p) * head_dim;
      v = std::copy(value, value + head_dim, v);
    }
  }
}

void KvCopy(const KvView& from, int64_t rows, const KvView& to) {
  assert(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim);
  assert(rows >= 0 && rows <= from.capacity && rows <= to.capacity);
  if (rows == 0) return;
  const int64_t from_head =
      Groups(from.capacity) * kKeyGroup * int64_t{from.head_dim};
  const int64_t to_head =
      Groups(to.capacity) * kKeyGroup * int64_t{to.head_dim};
  const int64_t keys = Groups(rows) * kKeyGroup * int64_t{to.head_dim};
  const int64_t values = rows * to.head_dim;
  for (int64_t h = 0; h < to.kv_heads; ++h) {
    std::memcpy(to.k + h * to_head, from.k + h * from_head,
                static_cast<size_t>(keys) * sizeof(float));
    std::memcpy(to.v + h * to_head, from.v + h * from_head,
                static_cast<size_t>(values) * sizeof(float));
  }
}

bool CheckAttentionBlock(const AttentionBlock& block, ArgumentError* error) {
  const auto fail = [error](const char* argument, int64_t index, int64_t value,
                            const char* allowed) {
    return FailArgument(error, argument, index, value, allowed);
  };
  const KvView& kv = block.kv;
  if (block.rows < 0) return fail("rows", -1, block.rows, ">= 0");
  if (kv.kv_heads < 1) return fail("kv.kv_heads", -1, kv.kv_heads, ">= 1");
  if (block.q_heads < 1 || block.q_heads % kv.kv_heads != 0) {
    return fail("q_heads", -1, block.q_heads, "a multiple of kv.kv_heads");
  }
  if (kv.head_dim < 4 || kv.head_dim > kAttentionMaxHeadDim ||
      kv.head_dim % 4 != 0) {
    return fail("kv.head_dim", -1, kv.head_dim, "a multiple of 4, at most 512");
  }
  if (kv.capacity < 0) return fail("kv.capacity", -1, kv.capacity, ">= 0");
  if (block.rows == 0) return true;
  if (kv.k == nullptr) return fail("kv.k", -1, 0, "not null");
  if (kv.v == nullptr) return fail("kv.v", -1, 0, "not null");
  if (block.q == nullptr) return fail("q", -1, 0, "not null");
  if (block.range == nullptr) return fail("range", -1, 0, "not null");
  if (block.out == nullptr) return fail("out", -1, 0, "not null");
  if (block.q_row_stride < 0) {
    return fail("q_row_stride", -1, block.q_row_stride, ">= 0");
  }
  if (block.q_head_stride < 0) {
    return fail("q_head_stride", -1, block.q_head_stride, ">= 0");
  }
  if (block.out_row_stride < int64_t{block.q_heads} * kv.head_dim) {
    return fail("out_row_stride", -1, block.out_row_stride,
                ">= q_heads * kv.head_dim");
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    const KeyRange& range = block.range[r];
    if (range.begin < 0) return fail("range[].begin", r, range.begin, ">= 0");
    if (range.end <= range.begin) {
      return fail("range[].end", r, range.end, "> range.begin");
    }
    if (range.end > kv.capacity) {
      return fail("range[].end", r, range.end, "<= kv.capacity");
    }
  }
  return true;
}

void AttentionForward(const AttentionBlock& block, pthreadpool_t pool) {
  ArgumentError error;
  assert(CheckAttentionBlock(block, &error));
  static_cast<void>(error);
  if (block.rows == 0) return;
  const int64_t kv_heads = block.kv.kv_heads;
  const int64_t queries = int64_t{block.rows} * (block.q_heads / kv_heads);
  const int64_t threads =
      static_cast<int64_t>(pthreadpool_get_threads_count(pool));
  // Wide tiles read the keys fewest times; narrower ones only where threads
  // would be idle.
  int64_t tile = std::min(kMaxTileQueries, (queries + 3) / 4 * 4);
  for (;;) {
    const int64_t tasks = kv_heads * ((queries + tile - 1) / tile);
    if (tile <= 4 || tasks % threads == 0 || tasks >= 2 * threads) break;
    tile = (tile / 2 + 3) / 4 * 4;
  }
  Launch launch = {&block, HWY_DYNAMIC_POINTER(AttentionTile)};
  pthreadpool_parallelize_2d_tile_1d(
      pool, RunTile, &launch, static_cast<size_t>(kv_heads),
      static_cast<size_t>(queries), static_cast<size_t>(tile),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge

#endif  // HWY_ONCE
