// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_KERNELS_GDN_GDN_SPEC_UPDATE_H_
#define DELTAEDGE_KERNELS_GDN_GDN_SPEC_UPDATE_H_

#include <cstdint>

#include "kernels/base/argument_error.h"
#include "kernels/gdn/gdn_block.h"
#include "pthreadpool.h"

// The gated delta rule of gdn_block.h over a table of state slots: gates,
// normalisation of queries and keys, and the recurrence in one call, with the
// arguments of the operator that serving frameworks know as
// fused_sigmoid_gating_delta_rule_update_spec. Instead of a journal, the state
// after every token is stored, and the next call is told how many tokens were
// kept. Both ways give the same bits.
//
// A sequence owns the NS = 2 + K slots that its row of the table names (K: the
// most drafts of a block), and uses the row as a ring of columns:
//
//   r = (block_columns + num_accepted_tokens) mod NS   where the block starts
//   (r + 1 + t) mod NS                                 state after its token t
//
// A block has at most NS - 1 tokens, so it never writes column r. That is one
// slot more than the usual layout, and it makes every number of kept tokens
// right, zero included: then nothing of the block counts and the next one
// starts from the same state. The caller's part, after each call and for each
// sequence that had tokens in it:
//
//   block_columns[i] = GdnSpecColumn(block_columns[i], num_accepted_tokens[i],
//                                    NS);                        // r
//   num_accepted_tokens[i] = how many tokens of this block are kept;
//
// Until it has done so, the block may be run again, or another one in its
// place. A new sequence puts its state into any column c of its row (a zero
// state is zeros) and starts with block_columns = c, num_accepted_tokens = 0.
// A round without drafts is a block of one token.
namespace deltaedge {

// The column `tokens` after `column` in a ring of `columns`; `tokens` >= 0.
inline int32_t GdnSpecColumn(int32_t column, int32_t tokens, int32_t columns) {
  return static_cast<int32_t>((int64_t{column} + tokens) % columns);
}

// N sequences with T tokens in all, any mixture of blocks with drafts, single
// tokens and sequences that sit the call out. Of a sequence without tokens (a
// padding row) nothing is looked at: not its row of the table, its count or its
// column, so -1 is as good as anything there.
//
// All pointers are borrowed for the call. Strides are in elements between rows;
// inner dimensions are dense. `out`, the states and the workspace overlap
// nothing else, gaps between rows included.
struct GdnSpecUpdateArgs {
  GdnShape shape;     // Hk, Hv, Dk, Dv
  int32_t tokens;     // T
  int32_t sequences;  // N
  int32_t slots;      // states in initial_state_source, at least NS
  int32_t columns;    // NS, at least 2

  const float* q;        // [T, Hk, Dk], raw
  const float* k;        // [T, Hk, Dk], raw
  const float* v;        // [T, Hv, Dv]
  const float* a;        // [T, Hv], decay before dt_bias and softplus
  const float* b;        // [T, Hv], beta before the sigmoid
  int64_t q_stride;      // at least Hk * Dk
  int64_t k_stride;      // at least Hk * Dk
  int64_t v_stride;      // at least Hv * Dv
  int64_t a_stride;      // at least Hv
  int64_t b_stride;      // at least Hv
  const float* a_log;    // [Hv], A_log of the checkpoint
  const float* dt_bias;  // [Hv]

  // [slots], read and written in place. A state is laid out as in gdn_block.h:
  // 64-byte aligned, GdnStateFloats(shape) floats.
  float* initial_state_source;
  int64_t state_stride;  // a multiple of 16, at least GdnStateFloats(shape)

  const int32_t* spec_state_indices;   // [N, NS], each slot at most once
  int64_t index_stride;                // at least NS
  const int32_t* num_accepted_tokens;  // [N], 0 to NS - 1: tokens kept of the
                                       // sequence's last block
  const int32_t* block_columns;        // [N], 0 to NS - 1: column that the
                                       // sequence's last block started from
  const int32_t* cu_seqlens;           // [N + 1], from 0 to T, never decreasing

  float* out;          // [T, Hv, Dv]
  int64_t out_stride;  // at least Hv * Dv

  // 64-byte aligned; what it holds before and after the call means nothing.
  void* workspace;
  int64_t workspace_bytes;  // at least GdnSpecUpdateWorkspace()

  // Whether q and k are divided by sqrt(sum of squares + 1e-6) per head.
  bool use_qk_l2norm = true;
  double scale = 0.0;                // of q; 0: 1 / sqrt(Dk)
  double softplus_beta = 1.0;        // 1 is all there is
  double softplus_threshold = 20.0;  // 20 is all there is
};

// Bytes of workspace that a call needs. Looks at `shape`, `tokens`, `sequences`
// and `slots` only and grows with each of them, so what suffices for the
// largest call suffices for all. 0 if one of them is not sound.
int64_t GdnSpecUpdateWorkspace(const GdnSpecUpdateArgs& args);

// Whether `args` are sound; if not, `*error` (which may be null) names the
// first unsound argument. `index` is the element of an array, of the table
// sequence * NS + column; `value` of a fraction has lost its digits behind the
// point, of a misaligned pointer it is the distance from the boundary in bytes,
// of an overlapping one the distance from the other's start. Writes to the
// workspace only. Takes a few operations per element of the table and
// slots / 8 bytes of workspace to clear, nothing beside the recurrence itself.
// Cannot check that the memory behind the pointers is there, that the last
// block had as many tokens as are kept of it, nor who else uses a slot of a
// sequence that is not in the call.
bool CheckGdnSpecUpdate(const GdnSpecUpdateArgs& args, ArgumentError* error);

// Checks `args` and runs the block. On unsound ones returns false with `*error`
// as above, and nothing but the workspace has been written. Does not allocate.
// Bits are those of GdnForward whatever the company, the split into blocks and
// the number of threads; `pool` null: on the calling thread. Calls may run at
// the same time if they share no pool, sequence, `out` or workspace.
bool GdnSpecUpdate(const GdnSpecUpdateArgs& args, pthreadpool_t pool,
                   ArgumentError* error);

}  // namespace deltaedge

#endif  // DELTAEDGE_KERNELS_GDN_GDN_SPEC_UPDATE_H_
