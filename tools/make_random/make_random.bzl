# SPDX-License-Identifier: Apache-2.0
"""random_model(): a model of random weights, made in the build."""

load("//tools/convert:model_file.bzl", "model_file")

def random_model(name, config, seed = 1, target = None, weights = "f32", flags = [], **kwargs):
    """Makes `name`.gdn.

    Args:
      name: of the rule; `name`.gdn is its output.
      config: label of a Hugging Face config.json, under any name.
      seed: of the weights.
      target: label of the target's model file, for a draft.
      weights: type of its matrices: "f32", "q8", "q4" or "q8w".
      flags: more flags of //tools/make_random.
      **kwargs: attributes of every rule, such as visibility.
    """
    model_file(
        name = name,
        srcs = [config],
        by_folder = False,
        config = ".json",
        flags = ["--seed=%d" % seed, "--weights=" + weights] + flags,
        input_flag = "config",
        target = target,
        tool = Label("//tools/make_random"),
        **kwargs
    )
