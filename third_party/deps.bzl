# SPDX-License-Identifier: Apache-2.0
"""deltaedge_dependencies(): every repository that DeltaEdge needs, in one call.

From a workspace that uses DeltaEdge:

    local_repository(name = "deltaedge", path = "...")
    load("@deltaedge//third_party:deps.bzl", "deltaedge_dependencies")
    deltaedge_dependencies()

A repository that the workspace has defined before the call is left as it is. All
labels go through Label(), which reads them from this file's own repository
whatever workspace makes the call. docs/build.md tells where the sources come from
and how to move a pin.
"""

load("//third_party/bazel:stub_repository.bzl", "stub_repository")
load("//third_party/debian:debian.bzl", "debian_source", "pin")

# Debian's builds of Bazel leave native.bazel_version empty; this method of Label
# came with Bazel 7. A Bazel of that age brings these repositories along itself.
_NEEDS_STUBS = not hasattr(Label("//:BUILD"), "same_package_label")

def _maybe(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)

def _overlay(file):
    return Label("//third_party/overlays:" + file)

def _stub(file):
    return Label("//third_party/bazel:" + file)

def bazel_stubs():
    """What Bazel 4 would download for any C++ target, and a newer @platforms."""
    if not _NEEDS_STUBS:
        return
    _maybe(
        stub_repository,
        name = "platforms",
        files = {
            _stub("platforms.BUILD"): "BUILD",
            _stub("platforms_cpu.BUILD"): "cpu/BUILD",
            _stub("platforms_os.BUILD"): "os/BUILD",
        },
    )
    _maybe(
        stub_repository,
        name = "remote_coverage_tools",
        files = {_stub("remote_coverage_tools.BUILD"): "BUILD"},
    )
    _maybe(
        stub_repository,
        name = "rules_cc",
        files = {_stub("rules_cc.bzl"): "cc/defs.bzl"},
        packages = ["cc"],
    )
    _maybe(
        stub_repository,
        name = "rules_java",
        files = {_stub("rules_java.bzl"): "java/defs.bzl"},
        packages = ["java"],
    )

def deltaedge_dependencies():
    """Defines every repository that DeltaEdge's packages refer to."""
    bazel_stubs()

    # --- The engine ----------------------------------------------------------

    # Dense products. Debian 12's own package is of 2022: no dynamic int8, no int4.
    _maybe(
        debian_source,
        name = "xnnpack",
        package = "xnnpack",
        build_file = _overlay("xnnpack.BUILD"),
        extra_files = {_overlay("xnnpack_isa.bzl"): "xnnpack_isa.bzl"},
        pins = [
            pin(
                version = "0.0~git20241108.4ea82e5",
                sha256 = "90bde2caef0f880f627bab0dc805a86c4b8070cd98e3243db3046ab3f3be1a99",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "pthreadpool",
        package = "pthreadpool",
        build_file = _overlay("pthreadpool.BUILD"),
        pins = [
            pin(
                version = "0.0~git20240616.560c60d",
                sha256 = "4cc3cbd933b28131d2a34edc54f76af9fb41bc490af5eae1a5bd3cd07ea90708",
                strip_prefix = "pthreadpool-0.0~git20240616.560c60d",
            ),
        ],
    )

    # XNNPACK's own needs: what the processor can do, division by constants, and
    # half precision on paper.
    _maybe(
        debian_source,
        name = "cpuinfo",
        package = "cpuinfo",
        build_file = _overlay("cpuinfo.BUILD"),
        pins = [
            pin(
                version = "0.0~git20250905.877328f",
                sha256 = "557ca404a3836b9f335a3a06b65ff9fe9dbaaefab7fb5c0185f53d9f33615a10",
                strip_prefix = "cpuinfo-0.0~git20250905.877328f",
            ),
            pin(
                version = "0.0~git20250327.39ea79a",
                sha256 = "2a10028948f7f0663c56cc34405484391ee3d7ccdf09fe51d73897937b99d9d4",
                strip_prefix = "cpuinfo-0.0~git20250327.39ea79a",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "fxdiv",
        package = "fxdiv",
        build_file = _overlay("fxdiv.BUILD"),
        pins = [
            pin(
                version = "0.0~git20200417.b408327",
                sha256 = "7953482badaf4cb34026c3487c257b8e4ab2df061c019bd6fabbbc12ad52c44b",
                strip_prefix = "fxdiv-0.0~git20200417.b408327",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "fp16",
        package = "fp16",
        build_file = _overlay("fp16.BUILD"),
        pins = [
            pin(
                version = "0.0~git20200514.4dfe081",
                sha256 = "7d7782b37b74136e0e12593a2a93ccbe7db831f4374cc408e44623d9b708b54e",
                strip_prefix = "fp16-0.0~git20200514.4dfe081",
            ),
        ],
    )

    # One kernel body, compiled for each instruction set, chosen at run time.
    _maybe(
        debian_source,
        name = "highway",
        package = "highway",
        build_file = _overlay("highway.BUILD"),
        pins = [
            pin(
                version = "1.2.0",
                format = "tar.gz",
                sha256 = "7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343",
                strip_prefix = "highway-1.2.0",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "com_google_absl",
        package = "abseil",
        pins = [
            pin(
                version = "20240722.0",
                format = "tar.gz",
                sha256 = "df6d1f5ef540725f3851201176a60486aab332410788465c9877910bb471c34a",
                strip_prefix = "abseil-20240722.0",
            ),
        ],
    )

    # Abseil's BUILD files load one macro of it.
    _maybe(
        debian_source,
        name = "bazel_skylib",
        package = "bazel-skylib",
        pins = [
            pin(
                version = "1.0.3",
                sha256 = "b22f0f38d9a1ac565fce8a43df3d284f6b8e5e8775bda54b5cb687bed46b6ea4",
                strip_prefix = "bazel-skylib-1.0.3",
            ),
        ],
    )

    # The index of model files. Compiler and runtime come from one tarball.
    _maybe(
        debian_source,
        name = "flatbuffers",
        package = "flatbuffers",
        build_file = _overlay("flatbuffers.BUILD"),
        extra_files = {_overlay("flatc_main.cc"): "flatc_main.cc"},
        delete = [
            "grpc/BUILD.bazel",
            "grpc/src/compiler/BUILD.bazel",
            "include/BUILD.bazel",
            "include/codegen/BUILD.bazel",
            "src/BUILD.bazel",
        ],
        pins = [
            pin(
                version = "23.5.26+dfsg",
                sha256 = "0d309fd2c47bbbebd450e68d1419c336d53d1b8f5ce47e1f1f7f28f452fc6f3b",
                strip_prefix = "flatbuffers-23.5.26+dfsg",
            ),
        ],
    )

    # The tokenizer: its pre-tokenizer is a regular expression with look-ahead over
    # Unicode classes, its normal form is NFC.
    _maybe(
        debian_source,
        name = "pcre2",
        package = "pcre2",
        build_file = _overlay("pcre2.BUILD"),
        pins = [
            pin(
                version = "10.46",
                format = "tar.gz",
                sha256 = "8d28d7f2c3b970c3a4bf3776bcbb5adfc923183ce74bc8df1ebaad8c1985bd07",
                strip_prefix = "pcre2-10.46",
            ),
            pin(
                version = "10.42",
                format = "tar.gz",
                sha256 = "c33b418e3b936ee3153de2c61cc638e7e4fe3156022a5c77d0711bcbb9d64f1f",
                strip_prefix = "pcre2-10.42",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "utf8proc",
        package = "utf8proc",
        build_file = _overlay("utf8proc.BUILD"),
        pins = [
            pin(
                version = "2.8.0",
                format = "tar.gz",
                sha256 = "a0a60a79fe6f6d54e7d411facbfcc867a6e198608f2cd992490e46f04b1bcecc",
                strip_prefix = "utf8proc-2.8.0",
            ),
            pin(
                version = "2.11.3",
                format = "tar.gz",
                sha256 = "abfed50b6d4da51345713661370290f4f4747263ee73dc90356299dfc7990c78",
                strip_prefix = "utf8proc-2.11.3",
            ),
        ],
    )

    # --- Tools, tests and benchmarks only ------------------------------------

    _maybe(
        debian_source,
        name = "nlohmann_json",
        package = "nlohmann-json3",
        build_file = _overlay("json.BUILD"),
        pins = [
            pin(
                version = "3.11.3",
                format = "tar.gz",
                sha256 = "0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406",
                strip_prefix = "json-3.11.3",
            ),
            pin(
                version = "3.11.2",
                format = "tar.gz",
                sha256 = "d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273",
                strip_prefix = "json-3.11.2",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "com_google_googletest",
        package = "googletest",
        build_file = _overlay("googletest.BUILD"),
        delete = [
            "googlemock/BUILD.bazel",
            "googletest/BUILD.bazel",
        ],
        pins = [
            pin(
                version = "1.16.0",
                format = "tar.gz",
                sha256 = "2f54382b5d13d6cd0be2afc524f1e510d37f8ba78c2d439c5bea64ef37e30d01",
                strip_prefix = "googletest-1.16.0",
            ),
            pin(
                version = "1.12.1",
                format = "tar.gz",
                sha256 = "81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2",
                strip_prefix = "googletest-release-1.12.1",
            ),
        ],
    )
    _maybe(
        debian_source,
        name = "com_google_benchmark",
        package = "benchmark",
        build_file = _overlay("benchmark.BUILD"),
        pins = [
            pin(
                version = "1.9.1",
                format = "tar.gz",
                sha256 = "32131c08ee31eeff2c8968d7e874f3cb648034377dfc32a4c377fa8796d84981",
                strip_prefix = "benchmark-1.9.1",
            ),
        ],
    )
