#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# conform.sh FLATC CURRENT FROZEN...: a line for every check of the rules in
# schema/README.md, "ok WHAT" or "WRONG WHAT". First the current schema against
# each frozen one, then schemas that break a rule, which must be found, and schemas
# that break none, which must pass.

set -u
flatc=$1
current=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Whether schema $2 can take the place of schema $1.
conforms() {
  "$flatc" --conform "$1" "$2" >"$scratch/flatc.log" 2>&1 || return 1
  # What flatc does not look at: values taken out at an enum's end, the identifier,
  # fields that were promised.
  local line
  while IFS= read -r line; do
    grep -qxF -- "$line" "$2" || return 1
  done < <(grep -E '^  [A-Z][A-Za-z0-9]* = [0-9]+,$|^file_identifier|\(required\);$' "$1")
}

report() {
  local expected=$1 what=$2 got=no
  shift 2
  conforms "$@" && got=yes
  if [[ $got == "$expected" ]]; then
    echo "ok $what"
  else
    echo "WRONG $what"
    cat "$scratch/flatc.log"
  fi
}

for frozen in "$@"; do
  report yes "the current schema against $(basename "$frozen")" "$frozen" "$current"
done

# A case: expected answer, name, and the edit that makes it.
edited() {
  local expected=$1 what=$2 edit=$3
  sed -E "$edit" "$current" >"$scratch/edited.fbs"
  if cmp -s "$current" "$scratch/edited.fbs"; then
    echo "WRONG $what: the edit changed nothing"
    return
  fi
  report "$expected" "$what" "$current" "$scratch/edited.fbs"
}

edited no "a field taken out" '/^  hidden_size:int;/d'
edited no "a field taken out at the end" '/^  ignore_merges:bool;/d'
edited no "a field put in the middle" 's/^  kind:ModelKind;/  extra:int;\n&/'
edited no "another type" 's/^  sliding_window:int;/  sliding_window:long;/'
edited no "another default" 's/mask_token:int = -1;/mask_token:int = 0;/'
edited no "another number for an enum's value" 's/FullAttention = 2,/FullAttention = 3,/'
edited no "an enum's value taken out" '/^  Symmetric = 2,/d'
edited no "another type for an enum" 's/^enum TensorType : ubyte/enum TensorType : ushort/'
edited no "another identifier" 's/"DEG1"/"DEG2"/'
edited no "a field no longer required" 's/^  tensors:\[Tensor\] \(required\);/  tensors:[Tensor];/'
edited yes "a field at the end" 's/^  ignore_merges:bool;/&\n  extra:int;/'
edited yes "an enum's value at the end" 's/^  Symmetric = 2,/&\n  Other = 3,/'
edited yes "a deprecated field" 's/^  max_context:int;/  max_context:int (deprecated);/'
