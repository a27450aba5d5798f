#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# conform_test.sh REPORT FROZEN_FILES: passes if conform.sh's report holds nothing
# but "ok" lines, at least one per frozen schema and one per edited one.

set -eu
report=$1
frozen=$2
cat "$report"
if grep -qv '^ok ' "$report"; then
  echo "schema/README.md tells the rules." >&2
  exit 1
fi
lines=$(wc -l <"$report")
if (( lines != frozen + 13 )); then
  echo "$lines checks instead of $((frozen + 13))" >&2
  exit 1
fi
