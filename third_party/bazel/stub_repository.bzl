# SPDX-License-Identifier: Apache-2.0
"""stub_repository(): a small repository put together from files of this one."""

def _stub_repository_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(rctx.name))
    for file, path in rctx.attr.files.items():
        rctx.symlink(file, path)
    for path in rctx.attr.packages:
        rctx.file(path + "/BUILD")

stub_repository = repository_rule(
    implementation = _stub_repository_impl,
    doc = """local_repository() takes a path relative to the main workspace, which is
not ours when somebody else's workspace depends on this one. Labels work in both.""",
    attrs = {
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "File of this repository -> its path in the stub.",
        ),
        "packages": attr.string_list(doc = "Packages that need an empty BUILD file."),
    },
)
