#!/usr/bin/env bash
# perftest's latency tools and `polyrail perf --latency` between two processes, side by side over the same devices, in
# a guest that has software RDMA (see guest.sh). The comparison is in the script `latencies`.
#   tests/rxe/latency.sh [ROUNDS]
# Exit status 0 whatever the figures, also if there was no time for some; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh perftest
cargo build --release --locked -p polyrail-program
tools=()
for tool in ib_send_lat ib_write_lat ib_read_lat ib_atomic_lat; do
  tools+=(-f "$(command -v $tool)")
done
tests/rxe/guest.sh -t 300 -f "${CARGO_TARGET_DIR:-target}/release/polyrail" "${tools[@]}" \
  -- tests/rxe/latencies "$@"
