#!/usr/bin/env bash
# perftest's ib_send_lat and `polyrail perf --latency` between two processes, side by side over the same devices, in
# a guest that has software RDMA (see guest.sh). The comparison is in the script `latencies`.
#   tests/rxe/latency.sh [--tell] [ROUNDS]
# Exit status 0 if a message takes at most 1.15 of ib_send_lat's half round trip, or with --tell; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
command -v ib_send_lat >/dev/null ||
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends perftest >/dev/null; }
cargo build --release --locked -p polyrail-program --features verbs
tests/rxe/guest.sh -t 300 -f "${CARGO_TARGET_DIR:-target}/release/polyrail" \
  -f "$(command -v ib_send_lat)" -- tests/rxe/latencies "$@"
