#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the program says and answers to a shell.
set -u

inspect=tools/inspect/inspect
model=tests/testdata/model/target_v1.gdn
out=$TEST_TMPDIR
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# says WORDS COMMAND...: status 0, WORDS on standard output and nothing else.
says() {
  local words=$1
  shift
  "$@" >"$out/stdout" 2>"$out/stderr" || fail "status $? from: $*"
  grep -qF -- "$words" "$out/stdout" || fail "no \"$words\" from: $*"
  [[ ! -s "$out/stderr" ]] || fail "standard error from: $*"
}

# refuses WORDS COMMAND...: status 1, WORDS on standard error and nothing else.
refuses() {
  local words=$1
  shift
  "$@" >"$out/stdout" 2>"$out/stderr"
  local status=$?
  [[ $status -eq 1 ]] || fail "status $status from: $*"
  grep -qF -- "$words" "$out/stderr" || fail "no \"$words\" from: $*"
  [[ ! -s "$out/stdout" ]] || fail "standard output from: $*"
}

says "layers.0.gdn.in_qkv" $inspect $model
says '"kind": "target"' $inspect $model --json
says "right" $inspect --verify $model
says "rms" $inspect $model --tensor=embedding
says '"max": 1.9375' $inspect $model --tensor=embedding --json

refuses "exactly one model file" $inspect
refuses "exactly one model file" $inspect $model $model
refuses "no tensor 'embed'; there are embedding" $inspect $model --tensor=embed
refuses "none.gdn" $inspect none.gdn
refuses "cannot write" bash -c "$inspect $model >/dev/full"

[[ $failures -eq 0 ]]
