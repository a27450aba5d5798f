# SPDX-License-Identifier: Apache-2.0
"""How XNNPACK is compiled: its configuration, and xnn_microkernels(), its kernels of one
instruction set as a cc_library."""

load("@rules_cc//cc:defs.bzl", "cc_library")

# What xnnpack.h does not show but struct layouts and kernel choice depend on.
CONFIGURATION = [
    # On Arm the assembly kernels of one row sum in another order than those of
    # several rows: a row's bits would depend on its neighbours (docs/build.md).
    "XNN_ENABLE_ASSEMBLY=0",
    # For the same reason: else the core that runs a tile chooses the kernel.
    "XNN_MAX_UARCH_TYPES=1",
    # Kernels by number of rows: one row has its own, with the same sums.
    "XNN_ENABLE_GEMM_M_SPECIALIZATION=1",
    # Without it only the portable kernels are ever chosen.
    "XNN_ENABLE_CPUINFO=1",
    "XNN_ENABLE_MEMOPT=1",
    # Errors come back as xnn_status; a library does not print.
    "XNN_LOG_LEVEL=0",
    # Not used here.
    "XNN_ENABLE_DWCONV_MULTIPASS=0",
    "XNN_ENABLE_SPARSE=0",
    # Instruction sets: what GCC 12 compiles. KleidiAI (and with it SME) is not in
    # Debian's archive.
    "XNN_ENABLE_ARM_BF16=1",
    "XNN_ENABLE_ARM_DOTPROD=1",
    "XNN_ENABLE_ARM_FP16_SCALAR=1",
    "XNN_ENABLE_ARM_FP16_VECTOR=1",
    "XNN_ENABLE_ARM_I8MM=1",
    "XNN_ENABLE_ARM_SME2=0",
    "XNN_ENABLE_ARM_SME=0",
    "XNN_ENABLE_AVX256SKX=1",
    "XNN_ENABLE_AVX256VNNI=1",
    "XNN_ENABLE_AVX256VNNIGFNI=0",
    "XNN_ENABLE_AVX512AMX=0",
    "XNN_ENABLE_AVX512F=1",
    "XNN_ENABLE_AVX512FP16=0",
    "XNN_ENABLE_AVX512SKX=1",
    "XNN_ENABLE_AVX512VBMI=1",
    "XNN_ENABLE_AVX512VNNI=1",
    "XNN_ENABLE_AVX512VNNIGFNI=1",
    "XNN_ENABLE_AVXVNNI=1",
    "XNN_ENABLE_AVXVNNIINT8=0",
    "XNN_ENABLE_HVX=0",
    "XNN_ENABLE_KLEIDIAI=0",
    "XNN_ENABLE_RISCV_VECTOR=0",
]

_AVX512 = [
    "-mf16c",
    "-mfma",
    "-mavx512f",
    "-mavx512cd",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
]

# Instruction set -> compiler flags. "-mno-" keeps the compiler from using more than
# the set that the kernel was chosen for, whatever -march a user adds. The sets that
# GCC 12 lacks or XNNPACK disables for it are left out: avx512amx, avx512fp16,
# avxvnniint8.
X86_ISAS = {
    "avx": ["-mavx", "-mno-avx2", "-mno-fma", "-mno-f16c"],
    "avx2": ["-mf16c", "-mfma", "-mavx2"],
    "avx256skx": _AVX512,
    "avx256vnni": _AVX512 + ["-mavx512vnni"],
    "avx512f": ["-mavx512f"],
    "avx512skx": _AVX512,
    "avx512vbmi": _AVX512 + ["-mavx512vbmi"],
    "avx512vnni": _AVX512 + ["-mavx512vnni"],
    "avx512vnnigfni": _AVX512 + ["-mavx512vnni", "-mgfni"],
    "avxvnni": ["-mf16c", "-mfma", "-mavx2", "-mavxvnni"],
    "f16c": ["-mf16c", "-mno-avx2", "-mno-fma"],
    "fma3": ["-mf16c", "-mfma", "-mno-avx2"],
    "sse": ["-msse", "-mno-sse2"],
    "sse2": ["-msse2", "-mno-sse3"],
    "sse41": ["-msse4.1", "-mno-sse4.2"],
    "ssse3": ["-mssse3", "-mno-sse4.1"],
}

# SME and SME2 need KleidiAI, which Debian's archive does not serve.
ARM64_ISAS = {
    "fp16arith": ["-march=armv8.2-a+fp16"],
    "neon": [],
    "neon_aarch64": [],
    "neonbf16": ["-march=armv8.2-a+bf16"],
    "neondot": ["-march=armv8.2-a+dotprod"],
    "neondot_aarch64": ["-march=armv8.2-a+dotprod"],
    "neondotfp16arith": ["-march=armv8.2-a+dotprod+fp16"],
    "neonfma": [],
    "neonfma_aarch64": [],
    "neonfp16": [],
    "neonfp16arith": ["-march=armv8.2-a+fp16"],
    "neonfp16arith_aarch64": ["-march=armv8.2-a+fp16"],
    "neoni8mm": ["-march=armv8.2-a+i8mm+fp16"],
    "neonv8": [],
}

def xnn_microkernels(isa, srcs, isa_copts, local_defines, deps, cpu = None):
    """Defines :microkernels_<isa>, optimised in every compilation mode.

    Args:
      isa: name of the instruction set, as XNNPACK's gen/ folder spells it.
      srcs: the production kernels of the set.
      isa_copts: compiler flags that enable it.
      local_defines: XNNPACK's configuration.
      deps: what the kernels include.
      cpu: name in @platforms//cpu, if the set belongs to one.
    """
    cc_library(
        name = "microkernels_" + isa,
        srcs = srcs,
        copts = [
            "-O2",
            "-ffp-contract=off",
            "-fno-math-errno",
            "-w",
        ] + isa_copts,
        local_defines = local_defines,
        # The operators find kernels through tables of pointers: never a .so apiece.
        linkstatic = True,
        target_compatible_with = ["@platforms//cpu:" + cpu] if cpu else [],
        visibility = ["//visibility:private"],
        deps = deps,
    )
