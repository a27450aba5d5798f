#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the programs say and answer to a shell: their messages go to standard
# error, their status is 0 only if the model file was written.
set -u

convert="${DELTAEDGE_EMULATE-} tools/convert/convert"
make_random="${DELTAEDGE_EMULATE-} tools/make_random/make_random"
golden=tests/testdata/golden
configs=tests/testdata/configs
out=$TEST_TMPDIR
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# succeeds WORDS COMMAND...: status 0, WORDS on standard error, nothing on
# standard output.
succeeds() {
  local words=$1
  shift
  "$@" >"$out/stdout" 2>"$out/stderr" || fail "status $? from: $*"
  [[ -z "$words" ]] || grep -qF -- "$words" "$out/stderr" ||
    fail "no \"$words\" from: $*"
  [[ ! -s "$out/stdout" ]] || fail "standard output from: $*"
}

# refuses WORDS COMMAND...: another status, WORDS on standard error.
refuses() {
  local words=$1
  shift
  rm -f "$out/none.gdn"
  "$@" >"$out/stdout" 2>"$out/stderr" && fail "status 0 from: $*"
  [[ $? -lt 128 ]] || fail "a signal ended: $*"
  grep -qF -- "$words" "$out/stderr" || fail "no \"$words\" from: $*"
  [[ ! -e "$out/none.gdn" ]] || fail "a file from: $*"
}

succeeds "parameters" $convert --input=$golden/tiny-qwen35 \
  --output="$out/t.gdn" --weights=f32
succeeds "vision" $convert --input=$golden/tiny-qwen35-published/ \
  --output="$out/p.gdn"
succeeds "for target" $convert --input=$golden/tiny-qwen35-dflash \
  --output="$out/d.gdn" --target="$out/t.gdn"
succeeds "" $convert --input=$golden/tiny-qwen35-dflash-swa --quiet \
  --output="$out/s.gdn" --target="$out/t.gdn" --sliding_mask=symmetric
[[ ! -s "$out/stderr" ]] || fail "--quiet is not quiet"

# Types by part: the summary tells each.
succeeds "embedding, head q8 " $convert --input=$golden/tiny-qwen35 \
  --output="$out/q.gdn" --weights=q4 --head=q8 --gdn=q8w
for line in "attention, MLP  q4 " "delta layers    q8w " "small           f32 "; do
  grep -qF -- "$line" "$out/stderr" || fail "no \"$line\" in the summary"
done
succeeds "for target" $convert --input=$golden/tiny-qwen35-dflash \
  --output="$out/qd.gdn" --target="$out/q.gdn" --weights=q8

refuses "--input is missing" $convert --output="$out/none.gdn"
refuses "--output is missing" $convert --input=$golden/tiny-qwen35
refuses "'inptu'" $convert --inptu=x --output="$out/none.gdn"
refuses "\"more\"" $convert --input=$golden/tiny-qwen35 \
  --output="$out/none.gdn" more
refuses "--weights: \"q5\" is no type" $convert --input=$golden/tiny-qwen35 \
  --output="$out/none.gdn" --weights=q5
refuses "--head: \"8\" is no type" $convert --input=$golden/tiny-qwen35 \
  --output="$out/none.gdn" --head=8
refuses "neither a head" $convert --input=$golden/tiny-qwen35-dflash \
  --output="$out/none.gdn" --target="$out/t.gdn" --gdn=q8
refuses "--sliding_mask is \"both\"" $convert --input=$golden/tiny-qwen35 \
  --output="$out/none.gdn" --sliding_mask=both
refuses "is a draft" $convert --input=$golden/tiny-qwen35-dflash \
  --output="$out/none.gdn"
refuses "is a target" $convert --input=$golden/tiny-qwen35 \
  --output="$out/none.gdn" --target="$out/t.gdn"
refuses "/nowhere/config.json" $convert --input=/nowhere \
  --output="$out/none.gdn"
refuses "/nowhere/x.gdn" $convert --input=$golden/tiny-qwen35 \
  --output=/nowhere/x.gdn
refuses "/dev/full" $convert --input=$golden/tiny-qwen35 --output=/dev/full

succeeds "random target" $make_random --config=$configs/t.json --seed=7 \
  --output="$out/r.gdn"
succeeds "random draft" $make_random --config=$configs/t_draft.json \
  --output="$out/rd.gdn" --target="$out/r.gdn"
succeeds "random target" $make_random --config=$configs/odd.json --weights=q4 \
  --head=f32 --layers=2 --output="$out/rq.gdn"
refuses "exactly one of --shape and --config" $make_random \
  --output="$out/none.gdn"
refuses "exactly one of --shape and --config" $make_random \
  --config=$configs/t.json --shape=qwen3.5-4b --output="$out/none.gdn"
refuses "known are qwen3.5-0.8b" $make_random --shape=qwen4-1b \
  --output="$out/none.gdn"
refuses "--draft needs --target" $make_random --shape=qwen3.5-4b --draft \
  --output="$out/none.gdn"
refuses "--draft is for --shape" $make_random --config=$configs/t_draft.json \
  --draft --target="$out/r.gdn" --output="$out/none.gdn"
refuses "vocab_size" $make_random --shape=qwen3.5-4b --draft \
  --target="$out/r.gdn" --output="$out/none.gdn"
refuses "allowed are 1 to 2" $make_random --config=$configs/t.json --layers=3 \
  --output="$out/none.gdn"
refuses "no type of weights" $make_random --config=$configs/t.json \
  --weights=int8 --output="$out/none.gdn"
refuses "--output is missing" $make_random --config=$configs/t.json
refuses "--target is missing" $make_random --config=$configs/t_draft.json \
  --output="$out/none.gdn"
refuses "for drafts only" $make_random --config=$configs/t.json \
  --output="$out/none.gdn" --target="$out/r.gdn"
refuses "seed" $make_random --config=$configs/t.json --seed=-1 \
  --output="$out/none.gdn"
refuses "\"more\"" $make_random --config=$configs/t.json \
  --output="$out/none.gdn" more

# A model that takes a while, ended in the middle: nothing is left.
for signal in INT TERM; do
  (
    trap - INT
    exec $make_random --shape=qwen3.5-0.8b --weights=q8 \
      --output="$out/none.gdn" 2>"$out/stderr"
  ) &
  pid=$!
  while kill -0 $pid 2>/dev/null && ! ls "$out"/none.gdn* >/dev/null 2>&1; do
    sleep 0.05
  done
  kill -$signal $pid
  wait $pid
  status=$?
  [[ $status == 1 ]] || fail "status $status after a signal $signal"
  grep -qF "stopped at tensor" "$out/stderr" || fail "no word after $signal"
done

# limited COMMAND...: no file may grow beyond 16 KiB.
limited() {
  (
    ulimit -f 16
    "$@"
  )
}
if grep -q __tsan_init tools/convert/convert; then
  echo "limit of file sizes: not run, ThreadSanitizer's runtime dies of one"
else
  refuses "File too large" limited $convert --input=$golden/tiny-qwen35 \
    --output="$out/none.gdn"
  refuses "File too large" limited $make_random --config=$configs/t.json \
    --output="$out/none.gdn"
fi
[[ -z "$(find "$out" -name 'none.gdn*')" ]] || fail "a rest of a file"

[[ $failures == 0 ]] || exit 1
echo "all as expected"
