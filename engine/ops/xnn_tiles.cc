// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/xnn_tiles.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "xnnpack.h"
#include "xnnpack/common.h"
#include "xnnpack/config.h"
#include "xnnpack/gemm.h"
#include "xnnpack/hardware-config.h"

namespace deltaedge {
namespace {

#define TILE(family, rows, kind)                                  \
  {                                                               \
    rows, reinterpret_cast<XnnKernel>(                            \
              xnn_##family##_gemm_minmax_ukernel_##rows##x##kind) \
  }

constexpr int kMaxTiles = 5;

// Tiles of one kind of packed weights and one instruction set, by height; the
// last is the one that XNNPACK's operators use. The kernels themselves are in
// third_party/overlays/xnnpack.BUILD.
const XnnTile kFamilies[][kMaxTiles] = {
#if XNN_ARCH_X86_64
    {TILE(f32, 4, 32__avx512f_broadcast), TILE(f32, 5, 32__avx512f_broadcast),
     TILE(f32, 6, 32__avx512f_broadcast), TILE(f32, 7, 32__avx512f_broadcast)},
    {TILE(f32, 3, 16__fma3_broadcast), TILE(f32, 4, 16__fma3_broadcast),
     TILE(f32, 5, 16__fma3_broadcast)},
    {TILE(qd8_f32_qc8w, 5, 16c8__avx512vnni_prfm),
     TILE(qd8_f32_qc8w, 7, 16c8__avx512vnni_prfm),
     TILE(qd8_f32_qc8w, 8, 16c8__avx512vnni_prfm),
     TILE(qd8_f32_qc8w, 10, 16c8__avx512vnni_prfm)},
    {TILE(qd8_f32_qc8w, 5, 16c8__avx512skx_prfm),
     TILE(qd8_f32_qc8w, 8, 16c8__avx512skx_prfm)},
    {TILE(qd8_f32_qc8w, 3, 8c8__avxvnni_prfm),
     TILE(qd8_f32_qc8w, 5, 8c8__avxvnni_prfm)},
    {TILE(qd8_f32_qc8w, 2, 8c8__avx2), TILE(qd8_f32_qc8w, 3, 8c8__avx2),
     TILE(qd8_f32_qc8w, 4, 8c8__avx2)},
    {TILE(qd8_f32_qb4w, 5, 16c8__avx512vnnigfni_prfm),
     TILE(qd8_f32_qb4w, 7, 16c8__avx512vnnigfni_prfm),
     TILE(qd8_f32_qb4w, 8, 16c8__avx512vnnigfni_prfm),
     TILE(qd8_f32_qb4w, 10, 16c8__avx512vnnigfni_prfm),
     TILE(qd8_f32_qb4w, 14, 16c8__avx512vnnigfni_prfm)},
    {TILE(qd8_f32_qb4w, 5, 16c8__avx512vnni_prfm),
     TILE(qd8_f32_qb4w, 7, 16c8__avx512vnni_prfm),
     TILE(qd8_f32_qb4w, 8, 16c8__avx512vnni_prfm)},
    {TILE(qd8_f32_qb4w, 2, 8c8__avx2), TILE(qd8_f32_qb4w, 3, 8c8__avx2)},
    {TILE(f32_qc8w, 2, 32__avx512skx_broadcast),
     TILE(f32_qc8w, 4, 32__avx512skx_broadcast),
     TILE(f32_qc8w, 7, 32__avx512skx_broadcast)},
    {TILE(f32_qc8w, 3, 16__avx2_broadcast),
     TILE(f32_qc8w, 5, 16__avx2_broadcast)},
#elif XNN_ARCH_ARM64
    {TILE(f32, 4, 8__aarch64_neonfma_lane_ld128),
     TILE(f32, 6, 8__aarch64_neonfma_lane_ld128)},
    // Multiplies rows by twos.
    {TILE(qd8_f32_qc8w, 2, 16c8__neoni8mm),
     TILE(qd8_f32_qc8w, 4, 16c8__neoni8mm)},
    {TILE(qd8_f32_qc8w, 2, 16c4__neondot), TILE(qd8_f32_qc8w, 3, 16c4__neondot),
     TILE(qd8_f32_qc8w, 4, 16c4__neondot)},
    {TILE(qd8_f32_qb4w, 2, 16c8__neoni8mm),
     TILE(qd8_f32_qb4w, 4, 16c8__neoni8mm)},
    {TILE(qd8_f32_qb4w, 2, 16c4__neondot), TILE(qd8_f32_qb4w, 3, 16c4__neondot),
     TILE(qd8_f32_qb4w, 4, 16c4__neondot)},
    {TILE(qd8_f32_qb4w, 2, 16__neon_mlal_lane),
     TILE(qd8_f32_qb4w, 3, 16__neon_mlal_lane),
     TILE(qd8_f32_qb4w, 4, 16__neon_mlal_lane),
     TILE(qd8_f32_qb4w, 6, 16__neon_mlal_lane)},
    {TILE(f32_qc8w, 4, 8__aarch64_neonfma_lane_ld64),
     TILE(f32_qc8w, 5, 8__aarch64_neonfma_lane_ld64),
     TILE(f32_qc8w, 6, 8__aarch64_neonfma_lane_ld64)},
#else
    {},
#endif
};

#undef TILE

}  // namespace

absl::Span<const XnnTile> LowerTiles(XnnKernel tallest) {
  for (const auto& family : kFamilies) {
    for (int i = 0; i < kMaxTiles; ++i) {
      if (family[i].kernel == tallest) return absl::MakeConstSpan(family, i);
    }
  }
  return {};
}

std::string XnnPackingIdentity() {
  // Bytes: elsewhere than here it is a hash.
  std::string identity = absl::BytesToHexString(absl::string_view(
      static_cast<const char*>(xnn_experimental_get_build_identifier_data()),
      xnn_experimental_get_build_identifier_size()));
  if (xnn_initialize(/*allocator=*/nullptr) != xnn_status_success) {
    return identity;
  }
  const auto* hardware = xnn_init_hardware_config();
  if (hardware != nullptr) {
    absl::StrAppend(
        &identity, " cpu ",
        absl::BytesToHexString(absl::string_view(
            reinterpret_cast<const char*>(hardware), sizeof(*hardware))));
  }
  const auto add = [&](const char* type, const xnn_gemm_config* config) {
    if (config == nullptr) return;
    absl::StrAppend(&identity, " ", type, " ", int{config->mr}, "x",
                    int{config->nr}, " ", int{config->log2_kr}, " ",
                    int{config->log2_sr}, " ", int{config->planes});
  };
  add("f32", xnn_init_f32_gemm_config());
  add("q8", xnn_init_qd8_f32_qc8w_gemm_config());
  add("q4", xnn_init_qd8_f32_qb4w_gemm_config());
  add("q8w", xnn_init_f32_qc8w_gemm_config());
  return identity;
}

}  // namespace deltaedge
