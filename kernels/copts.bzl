# SPDX-License-Identifier: Apache-2.0
"""Compiler options of all kernels."""

# Products and sums are fused only where the source says so. .bazelrc says this for
# everything; here it holds in an application's workspace too, whatever its own says.
KERNEL_COPTS = ["-ffp-contract=off"]
