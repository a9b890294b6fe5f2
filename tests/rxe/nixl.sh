#!/usr/bin/env bash
# NIXL's plugin over real verbs: two engines, lists both ways from several threads and notifications, checked, in a guest
# that has software RDMA (see guest.sh). The agent is std-shim/nixl/tests/host.cpp.
#   tests/rxe/nixl.sh    POLYRAIL=PREFIX: with the libpolyrail that is installed there
# Exit status: that of std-shim/nixl/tests/run.sh, or guest.sh's.
set -euo pipefail
cd "$(dirname "$0")/../.."

std-shim/nixl/tests/run.sh host-plain
tests/rxe/guest.sh -t 300 -- target/nixl/host-plain 3 rails=2 interface=lo log_level=info \
  a.devices=rxeA0,rxeA1 b.devices=rxeB0,rxeB1
