# SPDX-License-Identifier: Apache-2.0
"""deltaedge_model(): a checkpoint becomes a model file in the build."""

def _convert_impl(ctx):
    configs = [f for f in ctx.files.checkpoint if f.basename == "config.json"]
    if len(configs) != 1:
        fail("checkpoint holds {} files called config.json, not one".format(len(configs)))
    arguments = ctx.actions.args()
    arguments.add("--quiet")
    arguments.add(configs[0].dirname, format = "--input=%s")
    arguments.add(ctx.outputs.model, format = "--output=%s")
    if ctx.file.target:
        arguments.add(ctx.file.target, format = "--target=%s")
    arguments.add_all(ctx.attr.flags)
    ctx.actions.run(
        arguments = [arguments],
        executable = ctx.executable.same_cpu_tool or ctx.executable.exec_tool,
        inputs = ctx.files.checkpoint + ctx.files.target,
        mnemonic = "DeltaEdgeConvert",
        outputs = [ctx.outputs.model],
        progress_message = "Converting a checkpoint to %s" % ctx.outputs.model.short_path,
    )

_convert = rule(
    implementation = _convert_impl,
    attrs = {
        "checkpoint": attr.label_list(allow_files = True, mandatory = True),
        # Exactly one of the two is set.
        "exec_tool": attr.label(cfg = "exec", executable = True),
        "flags": attr.string_list(),
        "model": attr.output(mandatory = True),
        "same_cpu_tool": attr.label(cfg = "target", executable = True),
        "target": attr.label(allow_single_file = [".gdn"]),
    },
)

def deltaedge_model(name, checkpoint, target = None, flags = [], **kwargs):
    """Converts a Hugging Face checkpoint into `name`.gdn.

    Args:
      name: of the rule; `name`.gdn is its output.
      checkpoint: labels of the checkpoint's files, all from one folder; exactly
        one of them is called config.json. Files that the converter does not
        read do no harm.
      target: label of the target's model file, for a draft.
      flags: more flags of //tools/convert.
      **kwargs: attributes of every rule, such as visibility.
    """
    converter = Label("//tools/convert")
    x86_64 = str(Label("//tools/convert:x86_64"))

    # A converter built for the machine that runs the build would mean a second
    # build of all that it depends on. Where both are of one kind, the one that
    # tests use too will do; for other CPUs that cannot be known here.
    _convert(
        name = name,
        checkpoint = checkpoint,
        exec_tool = select({
            x86_64: None,
            "//conditions:default": converter,
        }),
        flags = flags,
        model = name + ".gdn",
        same_cpu_tool = select({
            x86_64: converter,
            "//conditions:default": None,
        }),
        target = target,
        **kwargs
    )
