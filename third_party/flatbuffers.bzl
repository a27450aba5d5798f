# SPDX-License-Identifier: Apache-2.0
"""flatbuffer_cc_library(): a C++ header from a FlatBuffers schema."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def flatbuffer_cc_library(name, src, **kwargs):
    """Generates `<schema>_generated.h` with the flatc built here, as a cc_library.

    Compiler and runtime come from one tarball, so the version check inside the
    generated header holds by construction.

    Args:
      name: of the cc_library.
      src: the schema, `<schema>.fbs`, in the calling package.
      **kwargs: passed on to cc_library (visibility, testonly, ...).
    """
    if not src.endswith(".fbs"):
        fail("src must be a .fbs file, got %r" % src)
    header = src[:-len(".fbs")] + "_generated.h"
    native.genrule(
        name = name + "_header",
        srcs = [src],
        outs = [header],
        cmd = "$(execpath @flatbuffers//:flatc) --cpp --scoped-enums -o $(@D) $<",
        message = "Generating",
        testonly = kwargs.get("testonly", False),
        tools = ["@flatbuffers//:flatc"],
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        hdrs = [header],
        deps = ["@flatbuffers//:runtime"],
        **kwargs
    )
