#!/usr/bin/env bash
# perftest's ib_write_bw and `polyrail perf` between two processes, side by side over the same devices, in
# a guest that has software RDMA (see guest.sh). The comparison is in the script `compare`.
#   tests/rxe/perf.sh [ROUNDS]
# Exit status 0 if all was measured, whatever the figures; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh perftest
cargo build --release --locked -p polyrail-program
tests/rxe/guest.sh -t 300 -f "${CARGO_TARGET_DIR:-target}/release/polyrail" \
  -f "$(command -v ib_write_bw)" -- tests/rxe/compare "$@"
