#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bazelw with a stand-in for Bazel: how it keeps its disk cache small.
#   bazelw_test.sh PATH_OF_BAZELW
set -euo pipefail

readonly BAZELW=$PWD/$1
readonly PROGRAMS=$TEST_TMPDIR/bin
readonly CACHE="$TEST_TMPDIR/a home/deltaedge"

mkdir -p "$PROGRAMS"
printf '#!/bin/sh\necho "bazel got $*"\nexit 3\n' >"$PROGRAMS/bazel"
ln -s /bin/true "$PROGRAMS/g++"
chmod +x "$PROGRAMS/bazel"

fail() {
  echo "bazelw_test: $*" >&2
  exit 1
}

# What is in the cache after a run of bazelw.
run() {
  local output status=0
  output=$(PATH="$PROGRAMS:$PATH" XDG_CACHE_HOME="$TEST_TMPDIR/a home" "$BAZELW" test //x) || status=$?
  [[ $output == "bazel got --bazelrc=$CACHE/bazelw.bazelrc test //x" ]] || fail "it said '$output'"
  ((status == 3)) || fail "exit status $status"
  mkdir -p "$CACHE/bazel"
  LEFT=$(cd "$CACHE" && find bazel -type f | sort | tr '\n' ' ')
}

# entry NAME SIZE LAST_READ: no room on the disk is taken.
entry() {
  mkdir -p "$(dirname "$CACHE/bazel/$1")"
  truncate -s "$2" "$CACHE/bazel/$1"
  touch -a -d "$3" "$CACHE/bazel/$1"
}

run
[[ -z $LEFT ]] || fail "an empty cache has '$LEFT'"
grep -qF -- "--disk_cache=$CACHE/bazel" "$CACHE/bazelw.bazelrc" || fail "no cache is named"

# Programs by the last read, not by name, size or age; objects stay.
entry 'cas/a' 4G '3 days ago'
entry 'cas/b c' 4G '2 hours ago'
entry 'ac/d' 1K '4 days ago'
entry 'cas/e' 4G '1 day ago'
run
[[ $LEFT == 'bazel/ac/d bazel/cas/a bazel/cas/b c bazel/cas/e ' ]] || fail "twice in an hour: '$LEFT'"
touch -d '2 hours ago' "$CACHE/trimmed"
run
[[ $LEFT == 'bazel/ac/d bazel/cas/b c bazel/cas/e ' ]] || fail "left are '$LEFT'"
touch -d '2 hours ago' "$CACHE/trimmed"
run
[[ $LEFT == 'bazel/ac/d bazel/cas/b c bazel/cas/e ' ]] || fail "8 GiB were cut to '$LEFT'"

# Programs go before objects that were read as long ago.
for ((i = 0; i < 1030; ++i)); do entry "cas/o$i" 1000K '1 hour ago'; done
rm "$CACHE"/bazel/cas/[be]*
entry 'cas/p' 9900M '1 hour ago'
touch -d '2 hours ago' "$CACHE/trimmed"
run
[[ $LEFT == "bazel/ac/d "*"bazel/cas/o1029 "* && $LEFT != *cas/p* ]] || fail "of objects left are '$LEFT'"
