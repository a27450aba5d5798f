#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# micro_test.sh BENCHMARK CASES: runs each of the cases, a regular expression, once.
set -eu

output=$(${DELTAEDGE_EMULATE-} "$1" --benchmark_filter="$2" --benchmark_min_time=1x)
echo "$output"
cases=$(echo "$output" | grep -c '/real_time')
floors=$(echo "$output" | grep -c 'x_memory_floor=')
[ "$cases" -gt 0 ] && [ "$cases" -eq "$floors" ]
