# SPDX-License-Identifier: Apache-2.0
"""model_file(): runs a tool that writes a model file."""

def _model_file_impl(ctx):
    configs = [f for f in ctx.files.srcs if ("/" + f.basename).endswith(ctx.attr.config)]
    if len(configs) != 1:
        fail("{} files among srcs end in {}, not one".format(len(configs), ctx.attr.config))
    value = configs[0].dirname if ctx.attr.by_folder else configs[0].path
    arguments = ctx.actions.args()
    arguments.add("--quiet")
    arguments.add("--{}={}".format(ctx.attr.input_flag, value))
    arguments.add(ctx.outputs.model, format = "--output=%s")
    if ctx.file.target:
        arguments.add(ctx.file.target, format = "--target=%s")
    arguments.add_all(ctx.attr.flags)
    ctx.actions.run(
        arguments = [arguments],
        executable = ctx.executable.same_cpu_tool or ctx.executable.exec_tool,
        inputs = ctx.files.srcs + ctx.files.target,
        mnemonic = "DeltaEdgeModel",
        outputs = [ctx.outputs.model],
        progress_message = "Writing model file %s" % ctx.outputs.model.short_path,
    )

_model_file = rule(
    implementation = _model_file_impl,
    attrs = {
        "by_folder": attr.bool(mandatory = True),
        "config": attr.string(mandatory = True),
        # Exactly one of the two tools is set.
        "exec_tool": attr.label(cfg = "exec", executable = True),
        "flags": attr.string_list(),
        "input_flag": attr.string(mandatory = True),
        "model": attr.output(mandatory = True),
        "same_cpu_tool": attr.label(cfg = "target", executable = True),
        "srcs": attr.label_list(allow_files = True, mandatory = True),
        "target": attr.label(allow_single_file = [".gdn"]),
    },
)

def model_file(name, tool, **kwargs):
    """Writes `name`.gdn with `tool`.

    Args:
      name: of the rule.
      tool: Label of the program. It is called with --quiet, --output=FILE, for a
        draft --target=FILE, and --input_flag=PATH.
      **kwargs: `srcs`; `config`, how the name of exactly one of them ends;
        `input_flag`, which gets that file, or with `by_folder` its folder;
        `flags`; `target`; and attributes of every rule.
    """
    x86_64 = str(Label("//tools/convert:x86_64"))

    # A tool built for the machine that runs the build would mean a second build
    # of all that it depends on. Where both machines are of one kind, the one that
    # tests use too will do; for other CPUs that cannot be known here.
    _model_file(
        name = name,
        exec_tool = select({
            x86_64: None,
            "//conditions:default": tool,
        }),
        model = name + ".gdn",
        same_cpu_tool = select({
            x86_64: tool,
            "//conditions:default": None,
        }),
        **kwargs
    )
