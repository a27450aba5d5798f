# SPDX-License-Identifier: Apache-2.0
"""Stand-in for @rules_java//java:defs.bzl: the Java rules that Bazel ships natively.

Bazel looks through the registered Java toolchains even where no Java is built, and
@bazel_tools//tools/jdk loads its rules from @rules_java, which Bazel 4 would
download.
"""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_package_configuration = native.java_package_configuration
java_plugin = native.java_plugin
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
