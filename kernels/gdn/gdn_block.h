// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_GDN_GDN_BLOCK_H_
#define DELTAEDGE_KERNELS_GDN_GDN_BLOCK_H_

#include <cstdint>

#include "kernels/base/argument_error.h"
#include "pthreadpool.h"

// The gated delta rule (Yang et al., "Gated Delta Networks", 2024) over blocks
// of tokens, with states that can be rolled back. For value head h, with key
// head h / (Hv / Hk), token by token, S of shape [Dk, Dv], all in float:
//
//   t   = gamma * S                    gamma = exp(log_decay), in (0, 1]
//   u   = beta * (v - k^T t)
//   S   = fma(k, u, t)
//   out = q^T S                        q comes normalised and scaled
//
// where t is rounded and both sums run over the key index in ascending order,
// one fma each. These operations in this order are the contract: decoding,
// verifying drafts, prefill, folding a journal and copying a state give the
// same bits, whatever the split of the tokens into blocks, the company in the
// batch and the number of threads. gdn_reference.h computes the same in double
// and is the definition.
//
// How a caller rolls back: a block of drafted tokens is run with `record` set
// and writes no state at all. Once it is known how many of its rows belong to
// the sequence, the next block gets that journal as `fold`: it reads the state
// once, applies the kept rows, writes the state once and goes on from there.
namespace deltaedge {

// Hk, Hv, Dk, Dv. Hv is a multiple of Hk; Dk is at most kGdnMaxKeyDim.
struct GdnShape {
  int32_t k_heads;
  int32_t v_heads;
  int32_t k_dim;
  int32_t v_dim;
};

// A thread keeps a slice of the state on its stack: 64 KiB at this Dk.
inline constexpr int32_t kGdnMaxKeyDim = 256;

// What a block leaves behind so that any prefix of it can be folded into the
// state later. Rows of the block, dense.
struct GdnJournal {
  float* k = nullptr;      // [T, Hk * Dk]
  float* u = nullptr;      // [T, Hv * Dv]
  float* gamma = nullptr;  // [T, Hv]
};

// One sequence of the batch. A state is [Hv, ceil(Dv / 32), Dk, 32] floats,
// GdnStateFloats() of them, aligned to 64 bytes; columns at and beyond Dv are
// zero. What is written may overlap nothing else of the batch, with one
// exception: `folded` may be `state`.
struct GdnSequence {
  const float* state = nullptr;  // before the fold
  GdnJournal fold;               // journal of an earlier block
  int32_t fold_rows = 0;         // its first rows that count; 0: none
  float* folded = nullptr;       // null, or where the state after the fold goes
  GdnJournal record;             // journal of this block; null k: not recorded
  float* last = nullptr;  // null, or where the state after the last row goes
  float* const* each = nullptr;  // null, or [rows] places for the state after
                                 // each row; null entries are skipped
};

// N sequences with T rows in all. All pointers are borrowed for the call.
// Strides are in floats between rows; inner dimensions are dense.
// A sequence without rows is folded, and copied to `last` when that is set.
struct GdnBlock {
  GdnShape shape;
  int32_t sequences;            // N
  const int32_t* row_begin;     // [N + 1], from 0 to T, never decreasing
  const float* q;               // [T, Hk, Dk], normalised and scaled
  const float* k;               // [T, Hk, Dk], normalised
  const float* v;               // [T, Hv, Dv]
  const float* log_decay;       // [T, Hv]
  const float* beta;            // [T, Hv]
  int64_t q_stride;             // at least Hk * Dk
  int64_t k_stride;             // at least Hk * Dk
  int64_t v_stride;             // at least Hv * Dv
  const GdnSequence* sequence;  // [N]
  float* out;                   // [T, Hv, Dv]; null: states only, q is not used
  int64_t out_stride;           // at least Hv * Dv
};

// Whether `block` is sound; if not, `*error` names the first unsound argument.
// `index` is the sequence (or the element of row_begin); `value` of a
// misplaced pointer is its distance from the boundary, of an overlapping one
// the sequence that owns the other end (-1: the block). Cost: quadratic in the
// number of pointers; meant for the edge of a program, not for every call.
// Cannot check that the memory behind the pointers is there.
bool CheckGdnBlock(const GdnBlock& block, ArgumentError* error);

// Runs the block. Work is split into (sequence, value head, 64 columns of the
// state), each done by one thread in token order. `pool` null: on the calling
// thread. Assumes a sound block; cannot fail, does not allocate. Denormals are
// flushed to zero.
void GdnForward(const GdnBlock& block, pthreadpool_t pool);

// Number of floats of one state, padding included. Never overflows for a shape
// that CheckGdnBlock accepts.
int64_t GdnStateFloats(const GdnShape& shape);

// Copies a state to [Hv, Dk, Dv], dense, and back (which zeroes the padding).
// They must not overlap.
void GdnExportState(const GdnShape& shape, const float* state, float* out);
void GdnImportState(const GdnShape& shape, const float* in, float* state);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_GDN_GDN_BLOCK_H_
