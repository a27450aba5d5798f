// SPDX-License-Identifier: Apache-2.0

#include "kernels/gdn/gdn_spec_update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>

#include "kernels/gates/gates.h"
#include "kernels/norm/norm.h"

namespace deltaedge {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kElement = 4;  // bytes of a float and of an index
constexpr int64_t kMaxStride = int64_t{1} << 30;
constexpr float kL2Eps = 1e-6f;
static_assert(sizeof(float) == kElement && sizeof(int32_t) == kElement, "");

int64_t KeyFloats(const GdnShape& shape) {
  return int64_t{shape.k_heads} * shape.k_dim;
}

int64_t ValueFloats(const GdnShape& shape) {
  return int64_t{shape.v_heads} * shape.v_dim;
}

int64_t Length(const GdnSpecUpdateArgs& args, int64_t sequence) {
  return int64_t{args.cu_seqlens[sequence + 1]} - args.cu_seqlens[sequence];
}

// Bytes from the start of the workspace.
struct Layout {
  int64_t slots_seen;  // a bit per slot
  int64_t neg_exp_a;   // [Hv]
  int64_t log_decay;   // [T, Hv]
  int64_t beta;        // [T, Hv]
  int64_t q;           // [T, Hk, Dk]
  int64_t k;           // [T, Hk, Dk]
  int64_t row_begin;   // [N + 1]
  int64_t sequence;    // [N]
  int64_t each;        // [T]
  int64_t bytes;

  explicit Layout(const GdnSpecUpdateArgs& args) : bytes(0) {
    const int64_t tokens = args.tokens;
    const int64_t sequences = args.sequences;
    const int64_t v_heads = args.shape.v_heads;
    slots_seen = Place((int64_t{args.slots} + 7) / 8, 1);
    neg_exp_a = Place(v_heads, sizeof(float));
    log_decay = Place(tokens * v_heads, sizeof(float));
    beta = Place(tokens * v_heads, sizeof(float));
    q = Place(tokens * KeyFloats(args.shape), sizeof(float));
    k = Place(tokens * KeyFloats(args.shape), sizeof(float));
    row_begin = Place(sequences + 1, sizeof(int32_t));
    sequence = Place(sequences, sizeof(GdnSequence));
    each = Place(tokens, sizeof(float*));
  }

 private:
  int64_t Place(int64_t count, size_t size) {
    const int64_t begin = bytes;
    bytes += (count * static_cast<int64_t>(size) + kAlignment - 1) /
             kAlignment * kAlignment;
    return begin;
  }
};

template <class T>
T* At(const GdnSpecUpdateArgs& args, int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(args.workspace) +
                              bytes);
}

bool CheckSizes(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  const int32_t no_rows = 0;
  GdnBlock block = {};
  block.shape = args.shape;
  block.row_begin = &no_rows;
  if (!CheckGdnBlock(block, error)) return false;
  if (args.tokens < 0) {
    return FailArgument(error, "tokens", -1, args.tokens, "at least 0");
  }
  if (args.sequences < 0) {
    return FailArgument(error, "sequences", -1, args.sequences, "at least 0");
  }
  if (args.slots < 0) {
    return FailArgument(error, "slots", -1, args.slots, "at least 0");
  }
  return true;
}

// Without the digits behind the point; clamped, since the conversion is
// undefined for what does not fit.
int64_t Whole(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<int64_t>(std::max(-1e18, std::min(1e18, value)));
}

bool CheckConstants(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  if (args.softplus_beta != 1.0) {
    return FailArgument(error, "softplus_beta", -1, Whole(args.softplus_beta),
                        "exactly 1");
  }
  if (args.softplus_threshold != 20.0) {
    return FailArgument(error, "softplus_threshold", -1,
                        Whole(args.softplus_threshold), "exactly 20");
  }
  if (!(std::fabs(args.scale) <= std::numeric_limits<float>::max())) {
    return FailArgument(error, "scale", -1, Whole(args.scale),
                        "a finite float");
  }
  return true;
}

bool CheckLengths(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  if (args.columns < 2) {
    return FailArgument(error, "columns", -1, args.columns, "at least 2");
  }
  const int32_t* begin = args.cu_seqlens;
  if (begin == nullptr)
    return FailArgument(error, "cu_seqlens", -1, 0, "not null");
  if (begin[0] != 0)
    return FailArgument(error, "cu_seqlens[]", 0, begin[0], "0");
  for (int64_t i = 0; i < args.sequences; ++i) {
    if (Length(args, i) < 0) {
      return FailArgument(error, "cu_seqlens[]", i + 1, begin[i + 1],
                          "at least the element before");
    }
    if (Length(args, i) >= args.columns) {
      return FailArgument(error, "cu_seqlens[]", i + 1, begin[i + 1],
                          "at most columns - 1 above the element before");
    }
  }
  if (begin[args.sequences] != args.tokens) {
    return FailArgument(error, "cu_seqlens[]", args.sequences,
                        begin[args.sequences], "tokens, in the last element");
  }
  return true;
}

// Memory of a call: `rows` rows of `width` elements, `stride` elements apart.
struct Region {
  const char* argument;
  const void* data;
  int64_t rows;
  int64_t width;
  const char* stride_argument;  // null: dense
  int64_t stride;
  bool written;
  const char* apart;  // what is allowed where another region overlaps it

  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(data); }
  uintptr_t end() const {
    return begin() +
           static_cast<uintptr_t>(((rows - 1) * stride + width) * kElement);
  }
};

bool CheckRegion(const Region& region, ArgumentError* error) {
  if (region.data == nullptr) {
    return FailArgument(error, region.argument, -1, 0, "not null");
  }
  if (region.stride_argument != nullptr &&
      (region.stride < region.width || region.stride > kMaxStride)) {
    return FailArgument(error, region.stride_argument, -1, region.stride,
                        "at least a row, at most 2^30");
  }
  return true;
}

bool CheckAligned(const char* argument, const void* data,
                  ArgumentError* error) {
  const int64_t distance = static_cast<int64_t>(
      reinterpret_cast<uintptr_t>(data) % uintptr_t{kAlignment});
  if (distance == 0) return true;
  return FailArgument(error, argument, -1, distance, "aligned to 64 bytes");
}

bool CheckMemory(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  const int64_t tokens = args.tokens;
  const int64_t sequences = args.sequences;
  const int64_t heads = args.shape.v_heads;
  const int64_t keys = KeyFloats(args.shape);
  const int64_t values = ValueFloats(args.shape);
  const int64_t needed = GdnSpecUpdateWorkspace(args);
  const auto rows = [](const char* argument, const void* data, int64_t count,
                       int64_t width, const char* stride_argument,
                       int64_t stride, const char* apart) {
    return Region{argument,        data,   count, width,
                  stride_argument, stride, false, apart};
  };
  const auto array = [&rows](const char* argument, const void* data,
                             int64_t size, const char* apart) {
    return rows(argument, data, 1, size, nullptr, size, apart);
  };
  Region regions[] = {
      rows("out", args.out, tokens, values, "out_stride", args.out_stride,
           "no overlap with out"),
      rows("initial_state_source", args.initial_state_source, args.slots,
           GdnStateFloats(args.shape), "state_stride", args.state_stride,
           "no overlap with initial_state_source"),
      array("workspace", args.workspace, needed / kElement,
            "no overlap with workspace"),
      rows("q", args.q, tokens, keys, "q_stride", args.q_stride,
           "no overlap with q"),
      rows("k", args.k, tokens, keys, "k_stride", args.k_stride,
           "no overlap with k"),
      rows("v", args.v, tokens, values, "v_stride", args.v_stride,
           "no overlap with v"),
      rows("a", args.a, tokens, heads, "a_stride", args.a_stride,
           "no overlap with a"),
      rows("b", args.b, tokens, heads, "b_stride", args.b_stride,
           "no overlap with b"),
      array("a_log", args.a_log, heads, "no overlap with a_log"),
      array("dt_bias", args.dt_bias, heads, "no overlap with dt_bias"),
      rows("spec_state_indices", args.spec_state_indices, sequences,
           args.columns, "index_stride", args.index_stride,
           "no overlap with spec_state_indices"),
      array("num_accepted_tokens", args.num_accepted_tokens, sequences,
            "no overlap with num_accepted_tokens"),
      array("block_columns", args.block_columns, sequences,
            "no overlap with block_columns"),
      array("cu_seqlens", args.cu_seqlens, sequences + 1,
            "no overlap with cu_seqlens"),
  };
  constexpr size_t kWritten = 3;
  for (const Region& region : regions) {
    if (!CheckRegion(region, error)) return false;
  }
  if (args.state_stride % (kAlignment / kElement) != 0) {
    return FailArgument(error, "state_stride", -1, args.state_stride,
                        "a multiple of 16");
  }
  if (!CheckAligned("initial_state_source", args.initial_state_source, error) ||
      !CheckAligned("workspace", args.workspace, error)) {
    return false;
  }
  if (args.workspace_bytes < needed) {
    return FailArgument(error, "workspace_bytes", -1, args.workspace_bytes,
                        "at least GdnSpecUpdateWorkspace()");
  }
  for (size_t i = 0; i < kWritten; ++i) {
    for (size_t j = i + 1; j < sizeof(regions) / sizeof(regions[0]); ++j) {
      const Region& one = regions[i];
      const Region& other = regions[j];
      if (one.begin() < other.end() && other.begin() < one.end()) {
        return FailArgument(error, one.argument, -1,
                            static_cast<int64_t>(one.begin() - other.begin()),
                            other.apart);
      }
    }
  }
  return true;
}

bool CheckTable(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  unsigned char* seen = At<unsigned char>(args, Layout(args).slots_seen);
  std::memset(seen, 0, static_cast<size_t>((int64_t{args.slots} + 7) / 8));
  for (int64_t i = 0; i < args.sequences; ++i) {
    if (Length(args, i) == 0) continue;
    const int32_t accepted = args.num_accepted_tokens[i];
    if (accepted < 0 || accepted >= args.columns) {
      return FailArgument(error, "num_accepted_tokens[]", i, accepted,
                          "0 to columns - 1");
    }
    const int32_t column = args.block_columns[i];
    if (column < 0 || column >= args.columns) {
      return FailArgument(error, "block_columns[]", i, column,
                          "0 to columns - 1");
    }
    const int32_t* row = args.spec_state_indices + i * args.index_stride;
    for (int64_t c = 0; c < args.columns; ++c) {
      const int32_t slot = row[c];
      const int64_t index = i * args.columns + c;
      if (slot < 0 || slot >= args.slots) {
        return FailArgument(error, "spec_state_indices[]", index, slot,
                            "0 to slots - 1");
      }
      const unsigned bit = 1u << (slot % 8);
      if ((seen[slot / 8] & bit) != 0) {
        return FailArgument(error, "spec_state_indices[]", index, slot,
                            "a slot that no element before it names");
      }
      seen[slot / 8] = static_cast<unsigned char>(seen[slot / 8] | bit);
    }
  }
  return true;
}

struct Scaling {
  const float* x;
  int64_t x_stride;
  int64_t floats;
  float scale;
  float* y;
};

void ScaleRow(void* context, size_t row) {
  const Scaling& scaling = *static_cast<const Scaling*>(context);
  const float* x = scaling.x + static_cast<int64_t>(row) * scaling.x_stride;
  float* y = scaling.y + static_cast<int64_t>(row) * scaling.floats;
  for (int64_t i = 0; i < scaling.floats; ++i) y[i] = x[i] * scaling.scale;
}

}  // namespace

int64_t GdnSpecUpdateWorkspace(const GdnSpecUpdateArgs& args) {
  return CheckSizes(args, nullptr) ? Layout(args).bytes : 0;
}

bool CheckGdnSpecUpdate(const GdnSpecUpdateArgs& args, ArgumentError* error) {
  if (!CheckSizes(args, error) || !CheckConstants(args, error) ||
      !CheckLengths(args, error)) {
    return false;
  }
  if (args.tokens == 0) return true;
  if (args.slots < args.columns) {
    return FailArgument(error, "slots", -1, args.slots, "at least columns");
  }
  return CheckMemory(args, error) && CheckTable(args, error);
}

bool GdnSpecUpdate(const GdnSpecUpdateArgs& args, pthreadpool_t pool,
                   ArgumentError* error) {
  if (!CheckGdnSpecUpdate(args, error)) return false;
  if (args.tokens == 0) return true;
  const Layout layout(args);
  const GdnShape& shape = args.shape;
  const int64_t keys = KeyFloats(shape);
  const float scale = static_cast<float>(
      args.scale != 0.0 ? args.scale
                        : 1.0 / std::sqrt(double{1} * shape.k_dim));

  float* neg_exp_a = At<float>(args, layout.neg_exp_a);
  for (int32_t h = 0; h < shape.v_heads; ++h) {
    neg_exp_a[h] =
        static_cast<float>(-std::exp(static_cast<double>(args.a_log[h])));
  }
  float* log_decay = At<float>(args, layout.log_decay);
  float* beta = At<float>(args, layout.beta);
  GdnGatesForward(args.tokens, shape.v_heads, args.a, args.a_stride, args.b,
                  args.b_stride, neg_exp_a, args.dt_bias, log_decay, beta);

  float* q = At<float>(args, layout.q);
  const float* k = args.k;
  int64_t k_stride = args.k_stride;
  if (args.use_qk_l2norm) {
    L2NormHeads(args.tokens, shape.k_heads, shape.k_dim, args.q, args.q_stride,
                shape.k_dim, kL2Eps, scale, q, keys, shape.k_dim, pool);
    float* normalised = At<float>(args, layout.k);
    L2NormHeads(args.tokens, shape.k_heads, shape.k_dim, args.k, args.k_stride,
                shape.k_dim, kL2Eps, 1.0f, normalised, keys, shape.k_dim, pool);
    k = normalised;
    k_stride = keys;
  } else {
    Scaling scaling = {args.q, args.q_stride, keys, scale, q};
    pthreadpool_parallelize_1d(pool, ScaleRow, &scaling,
                               static_cast<size_t>(args.tokens),
                               PTHREADPOOL_FLAG_DISABLE_DENORMALS);
  }

  int32_t* row_begin = At<int32_t>(args, layout.row_begin);
  GdnSequence* sequence = At<GdnSequence>(args, layout.sequence);
  float** each = At<float*>(args, layout.each);
  int32_t sequences = 0;
  row_begin[0] = 0;
  for (int64_t i = 0; i < args.sequences; ++i) {
    const int32_t length = static_cast<int32_t>(Length(args, i));
    if (length == 0) continue;
    const int32_t* row = args.spec_state_indices + i * args.index_stride;
    const auto state = [&args, row](int32_t column) {
      return args.initial_state_source + row[column] * args.state_stride;
    };
    const int32_t source = GdnSpecColumn(
        args.block_columns[i], args.num_accepted_tokens[i], args.columns);
    GdnSequence* one = new (&sequence[sequences]) GdnSequence;
    one->state = state(source);
    one->each = each + args.cu_seqlens[i];
    for (int32_t t = 0; t < length; ++t) {
      each[args.cu_seqlens[i] + t] =
          state(GdnSpecColumn(source, 1 + t, args.columns));
    }
    row_begin[++sequences] = args.cu_seqlens[i + 1];
  }

  GdnBlock block;
  block.shape = shape;
  block.sequences = sequences;
  block.row_begin = row_begin;
  block.q = q;
  block.k = k;
  block.v = args.v;
  block.log_decay = log_decay;
  block.beta = beta;
  block.q_stride = keys;
  block.k_stride = k_stride;
  block.v_stride = args.v_stride;
  block.sequence = sequence;
  block.out = args.out;
  block.out_stride = args.out_stride;
  GdnForward(block, pool);
  return true;
}

}  // namespace deltaedge
