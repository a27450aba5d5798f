#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The instructions of one step of plain decoding and of one of 8 rows, with one thread,
# counted by valgrind, whose processor has AVX2 and nothing newer. Unlike times, counts of
# one build are the same on every run, but for some dozens that the clock's arithmetic
# takes, and on every machine.
#
#   bazel build //tools/bench:one_step
#   tools/bench/instructions.sh                 # the dictionary
#   tools/bench/instructions.sh --target=FILE.gdn --prompt=256

set -eu
PROGRAM=${ONE_STEP:-bazel-bin/tools/bench/one_step}
FILE=$(mktemp)
trap 'rm -f "$FILE"' EXIT

for rows in 1 8; do
  what=$(valgrind --quiet --tool=callgrind --callgrind-out-file="$FILE" \
    --toggle-collect='deltaedge::CountedStep(*' "$PROGRAM" --rows=$rows "$@")
  echo "$what: $(sed -n 's/^\(totals\|summary\): //p' "$FILE" | head -n 1) instructions"
done
