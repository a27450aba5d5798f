#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# linked_programs_test.sh MACHINE PROGRAM...: passes if each program is of that machine, as
# readelf calls it, and needs the C and C++ runtime libraries and nothing else; looks for
# no library outside the system's folders; and has no code that is written when it starts.
# A linker refuses objects of two machines in one program, so that what is true of the
# program is true of all that went into it.
set -eu

# The last two lines: the loader, and what a sanitizer's build brings along.
readonly RUNTIME='^(libc\.so\.6|libm\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|
ld-linux-[a-z0-9-]+\.so\.[0-9]|
lib(a|t|ub)san\.so\.[0-9]+)$'

machine=$1
shift
failed=0
fail() {
  echo "$program: $*" >&2
  failed=1
}
for program; do
  header=$(readelf -hW "$program")
  dynamic=$(readelf -dW "$program")
  is=$(sed -n 's/^ *Machine: *//p' <<<"$header")
  needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
  echo "$program: $is," $needed
  [[ $is == *"$machine" ]] || fail "is for $is, not for $machine"
  [[ $needed == *libc.so.6* ]] || fail "does not need libc.so.6"
  others=$(grep -vE "${RUNTIME//$'\n'/}" <<<"$needed" || true)
  [[ -z $others ]] || fail "needs" $others
  ! grep -qE '\((RPATH|RUNPATH|TEXTREL)\)' <<<"$dynamic" || fail "has RPATH, RUNPATH or TEXTREL"
done
(($# > 0 && failed == 0))
