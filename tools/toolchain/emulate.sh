#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# emulate.sh PROGRAM ARGUMENTS...: runs a program for 64-bit Arm or x86-64 in Debian's
# qemu, on the processor that $QEMU_CPU names; a script as it is. For bazel's
# --run_under. Programs that a test starts itself run the same way if it starts
# $DELTAEDGE_EMULATE with them as arguments.

DELTAEDGE_EMULATE=$(readlink -f "$0")
export DELTAEDGE_EMULATE

# Of an ELF file the magic number and the machine.
case $(head -c 20 "$1" | od -An -v -tx1 | tr -d ' \n') in
  7f454c46*b700) exec qemu-aarch64-static -L /usr/aarch64-linux-gnu "$@" ;;
  7f454c46*3e00) exec qemu-x86_64-static "$@" ;;
  *) exec "$@" ;;
esac
