#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures this engine and llama.cpp in turn on the same weights.

  tools/bench/side_by_side.py --peer "llama-bench" \
      model-q8.gdn=model-Q8_0.gguf model-q4.gdn=model-Q4_0.gguf

Each turn starts both programs once, the one after the other; a ratio is this
engine's tokens per second over the peer's in the same turn, and its median over
all turns is what the table says. llama-bench's prompt of N rows stands beside a
step of N rows here, though it computes the scores of the last row only and a
step those of all.

--peer is a command, so that llama-bench may live in a chroot; files of the peer
are named as that command sees them. Nothing else should run meanwhile: workers
of both engines spin.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys


def lines_of(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(args, model, threads):
    command = shlex.split(args.bench) + [
        f"--target={model}", f"--threads={threads}", f"--decode={args.decode}",
        f"--rows={args.rows or 0}", f"--prefill={args.prefill or 0}", "--spec=false",
        "--serving=false", "--sessions=0", "--rollback=journal",
        "--repetitions=1", "--packed_weights=file", "--format=json"]
    return {(line["test"], line["n"]): line["ms_median"]
            for line in lines_of(command) if line["test"] != "setup"}


def theirs(args, model, threads):
    prompts = ",".join(text for text in (args.rows, args.prefill) if text)
    command = shlex.split(args.peer) + [
        "-m", model, "-t", str(threads), "-r", "1", "-o", "jsonl",
        "-p", prompts or "0", "-n", str(args.decode)]
    times = {}
    rows = [int(n) for n in args.rows.split(",") if n]
    for line in lines_of(command):
        ms = statistics.median(line["samples_ns"]) / 1e6
        if line["n_gen"]:
            times["decode", line["n_gen"]] = ms
        else:
            n = line["n_prompt"]
            times["rows" if n in rows else "prefill", n] = ms
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="OURS.gdn=THEIRS.gguf")
    parser.add_argument("--bench", default="bazel-bin/tools/bench/bench")
    parser.add_argument("--peer", default="llama-bench")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()

    print("| weights | threads | test | ours, ms | theirs, ms | ours, tokens/s | "
          "theirs, tokens/s | ratio | ratios |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for pair in args.pairs:
        mine, sign, other = pair.partition("=")
        if not sign:
            parser.error(f'"{pair}" is not OURS.gdn=THEIRS.gguf')
        for threads in args.threads.split(","):
            turns = []
            for turn in range(args.turns):
                engines = [lambda: ours(args, mine, threads),
                           lambda: theirs(args, other, threads)]
                if turn % 2:
                    turns.append([run() for run in engines[::-1]][::-1])
                else:
                    turns.append([run() for run in engines])
            for test, n in turns[0][0]:
                a = [turn[0][test, n] for turn in turns]
                b = [turn[1][test, n] for turn in turns]
                ratios = sorted(y / x for x, y in zip(a, b))
                x, y = statistics.median(a), statistics.median(b)
                print(f"| {mine.split('/')[-1]} | {threads} | {test} {n} | {x:.1f} | {y:.1f} | "
                      f"{1000 * n / x:.1f} | {1000 * n / y:.1f} | "
                      f"{statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |",
                      flush=True)


if __name__ == "__main__":
    main()
