# SPDX-License-Identifier: Apache-2.0
"""Offline stand-in for rules_cc: the C++ rules that Bazel 4 to 7 ship natively.

@bazel_tools//tools/cpp and the generated @local_config_cc load their rules from
@rules_cc; Bazel would fetch that repository from the network. These aliases are
all that they use.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
objc_library = native.objc_library
objc_import = native.objc_import
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
