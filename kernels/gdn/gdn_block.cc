// SPDX-License-Identifier: Apache-2.0

#include "kernels/gdn/gdn_block.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gdn/gdn_block.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#ifndef DELTAEDGE_KERNELS_GDN_GDN_BLOCK_ONCE_
#define DELTAEDGE_KERNELS_GDN_GDN_BLOCK_ONCE_
namespace deltaedge {
namespace {

constexpr size_t kTileColumns = 32;
constexpr size_t kItemColumns = 64;
constexpr size_t kGammas = 16;
constexpr size_t kLine = 16;  // floats of a cache line

size_t Tiles(const GdnShape& shape) {
  return (static_cast<size_t>(shape.v_dim) + kTileColumns - 1) / kTileColumns;
}

}  // namespace
}  // namespace deltaedge
#endif  // DELTAEDGE_KERNELS_GDN_GDN_BLOCK_ONCE_

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE
using D = hn::CappedTag<float, 8>;
#else
using D = hn::CappedTag<float, 16>;
#endif
using V = hn::Vec<D>;

// Of one pass: a tile where it fits, which is one piece of memory and half of a
// small first-level cache. Four sums at least hide the latency of fma.
constexpr size_t kVectors = hn::MaxLanes(D()) == 16 ? 2 : 4;

// Vector kIndex of a pass, which may have fewer.
template <size_t kIndex>
HWY_INLINE V LoadAt(const float* from) {
  const D d;
  return kIndex < kVectors ? hn::Load(d, from + kIndex * hn::Lanes(d))
                           : hn::Zero(d);
}

template <size_t kIndex>
HWY_INLINE void StoreAt(V v, float* to) {
  const D d;
  if (kIndex < kVectors) hn::Store(v, d, to + kIndex * hn::Lanes(d));
}

// Asks for a line that is soon read or, with kWrite, written, in the
// second-level cache: the first is full of the tile at work.
template <bool kWrite>
HWY_INLINE void Prefetch(const float* line) {
  __builtin_prefetch(line, kWrite ? 1 : 0, 2);
}

// The same for one tile's columns of a row.
template <bool kWrite>
HWY_INLINE void PrefetchRow(const float* row, size_t column, size_t v_dim) {
  const size_t end = std::min(column + kTileColumns, v_dim);
  for (; column < end; column += kLine) Prefetch<kWrite>(row + column);
}

HWY_INLINE V LoadRow(const float* row, size_t column, size_t v_dim) {
  const D d;
  return column < v_dim ? hn::LoadN(d, row + column, v_dim - column)
                        : hn::Zero(d);
}

HWY_INLINE void StoreRow(V v, float* row, size_t column, size_t v_dim) {
  if (column < v_dim) hn::StoreN(v, D(), row + column, v_dim - column);
}

// gammas[i] = exp(log_decay[row + i, head]) for the rows before `end`.
void Gammas(const GdnBlock& block, size_t head, size_t row, size_t end,
            float* HWY_RESTRICT gammas) {
  const D d;
  const size_t heads = static_cast<size_t>(block.shape.v_heads);
  HWY_ALIGN float log_decays[kGammas] = {};
  for (size_t i = 0; i < kGammas && row + i < end; ++i) {
    log_decays[i] = block.log_decay[(row + i) * heads + head];
  }
  for (size_t i = 0; i < kGammas; i += hn::Lanes(d)) {
    hn::Store(hn::Exp(d, hn::Load(d, log_decays + i)), d, gammas + i);
  }
}

// Rows of a journal, for one head and the columns of one pass.
struct FoldRows {
  size_t rows = 0;  // at most kGammas
  const float* k = nullptr;
  const float* gamma = nullptr;
  size_t k_stride = 0;
  size_t gamma_stride = 0;
  HWY_ALIGN float u[kGammas * kTileColumns];

  void Read(const GdnJournal& journal, const GdnShape& shape, size_t head,
            size_t column, size_t row, size_t count) {
    const D d;
    const size_t lanes = hn::Lanes(d);
    const size_t v_dim = static_cast<size_t>(shape.v_dim);
    const size_t v_heads = static_cast<size_t>(shape.v_heads);
    const size_t key_head = head / (v_heads / shape.k_heads);
    rows = count;
    if (count == 0) return;
    k_stride = static_cast<size_t>(shape.k_heads) * shape.k_dim;
    k = journal.k + row * k_stride + key_head * shape.k_dim;
    gamma_stride = v_heads;
    gamma = journal.gamma + row * gamma_stride + head;
    for (size_t s = 0; s < count; ++s) {
      const float* from = journal.u + ((row + s) * v_heads + head) * v_dim;
      PrefetchRow<false>(from, column + kTileColumns, v_dim);
      for (size_t i = 0; i < kVectors; ++i) {
        hn::Store(LoadRow(from, column + i * lanes, v_dim), d,
                  u + s * kTileColumns + i * lanes);
      }
    }
  }
};

// S = fma(k, u, gamma * S) for the rows of `fold`, from `source` to `dest`.
// With kPredict `dest` may be null, and t = gamma * S goes to `tile` and k^T t
// to `prediction`, with the k and gamma of the block's first row; and k_dim
// lines from `ahead` on are asked for.
template <bool kPredict>
HWY_NOINLINE void Fold(size_t k_dim, const FoldRows& fold, const float* source,
                       float* dest, const float* k, float gamma,
                       float* HWY_RESTRICT tile, float* HWY_RESTRICT prediction,
                       const float* ahead) {
  const D d;
  const V g = hn::Set(d, gamma);
  V p0 = hn::Zero(d);
  V p1 = p0;
  V p2 = p0;
  V p3 = p0;
  for (size_t i = 0; i < k_dim; ++i) {
    const float* from = source + i * kTileColumns;
    if (kPredict) Prefetch<false>(ahead + i * kLine);
    V s0 = LoadAt<0>(from);
    V s1 = LoadAt<1>(from);
    V s2 = LoadAt<2>(from);
    V s3 = LoadAt<3>(from);
    for (size_t s = 0; s < fold.rows; ++s) {
      const V fold_g = hn::Set(d, fold.gamma[s * fold.gamma_stride]);
      const V fold_k = hn::Set(d, fold.k[s * fold.k_stride + i]);
      const float* u = fold.u + s * kTileColumns;
      s0 = hn::MulAdd(fold_k, LoadAt<0>(u), hn::Mul(fold_g, s0));
      s1 = hn::MulAdd(fold_k, LoadAt<1>(u), hn::Mul(fold_g, s1));
      s2 = hn::MulAdd(fold_k, LoadAt<2>(u), hn::Mul(fold_g, s2));
      s3 = hn::MulAdd(fold_k, LoadAt<3>(u), hn::Mul(fold_g, s3));
    }
    if (!kPredict || dest != nullptr) {
      float* to = dest + i * kTileColumns;
      StoreAt<0>(s0, to);
      StoreAt<1>(s1, to);
      StoreAt<2>(s2, to);
      StoreAt<3>(s3, to);
    }
    if (kPredict) {
      const V ki = hn::Set(d, k[i]);
      float* to = tile + i * kTileColumns;
      s0 = hn::Mul(g, s0);
      s1 = hn::Mul(g, s1);
      s2 = hn::Mul(g, s2);
      s3 = hn::Mul(g, s3);
      p0 = hn::MulAdd(ki, s0, p0);
      p1 = hn::MulAdd(ki, s1, p1);
      p2 = hn::MulAdd(ki, s2, p2);
      p3 = hn::MulAdd(ki, s3, p3);
      StoreAt<0>(s0, to);
      StoreAt<1>(s1, to);
      StoreAt<2>(s2, to);
      StoreAt<3>(s3, to);
    }
  }
  if (kPredict) {
    StoreAt<0>(p0, prediction);
    StoreAt<1>(p1, prediction);
    StoreAt<2>(p2, prediction);
    StoreAt<3>(p3, prediction);
  }
}

// One token in one pass: S = fma(k, u, t) from the t in `tile`, q^T S to `out`.
// kStore: S goes to `dest`. kNext: the next token's t = gamma * S goes to
// `tile` and its k^T t to `prediction`. Asks for k_dim lines from `ahead` on.
template <bool kNext, bool kStore>
HWY_NOINLINE void Update(size_t k_dim, const float* q, const float* k,
                         const float* HWY_RESTRICT u, const float* next_k,
                         float next_gamma, float* HWY_RESTRICT tile,
                         float* dest, float* HWY_RESTRICT out,
                         float* HWY_RESTRICT prediction, const float* ahead) {
  const D d;
  const V g = hn::Set(d, next_gamma);
  const V u0 = LoadAt<0>(u);
  const V u1 = LoadAt<1>(u);
  const V u2 = LoadAt<2>(u);
  const V u3 = LoadAt<3>(u);
  V o0 = hn::Zero(d);
  V o1 = o0;
  V o2 = o0;
  V o3 = o0;
  V p0 = o0;
  V p1 = o0;
  V p2 = o0;
  V p3 = o0;
  for (size_t i = 0; i < k_dim; ++i) {
    Prefetch<false>(ahead + i * kLine);
    float* t = tile + i * kTileColumns;
    const V ki = hn::Set(d, k[i]);
    const V qi = hn::Set(d, q[i]);
    V s0 = hn::MulAdd(ki, u0, LoadAt<0>(t));
    V s1 = hn::MulAdd(ki, u1, LoadAt<1>(t));
    V s2 = hn::MulAdd(ki, u2, LoadAt<2>(t));
    V s3 = hn::MulAdd(ki, u3, LoadAt<3>(t));
    o0 = hn::MulAdd(qi, s0, o0);
    o1 = hn::MulAdd(qi, s1, o1);
    o2 = hn::MulAdd(qi, s2, o2);
    o3 = hn::MulAdd(qi, s3, o3);
    if (kStore) {
      float* to = dest + i * kTileColumns;
      StoreAt<0>(s0, to);
      StoreAt<1>(s1, to);
      StoreAt<2>(s2, to);
      StoreAt<3>(s3, to);
    }
    if (kNext) {
      const V next_ki = hn::Set(d, next_k[i]);
      s0 = hn::Mul(g, s0);
      s1 = hn::Mul(g, s1);
      s2 = hn::Mul(g, s2);
      s3 = hn::Mul(g, s3);
      p0 = hn::MulAdd(next_ki, s0, p0);
      p1 = hn::MulAdd(next_ki, s1, p1);
      p2 = hn::MulAdd(next_ki, s2, p2);
      p3 = hn::MulAdd(next_ki, s3, p3);
      StoreAt<0>(s0, t);
      StoreAt<1>(s1, t);
      StoreAt<2>(s2, t);
      StoreAt<3>(s3, t);
    }
  }
  StoreAt<0>(o0, out);
  StoreAt<1>(o1, out);
  StoreAt<2>(o2, out);
  StoreAt<3>(o3, out);
  if (kNext) {
    StoreAt<0>(p0, prediction);
    StoreAt<1>(p1, prediction);
    StoreAt<2>(p2, prediction);
    StoreAt<3>(p3, prediction);
  }
}

// All rows of one sequence for the columns of one pass, from `column` on.
void RunColumns(const GdnBlock& block, const GdnSequence& sequence,
                size_t begin, size_t end, size_t head, size_t column) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const size_t k_dim = static_cast<size_t>(block.shape.k_dim);
  const size_t v_dim = static_cast<size_t>(block.shape.v_dim);
  const size_t v_heads = static_cast<size_t>(block.shape.v_heads);
  const size_t key_head = head / (v_heads / block.shape.k_heads);
  const size_t offset = (head * Tiles(block.shape) + column / kTileColumns) *
                            k_dim * kTileColumns +
                        column % kTileColumns;

  HWY_ALIGN float tile[static_cast<size_t>(kGdnMaxKeyDim) * kTileColumns];
  HWY_ALIGN float prediction[kTileColumns];
  HWY_ALIGN float u[kTileColumns];
  HWY_ALIGN float out[kTileColumns];
  HWY_ALIGN float gammas[kGammas];
  FoldRows fold;

  const float* source = sequence.state + offset;
  // A tile is two lines a key. The first two passes over this one ask for one
  // each of the next tile's, which lies behind it: those passes are what waits
  // for memory otherwise, and both have time to spare.
  const size_t tile_floats = k_dim * kTileColumns;
  const float* ahead =
      offset + tile_floats < static_cast<size_t>(GdnStateFloats(block.shape))
          ? source + tile_floats
          : source;
  size_t folded = 0;
  const size_t fold_rows = static_cast<size_t>(sequence.fold_rows);
  for (; fold_rows - folded > kGammas; folded += kGammas) {
    fold.Read(sequence.fold, block.shape, head, column, folded, kGammas);
    Fold<false>(k_dim, fold, source, tile, nullptr, 0.0f, nullptr, nullptr,
                nullptr);
    source = tile;
  }
  fold.Read(sequence.fold, block.shape, head, column, folded,
            fold_rows - folded);

  float* dest = nullptr;
  if (sequence.folded != nullptr &&
      (sequence.folded != sequence.state || fold_rows != 0)) {
    dest = sequence.folded + offset;
  }
  if (begin == end) {
    if (dest != nullptr) {
      Fold<false>(k_dim, fold, source, dest, nullptr, 0.0f, nullptr, nullptr,
                  nullptr);
      source = dest;
      fold.rows = 0;
    }
    if (sequence.last != nullptr) {
      Fold<false>(k_dim, fold, source, sequence.last + offset, nullptr, 0.0f,
                  nullptr, nullptr, nullptr);
    }
    return;
  }

  const float* k = block.k + begin * block.k_stride + key_head * k_dim;
  Gammas(block, head, begin, end, gammas);
  float* record = nullptr;
  const size_t record_stride = v_heads * v_dim;
  if (sequence.record.k != nullptr) {
    record = sequence.record.u + head * v_dim;
    PrefetchRow<true>(record, column, v_dim);
  }
  Fold<true>(k_dim, fold, source, dest, k, gammas[0], tile, prediction, ahead);
  ahead += k_dim * kLine;

  for (size_t row = begin; row < end; ++row) {
    const size_t t = row - begin;
    const bool next = row + 1 < end;
    const V beta = hn::Set(d, block.beta[row * v_heads + head]);
    const float* v = block.v + row * block.v_stride + head * v_dim;
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t c = column + i * lanes;
      const V p = hn::Load(d, prediction + i * lanes);
      const V ui = hn::Mul(beta, hn::Sub(LoadRow(v, c, v_dim), p));
      hn::Store(ui, d, u + i * lanes);
      if (record != nullptr) StoreRow(ui, record, c, v_dim);
    }
    float* to = block.out == nullptr
                    ? nullptr
                    : block.out + row * block.out_stride + head * v_dim;
    // Rows of all heads lie too far apart for the CPU to guess the next.
    if (next) {
      PrefetchRow<false>(v + block.v_stride, column, v_dim);
      if (to != nullptr) {
        PrefetchRow<true>(to + block.out_stride, column, v_dim);
      }
      if (record != nullptr) {
        record += record_stride;
        PrefetchRow<true>(record, column, v_dim);
      }
    }

    float* each = sequence.each == nullptr ? nullptr : sequence.each[t];
    float* state = each == nullptr && !next ? sequence.last : each;
    dest = state == nullptr ? nullptr : state + offset;
    const float* q = block.out == nullptr
                         ? k
                         : block.q + row * block.q_stride + key_head * k_dim;
    if (next) {
      if ((t + 1) % kGammas == 0) Gammas(block, head, row + 1, end, gammas);
      const float gamma = gammas[(t + 1) % kGammas];
      const float* next_k = k + block.k_stride;
      if (state == nullptr) {
        Update<true, false>(k_dim, q, k, u, next_k, gamma, tile, dest, out,
                            prediction, ahead);
      } else {
        Update<true, true>(k_dim, q, k, u, next_k, gamma, tile, dest, out,
                           prediction, ahead);
      }
      k = next_k;
    } else if (state == nullptr) {
      Update<false, false>(k_dim, q, k, u, nullptr, 0.0f, tile, dest, out,
                           nullptr, ahead);
    } else {
      Update<false, true>(k_dim, q, k, u, nullptr, 0.0f, tile, dest, out,
                          nullptr, ahead);
      if (sequence.last != nullptr && sequence.last != state) {
        fold.rows = 0;
        Fold<false>(k_dim, fold, dest, sequence.last + offset, nullptr, 0.0f,
                    nullptr, nullptr, nullptr);
      }
    }
    ahead = tile;  // all has been asked for
    if (to != nullptr) {
      for (size_t i = 0; i < kVectors; ++i) {
        StoreRow(hn::Load(d, out + i * lanes), to, column + i * lanes, v_dim);
      }
    }
  }
}

// The part of a journal that belongs to a head, not to columns of it.
void RecordHead(const GdnBlock& block, const GdnJournal& record, size_t begin,
                size_t end, size_t head) {
  const size_t k_dim = static_cast<size_t>(block.shape.k_dim);
  const size_t k_heads = static_cast<size_t>(block.shape.k_heads);
  const size_t v_heads = static_cast<size_t>(block.shape.v_heads);
  const size_t key_head = head / (v_heads / k_heads);
  HWY_ALIGN float gammas[kGammas];
  for (size_t row = begin; row < end; ++row) {
    const size_t t = row - begin;
    if (t % kGammas == 0) Gammas(block, head, row, end, gammas);
    record.gamma[t * v_heads + head] = gammas[t % kGammas];
    if (head % (v_heads / k_heads) == 0) {
      std::memcpy(record.k + (t * k_heads + key_head) * k_dim,
                  block.k + row * block.k_stride + key_head * k_dim,
                  k_dim * sizeof(float));
    }
  }
}

void Item(const GdnBlock& block, size_t sequence_index, size_t head,
          size_t item) {
  const GdnSequence& sequence = block.sequence[sequence_index];
  const size_t begin = static_cast<size_t>(block.row_begin[sequence_index]);
  const size_t end = static_cast<size_t>(block.row_begin[sequence_index + 1]);
  if (item == 0 && sequence.record.k != nullptr) {
    RecordHead(block, sequence.record, begin, end, head);
  }
  const size_t columns = kVectors * hn::Lanes(D());
  const size_t item_end =
      std::min((item + 1) * kItemColumns, Tiles(block.shape) * kTileColumns);
  for (size_t column = item * kItemColumns; column < item_end;
       column += columns) {
    RunColumns(block, sequence, begin, end, head, column);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaedge {

HWY_EXPORT(Item);

namespace {

constexpr uintptr_t kStateAlignment = 64;
constexpr int64_t kMaxStateFloats = int64_t{1} << 28;
constexpr int64_t kMaxStride = int64_t{1} << 30;

// Memory that a block reads or writes.
struct Region {
  const char* argument = "";
  int64_t owner = -1;
  const float* data = nullptr;
  int64_t floats = 0;
  bool written = false;
};

int64_t Rows(const GdnBlock& block, int64_t sequence) {
  return int64_t{block.row_begin[sequence + 1]} - block.row_begin[sequence];
}

constexpr int64_t kBlockRegions = 6;
constexpr int64_t kSequenceRegions = 9;
constexpr int64_t kStateRegion = 0;
constexpr int64_t kFoldedRegion = 1;

int64_t Regions(const GdnBlock& block, int64_t owner) {
  if (owner < 0) return kBlockRegions;
  const bool each = block.sequence[owner].each != nullptr;
  return kSequenceRegions + (each ? Rows(block, owner) : 0);
}

Region RegionOf(const GdnBlock& block, int64_t owner, int64_t index) {
  const GdnShape& shape = block.shape;
  const int64_t k_floats = int64_t{shape.k_heads} * shape.k_dim;
  const int64_t v_floats = int64_t{shape.v_heads} * shape.v_dim;
  if (owner < 0) {
    const int64_t rows = block.row_begin[block.sequences];
    if (rows == 0) return {};
    switch (index) {
      case 0:
        if (block.out == nullptr) return {};
        return {"q", owner, block.q, (rows - 1) * block.q_stride + k_floats,
                false};
      case 1:
        return {"k", owner, block.k, (rows - 1) * block.k_stride + k_floats,
                false};
      case 2:
        return {"v", owner, block.v, (rows - 1) * block.v_stride + v_floats,
                false};
      case 3:
        return {"log_decay", owner, block.log_decay, rows * shape.v_heads,
                false};
      case 4:
        return {"beta", owner, block.beta, rows * shape.v_heads, false};
      default:
        if (block.out == nullptr) return {};
        return {"out", owner, block.out,
                (rows - 1) * block.out_stride + v_floats, true};
    }
  }
  const GdnSequence& sequence = block.sequence[owner];
  const int64_t state = GdnStateFloats(shape);
  const int64_t fold = sequence.fold_rows;
  const int64_t record = sequence.record.k == nullptr ? 0 : Rows(block, owner);
  switch (index) {
    case kStateRegion:
      return {"sequence[].state", owner, sequence.state, state, false};
    case kFoldedRegion:
      return {"sequence[].folded", owner, sequence.folded, state, true};
    case 2:
      return {"sequence[].last", owner, sequence.last, state, true};
    case 3:
      return {"sequence[].fold.k", owner, sequence.fold.k, fold * k_floats,
              false};
    case 4:
      return {"sequence[].fold.u", owner, sequence.fold.u, fold * v_floats,
              false};
    case 5:
      return {"sequence[].fold.gamma", owner, sequence.fold.gamma,
              fold * shape.v_heads, false};
    case 6:
      return {"sequence[].record.k", owner, sequence.record.k,
              record * k_floats, true};
    case 7:
      return {"sequence[].record.u", owner, sequence.record.u,
              record * v_floats, true};
    case 8:
      return {"sequence[].record.gamma", owner, sequence.record.gamma,
              record * shape.v_heads, true};
    default:
      return {"sequence[].each[]", owner,
              sequence.each[index - kSequenceRegions], state, true};
  }
}

bool Overlap(const Region& a, const Region& b) {
  if (a.data == nullptr || b.data == nullptr) return false;
  if (a.floats == 0 || b.floats == 0) return false;
  if (!a.written && !b.written) return false;
  const uintptr_t a_begin = reinterpret_cast<uintptr_t>(a.data);
  const uintptr_t b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a_begin < b_begin + b.floats * sizeof(float) &&
         b_begin < a_begin + a.floats * sizeof(float);
}

bool CheckShape(const GdnShape& shape, ArgumentError* error) {
  if (shape.k_heads < 1) {
    return FailArgument(error, "shape.k_heads", -1, shape.k_heads,
                        "at least 1");
  }
  if (shape.v_heads < 1 || shape.v_heads % shape.k_heads != 0) {
    return FailArgument(error, "shape.v_heads", -1, shape.v_heads,
                        "a multiple of shape.k_heads, at least that");
  }
  if (shape.k_dim < 1 || shape.k_dim > kGdnMaxKeyDim) {
    return FailArgument(error, "shape.k_dim", -1, shape.k_dim, "1 to 256");
  }
  const int64_t limit = kMaxStateFloats / shape.k_dim / shape.v_heads;
  if (shape.v_dim < 1 ||
      static_cast<int64_t>(Tiles(shape) * kTileColumns) > limit) {
    return FailArgument(error, "shape.v_dim", -1, shape.v_dim,
                        "at least 1, and a state of at most 2^28 floats");
  }
  return true;
}

bool CheckState(const char* argument, int64_t index, const float* state,
                ArgumentError* error) {
  const uintptr_t distance =
      reinterpret_cast<uintptr_t>(state) % kStateAlignment;
  if (distance != 0) {
    return FailArgument(error, argument, index, static_cast<int64_t>(distance),
                        "aligned to 64 bytes");
  }
  return true;
}

bool CheckSequence(const GdnBlock& block, int64_t index, ArgumentError* error) {
  const GdnSequence& sequence = block.sequence[index];
  if (sequence.state == nullptr) {
    return FailArgument(error, "sequence[].state", index, 0, "not null");
  }
  if (!CheckState("sequence[].state", index, sequence.state, error) ||
      !CheckState("sequence[].folded", index, sequence.folded, error) ||
      !CheckState("sequence[].last", index, sequence.last, error)) {
    return false;
  }
  if (sequence.fold_rows < 0) {
    return FailArgument(error, "sequence[].fold_rows", index,
                        sequence.fold_rows, "at least 0");
  }
  if (sequence.fold_rows > 0) {
    const char* allowed = "not null when fold_rows is not 0";
    if (sequence.fold.k == nullptr) {
      return FailArgument(error, "sequence[].fold.k", index, 0, allowed);
    }
    if (sequence.fold.u == nullptr) {
      return FailArgument(error, "sequence[].fold.u", index, 0, allowed);
    }
    if (sequence.fold.gamma == nullptr) {
      return FailArgument(error, "sequence[].fold.gamma", index, 0, allowed);
    }
  }
  if (sequence.record.k != nullptr) {
    const char* allowed = "not null when record.k is not null";
    if (sequence.record.u == nullptr) {
      return FailArgument(error, "sequence[].record.u", index, 0, allowed);
    }
    if (sequence.record.gamma == nullptr) {
      return FailArgument(error, "sequence[].record.gamma", index, 0, allowed);
    }
  }
  if (sequence.each != nullptr) {
    for (int64_t t = 0; t < Rows(block, index); ++t) {
      if (!CheckState("sequence[].each[]", index, sequence.each[t], error)) {
        return false;
      }
    }
  }
  return true;
}

bool CheckRows(const GdnBlock& block, ArgumentError* error) {
  if (block.sequences < 0) {
    return FailArgument(error, "sequences", -1, block.sequences, "at least 0");
  }
  if (block.row_begin == nullptr) {
    return FailArgument(error, "row_begin", -1, 0, "not null");
  }
  if (block.row_begin[0] != 0) {
    return FailArgument(error, "row_begin[]", 0, block.row_begin[0], "0");
  }
  for (int64_t i = 0; i < block.sequences; ++i) {
    if (block.row_begin[i + 1] < block.row_begin[i]) {
      return FailArgument(error, "row_begin[]", i + 1, block.row_begin[i + 1],
                          "at least the element before");
    }
  }
  if (block.sequences > 0 && block.sequence == nullptr) {
    return FailArgument(error, "sequence", -1, 0, "not null");
  }
  return true;
}

bool CheckStride(const char* argument, int64_t stride, int64_t floats,
                 ArgumentError* error) {
  if (stride < floats || stride > kMaxStride) {
    return FailArgument(error, argument, -1, stride,
                        "at least a row's floats, at most 2^30");
  }
  return true;
}

bool CheckInputs(const GdnBlock& block, ArgumentError* error) {
  if (block.row_begin[block.sequences] == 0) return true;
  const char* allowed = "not null";
  if (block.out != nullptr && block.q == nullptr) {
    return FailArgument(error, "q", -1, 0, "not null when out is not null");
  }
  if (block.k == nullptr) return FailArgument(error, "k", -1, 0, allowed);
  if (block.v == nullptr) return FailArgument(error, "v", -1, 0, allowed);
  if (block.log_decay == nullptr) {
    return FailArgument(error, "log_decay", -1, 0, allowed);
  }
  if (block.beta == nullptr) return FailArgument(error, "beta", -1, 0, allowed);
  const int64_t k_floats = int64_t{block.shape.k_heads} * block.shape.k_dim;
  const int64_t v_floats = int64_t{block.shape.v_heads} * block.shape.v_dim;
  if (!CheckStride("k_stride", block.k_stride, k_floats, error) ||
      !CheckStride("v_stride", block.v_stride, v_floats, error)) {
    return false;
  }
  if (block.out == nullptr) return true;
  return CheckStride("q_stride", block.q_stride, k_floats, error) &&
         CheckStride("out_stride", block.out_stride, v_floats, error);
}

bool CheckOverlaps(const GdnBlock& block, ArgumentError* error) {
  for (int64_t owner = -1; owner < block.sequences; ++owner) {
    for (int64_t i = 0; i < Regions(block, owner); ++i) {
      const Region region = RegionOf(block, owner, i);
      for (int64_t other_owner = -1; other_owner <= owner; ++other_owner) {
        const int64_t others =
            other_owner == owner ? i : Regions(block, other_owner);
        for (int64_t j = 0; j < others; ++j) {
          const Region other = RegionOf(block, other_owner, j);
          if (!Overlap(region, other)) continue;
          const bool in_place = owner == other_owner && owner >= 0 &&
                                i == kFoldedRegion && j == kStateRegion &&
                                region.data == other.data;
          if (in_place) continue;
          return FailArgument(
              error, region.argument, owner, other_owner,
              "no overlap with anything else that the block uses");
        }
      }
    }
  }
  return true;
}

void RunItem(void* context, size_t sequence, size_t head, size_t item) {
  HWY_DYNAMIC_DISPATCH(Item)
  (*static_cast<const GdnBlock*>(context), sequence, head, item);
}

}  // namespace

bool CheckGdnBlock(const GdnBlock& block, ArgumentError* error) {
  if (!CheckShape(block.shape, error)) return false;
  if (!CheckRows(block, error)) return false;
  if (!CheckInputs(block, error)) return false;
  for (int64_t i = 0; i < block.sequences; ++i) {
    if (!CheckSequence(block, i, error)) return false;
  }
  return CheckOverlaps(block, error);
}

void GdnForward(const GdnBlock& block, pthreadpool_t pool) {
  assert(CheckGdnBlock(block, nullptr));
  const size_t items =
      (Tiles(block.shape) * kTileColumns + kItemColumns - 1) / kItemColumns;
  GdnBlock copy = block;
  pthreadpool_parallelize_3d(pool, RunItem, &copy,
                             static_cast<size_t>(block.sequences),
                             static_cast<size_t>(block.shape.v_heads), items,
                             PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

int64_t GdnStateFloats(const GdnShape& shape) {
  return static_cast<int64_t>(Tiles(shape) * kTileColumns) * shape.k_dim *
         shape.v_heads;
}

void GdnExportState(const GdnShape& shape, const float* state, float* out) {
  const size_t v_dim = static_cast<size_t>(shape.v_dim);
  for (int32_t head = 0; head < shape.v_heads; ++head) {
    for (size_t column = 0; column < v_dim; column += kTileColumns) {
      const size_t columns = std::min(kTileColumns, v_dim - column);
      for (int32_t i = 0; i < shape.k_dim; ++i, state += kTileColumns) {
        float* row =
            out + (static_cast<size_t>(head) * shape.k_dim + i) * v_dim;
        std::memcpy(row + column, state, columns * sizeof(float));
      }
    }
  }
}

void GdnImportState(const GdnShape& shape, const float* in, float* state) {
  const size_t v_dim = static_cast<size_t>(shape.v_dim);
  for (int32_t head = 0; head < shape.v_heads; ++head) {
    for (size_t column = 0; column < v_dim; column += kTileColumns) {
      const size_t columns = std::min(kTileColumns, v_dim - column);
      for (int32_t i = 0; i < shape.k_dim; ++i, state += kTileColumns) {
        const float* row =
            in + (static_cast<size_t>(head) * shape.k_dim + i) * v_dim;
        std::memcpy(state, row + column, columns * sizeof(float));
        std::memset(state + columns, 0,
                    (kTileColumns - columns) * sizeof(float));
      }
    }
  }
}

}  // namespace deltaedge
#endif  // HWY_ONCE
