# SPDX-License-Identifier: Apache-2.0
"""deltaedge_model(): a checkpoint becomes a model file in the build."""

load(":model_file.bzl", "model_file")

def deltaedge_model(name, checkpoint, target = None, weights = "f32", flags = [], **kwargs):
    """Converts a Hugging Face checkpoint into `name`.gdn.

    Args:
      name: of the rule; `name`.gdn is its output.
      checkpoint: labels of the checkpoint's files, all from one folder; exactly
        one of them is called config.json. Files that the converter does not
        read do no harm.
      target: label of the target's model file, for a draft.
      weights: type of its matrices: "f32", "q8", "q4" or "q8w".
      flags: more flags of //tools/convert.
      **kwargs: attributes of every rule, such as visibility.
    """
    model_file(
        name = name,
        srcs = checkpoint,
        by_folder = True,
        config = "/config.json",
        flags = ["--weights=" + weights] + flags,
        input_flag = "input",
        target = target,
        tool = Label("//tools/convert"),
        **kwargs
    )
