// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_WEIGHTS_H_
#define DELTAEDGE_ENGINE_MODEL_WEIGHTS_H_

#include <cstdint>
#include <vector>

namespace deltaedge {

class MmapFile;

// How the numbers of a matrix are stored, and how products with it are
// computed. Values are those of the model file: append only.
enum class WeightType {
  kUnknown = 0,
  kF32 = 1,  // float
  // int8 with one float scale for each row: w = scale * q. Products round each
  // input row to int8 with a scale and zero point of its own.
  kQ8 = 2,
  // 4 bits with one bfloat16 scale for each 32 numbers of a row:
  // w = scale * (q - 8), q in 0 .. 15. cols is a multiple of 32. Inputs as kQ8.
  kQ4 = 3,
  // Stored as kQ8; products take their inputs as they are, in float.
  kQ8W = 4,
};

// Numbers that share a scale in kQ4.
inline constexpr int32_t kQ4Block = 32;

// Every scale is positive and normal: no zero, subnormal, infinity or NaN.

// A borrowed matrix [rows, cols], row-major: y = W x, so rows are outputs.
// Lives as long as the ModelFile it came from. Null data: absent.
struct MatrixView {
  // kF32: float [rows, cols]. kQ8, kQ8W: int8 [rows, cols].
  // kQ4: [rows, cols / 2] bytes, the number with the even index in the low
  // half.
  const void* data = nullptr;
  WeightType type = WeightType::kUnknown;
  int32_t rows = 0;
  int32_t cols = 0;
  // kQ8, kQ8W: float [rows]. kQ4: bfloat16 [rows, cols / 32], the upper halves
  // of floats. kF32: null.
  const void* scales = nullptr;

  // Only for kF32.
  const float* f32() const { return static_cast<const float*>(data); }
};

// Bytes of a row's numbers, and of its scales.
inline int64_t RowBytes(const MatrixView& matrix) {
  switch (matrix.type) {
    case WeightType::kF32:
      return int64_t{matrix.cols} * 4;
    case WeightType::kQ4:
      return matrix.cols / 2;
    default:
      return matrix.cols;
  }
}
inline int64_t ScaleBytes(const MatrixView& matrix) {
  switch (matrix.type) {
    case WeightType::kF32:
      return 0;
    case WeightType::kQ4:
      return matrix.cols / kQ4Block * 2;
    default:
      return 4;
  }
}

// Small tensors are always float, 64-byte aligned, borrowed likewise: the
// ModelFile has copies of them, which lie together. Norm
// gains are final factors: the file stores 1 + w for zero-centred norms.

struct MlpWeights {
  MatrixView gate;  // [I, H]
  MatrixView up;    // [I, H]
  MatrixView down;  // [H, I]
};

struct GdnWeights {
  MatrixView in_qkv;  // [2*Hk*Dk + Hv*Dv, H]: q heads, k heads, v heads
  MatrixView in_z;    // [Hv*Dv, H]
  MatrixView in_b;    // [Hv, H], kF32
  MatrixView in_a;    // [Hv, H], kF32
  MatrixView out;     // [H, Hv*Dv]
  const float* conv =
      nullptr;  // [4, 2*Hk*Dk + Hv*Dv], tap 3 is the current column
  const float* neg_exp_a = nullptr;  // [Hv], -exp(A_log)
  const float* dt_bias = nullptr;    // [Hv]
  const float* norm = nullptr;       // [Dv], plain gain
};

struct AttentionWeights {
  // Target: [2*Hq*D, H], per head D query rows then D gate rows. Draft: [Hq*D,
  // H].
  MatrixView q;
  MatrixView k;                   // [Hkv*D, H]
  MatrixView v;                   // [Hkv*D, H]
  MatrixView out;                 // [H, Hq*D]
  const float* q_norm = nullptr;  // [D]
  const float* k_norm = nullptr;  // [D]
};

// Experts are stacked: rows of one, then rows of the next.
struct MoeWeights {
  MatrixView router;         // [E, H], kF32
  MatrixView shared_router;  // [1, H], kF32
  MatrixView gate_up;        // [E*2*Im, H]: of each Im gate rows, Im up rows
  MatrixView down;           // [E*H, Im]
  MlpWeights shared;         // I is Is
};

// Exactly one of gdn and attention is set, as TargetConfig::layers says, and
// one of mlp and moe.
struct TargetLayerWeights {
  const float* input_norm = nullptr;  // [H]
  const float* post_norm = nullptr;   // [H]
  GdnWeights gdn;
  AttentionWeights attention;
  MlpWeights mlp;
  MoeWeights moe;
};

struct TargetWeights {
  MatrixView embedding;  // [V, H]
  // Null, or the file of a table so large that its rows are better copied
  // (MmapFile::Copy) than touched.
  const MmapFile* embedding_file = nullptr;
  MatrixView head;  // [V, H]; the same data as `embedding` when tied
  const float* final_norm = nullptr;  // [H]
  std::vector<TargetLayerWeights> layers;
};

struct DraftLayerWeights {
  const float* input_norm = nullptr;  // [H]
  const float* post_norm = nullptr;   // [H]
  AttentionWeights attention;
  MlpWeights mlp;
};

struct DraftWeights {
  MatrixView fc;                       // [H, taps*H]
  const float* hidden_norm = nullptr;  // [H]
  const float* final_norm = nullptr;   // [H]
  std::vector<DraftLayerWeights> layers;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_WEIGHTS_H_
