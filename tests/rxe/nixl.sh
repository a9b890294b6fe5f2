#!/usr/bin/env bash
# The C library and NIXL's plugin over real verbs, in a guest that has software RDMA (see guest.sh): messages of
# std-shim/c/tests/c/messages.c; then two engines, lists both ways from several threads and notifications, checked, in one
# process (std-shim/nixl/tests/host.cpp) and in two (apart.cpp). The programs are called by the script `nixls`.
#   tests/rxe/nixl.sh    POLYRAIL=PREFIX: with the libpolyrail that is installed there
# Exit status: that of std-shim/nixl/tests/run.sh, or guest.sh's.
set -euo pipefail
cd "$(dirname "$0")/../.."

std-shim/nixl/tests/run.sh guest
built=target/nixl
tests/rxe/guest.sh -t 300 -f $built/messages -f $built/host-plain -f $built/apart -- tests/rxe/nixls
