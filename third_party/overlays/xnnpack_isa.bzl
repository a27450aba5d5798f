# SPDX-License-Identifier: Apache-2.0
"""One cc_library of production microkernels for each instruction set."""

_AVX512 = ["-mf16c", "-mfma", "-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"]

# Instruction set -> compiler flags. GCC 12 is the oldest compiler supported, so
# the sets that XNNPACK itself disables for it are absent: avx512amx and
# avx512fp16 (GCC 13), avxvnniint8.
X86_ISAS = {
    "sse": ["-msse", "-mno-sse2"],
    "sse2": ["-msse2", "-mno-sse3"],
    "ssse3": ["-mssse3", "-mno-sse4.1"],
    "sse41": ["-msse4.1", "-mno-sse4.2"],
    "avx": ["-mavx", "-mno-avx2", "-mno-fma", "-mno-f16c"],
    "f16c": ["-mf16c", "-mno-avx2", "-mno-fma"],
    "fma3": ["-mf16c", "-mfma", "-mno-avx2"],
    "avx2": ["-mf16c", "-mfma", "-mavx2"],
    "avxvnni": ["-mf16c", "-mfma", "-mavx2", "-mavxvnni"],
    "avx256skx": _AVX512,
    "avx256vnni": _AVX512 + ["-mavx512vnni"],
    "avx512f": ["-mavx512f"],
    "avx512skx": _AVX512,
    "avx512vbmi": _AVX512 + ["-mavx512vbmi"],
    "avx512vnni": _AVX512 + ["-mavx512vnni"],
    "avx512vnnigfni": _AVX512 + ["-mavx512vnni", "-mgfni"],
}

# SME needs KleidiAI, which is off.
ARM64_ISAS = {
    "neon": [],
    "neonfp16": [],
    "neonfma": [],
    "neonv8": [],
    "neon_aarch64": [],
    "neonfma_aarch64": [],
    "fp16arith": ["-march=armv8.2-a+fp16"],
    "neonfp16arith": ["-march=armv8.2-a+fp16"],
    "neonfp16arith_aarch64": ["-march=armv8.2-a+fp16"],
    "neonbf16": ["-march=armv8.2-a+bf16"],
    "neondot": ["-march=armv8.2-a+dotprod"],
    "neondot_aarch64": ["-march=armv8.2-a+dotprod"],
    "neondotfp16arith": ["-march=armv8.2-a+dotprod+fp16"],
    "neoni8mm": ["-march=armv8.2-a+i8mm+fp16"],
    "aarch64": ["-march=armv8.2-a+fp16+dotprod"],
}

SCALAR_COPTS = ["-fno-fast-math", "-fno-math-errno", "-ffp-contract=off"]

def microkernels(isa, srcs, copts, deps, defines, cpu = None):
    """Kernels of one instruction set, optimised in every compilation mode."""
    native.cc_library(
        name = "microkernels_" + isa,
        srcs = srcs,
        copts = ["-O2", "-fno-math-errno", "-w"] + copts,
        # gnu99 also for .S files is harmless.
        local_defines = defines,
        linkstatic = True,
        target_compatible_with = ["@platforms//cpu:" + cpu] if cpu else [],
        visibility = ["//visibility:public"],
        deps = deps,
    )
