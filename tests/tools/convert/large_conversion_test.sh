#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Conversions of published sizes, from files that are holes: in little memory,
# with a full disk, and interrupted.
set -u

# An emulator for another machine's programs, if there is one, and the program.
emulate=${DELTAEDGE_EMULATE-}
program=tools/convert/convert
convert="$emulate $program"
sparse_checkpoint="$emulate tests/tools/convert/sparse_checkpoint"
out=$TEST_TMPDIR
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

rests() {
  find "$out" -name 'none.gdn*'
}

$sparse_checkpoint --shape=qwen3.5-4b --output="$out/4b" ||
  fail "no checkpoint of 4B"
$sparse_checkpoint --shape=qwen3.5-0.8b --layers=1 --output="$out/head" ||
  fail "no checkpoint of 0.8B"
apparent=$(du --apparent-size --block-size=1M --summarize "$out/4b" | cut -f1)
[[ $apparent -gt 8000 ]] || fail "the checkpoint has $apparent MiB"

# The embedding table alone has 970 MiB of floats.
if grep -q -e __tsan_init -e __asan_init $program; then
  echo "limit of memory: not run, sanitizers reserve more"
elif [[ -n $emulate ]]; then
  echo "limit of memory: not run, the emulator's own counts too"
else
  (
    ulimit -v $((300 * 1024))
    $convert --input="$out/head" --output="$out/small.gdn" --weights=q8
  ) || fail "status $? within 300 MiB"
fi

# Ended in the middle: nothing is left.
for signal in INT TERM; do
  (
    trap - INT
    exec $convert --input="$out/4b" --output="$out/none.gdn" --weights=q4 \
      2>"$out/stderr"
  ) &
  pid=$!
  while kill -0 $pid 2>/dev/null && [[ -z "$(rests)" ]]; do
    sleep 0.05
  done
  kill -$signal $pid
  wait $pid
  status=$?
  [[ $status == 1 ]] || fail "status $status after a signal $signal"
  grep -qF "stopped at tensor" "$out/stderr" || fail "no word after $signal"
  [[ -z "$(rests)" ]] || fail "a rest of a file after $signal"
done

# A disk of 64 MiB, where the system lets us have one.
mkdir "$out/disk"
cat >"$out/on_small_disk" <<'EOF'
mount -t tmpfs -o size=64m none "$2/disk" || exit 77
$1 --input="$2/head" --output="$2/disk/none.gdn" 2>"$2/stderr"
echo "status $?, $(ls -A "$2/disk" | wc -l) files"
EOF
said=$(unshare --user --map-root-user --mount \
  bash "$out/on_small_disk" "$convert" "$out" 2>&1)
if [[ $? == 0 ]]; then
  [[ "$said" == "status 1, 0 files" ]] || fail "$said on a full disk"
  grep -qF "No space left on device" "$out/stderr" ||
    fail "$(cat "$out/stderr") on a full disk"
else
  echo "full disk: not run, no mount: $said"
fi

rm -rf "$out/4b" "$out/head" "$out/small.gdn"
[[ $failures == 0 ]] || exit 1
echo "all as expected"
