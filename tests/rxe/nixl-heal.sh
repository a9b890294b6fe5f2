#!/usr/bin/env bash
# NIXL's plugin over real verbs: two engines, lists both ways from several threads and notifications, checked, while links
# fail and return, in a guest that has software RDMA (see guest.sh). The agent is std-shim/nixl/tests/host.cpp, and the
# script `nixl-heals` takes the links away.
#   tests/rxe/nixl-heal.sh [TURNS]    POLYRAIL=PREFIX: with the libpolyrail that is installed there
# Exit status: that of std-shim/nixl/tests/run.sh, or guest.sh's.
set -euo pipefail
cd "$(dirname "$0")/../.."

std-shim/nixl/tests/run.sh host-plain
tests/rxe/guest.sh -t 300 -f target/nixl/host-plain -f tests/rxe/ends -- tests/rxe/nixl-heals "$@"
