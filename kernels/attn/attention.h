// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_ATTN_ATTENTION_H_
#define DELTAEDGE_KERNELS_ATTN_ATTENTION_H_

#include <cstdint>

#include "kernels/base/argument_error.h"
#include "pthreadpool.h"

namespace deltaedge {

// Attention of a block of query rows over the stored keys and values of one
// layer:
//
//   s[p]  = scale * <q, k[p]>                      for the keys p that q may
//   see out   = sum_p exp(s[p] - max s) * v[p]  /  sum_p exp(s[p] - max s)
//
// Query head h reads key and value head h / (q_heads / kv_heads). What a row
// may see is a range of positions, so one function serves causal attention
// ({0, p + 1}), a draft's block that sees all of itself ({0, m + T}) and
// sliding windows of both kinds. Keys and values outside a row's range do not
// touch its result, whatever they hold: NaN, infinities or memory never
// written.
//
// The order of operations is the contract: a row has the same bits alone and in
// company, with any number of threads. For every (row, head)
//   1. <q, k[p]> is one chain of fused multiply-adds over ascending d, times
//      `scale` at the end;
//   2. keys are taken in blocks of 64 absolute positions, in ascending order,
//      each block merged into a running maximum m, sum l and output o:
//        m' = max(m, max s),  c = exp(m - m'),  w[p] = exp(s[p] - m')
//        l' = fma(l, c, sum_p w[p]),  o' = c * o, then fma(w[p], v[p], o') over
//        ascending p;
//   3. out = o / l.
// Lanes run over keys in step 1 and over the head in step 2.
// attention_reference.h computes the same in double and is the definition.

// Positions of one key group: the lanes of step 1.
inline constexpr int64_t kKeyGroup = 16;
// Positions of one soft-max block; a multiple of kKeyGroup.
inline constexpr int64_t kSoftmaxBlock = 64;

// The keys and values of one attention layer for positions 0 .. capacity - 1,
// borrowed. Heads are dense; a group of 16 positions is stored transposed so
// that lanes run over keys:
//   k [kv_heads, ceil(capacity / 16), head_dim, 16]
//   v [kv_heads, ceil(capacity / 16) * 16, head_dim]
// Best 64-byte aligned; nothing needs to be initialised.
struct KvView {
  float* k;
  float* v;
  int32_t kv_heads;
  int32_t head_dim;  // a multiple of 4, at most kAttentionMaxHeadDim
  int64_t capacity;
};

inline constexpr int32_t kAttentionMaxHeadDim = 512;

// Floats that `KvView::k` and `KvView::v` take. The caller keeps the product
// within int64_t.
int64_t KvKeyFloats(int32_t kv_heads, int32_t head_dim, int64_t capacity);
int64_t KvValueFloats(int32_t kv_heads, int32_t head_dim, int64_t capacity);

// Stores keys and values of positions position .. position + rows - 1, which
// must lie within the capacity. k, v: [rows, kv_heads * head_dim], strides in
// floats. Copies bits.
void KvWrite(const KvView& kv, int64_t position, int32_t rows, const float* k,
             int64_t k_stride, const float* v, int64_t v_stride);

// The inverse: k, v [rows, kv_heads, head_dim], dense.
void KvRead(const KvView& kv, int64_t position, int32_t rows, float* k,
            float* v);

// Copies positions 0 .. rows - 1, which must lie within both capacities, bit
// for bit. The two have the same heads and head_dim and do not overlap; their
// capacities may differ. Keys are copied in whole groups, so those of `to` at
// positions from `rows` to the end of rows' group become unspecified; its other
// keys, and values from `rows` on, stay as they are.
void KvCopy(const KvView& from, int64_t rows, const KvView& to);

// The keys that a row sees: begin <= p < end.
struct KeyRange {
  int64_t begin;
  int64_t end;
};

// One call. Pointers are borrowed for its time; strides are in floats; `out`
// overlaps nothing else.
struct AttentionBlock {
  int32_t rows;
  int32_t q_heads;  // a multiple of kv.kv_heads
  KvView kv;
  const float* q;  // [rows, q_heads, head_dim], normalised and rotated
  int64_t q_row_stride;
  int64_t q_head_stride;
  const KeyRange* range;  // [rows]; 0 <= begin < end <= kv.capacity
  float scale;
  float* out;              // [rows, q_heads * head_dim]
  int64_t out_row_stride;  // at least q_heads * head_dim
};

// Whether AttentionForward may be given `block`. If not, `error` names the
// first unsound member, its index (0 unless it is an array) and its value.
bool CheckAttentionBlock(const AttentionBlock& block, ArgumentError* error);

// Parallel over heads and tiles of rows. Every key and value of a tile's range
// is read once per tile. Assumes a sound block; does not allocate (24 KiB of
// stack); cannot fail. `pool` may be null. Not to be called from two threads
// with the same pool, or with overlapping `out`.
void AttentionForward(const AttentionBlock& block, pthreadpool_t pool);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_ATTN_ATTENTION_H_
