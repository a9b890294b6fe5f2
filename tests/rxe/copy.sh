#!/usr/bin/env bash
# Files copied, and requests measured, between two processes over real verbs: `polyrail serve` with
# `polyrail copy --to` and `polyrail perf --to`, in a guest that has software RDMA (see guest.sh). The
# checks are in the script `copies`.
#   tests/rxe/copy.sh [CASE]...    those cases, or all of them
# Exit status 0 if all passed; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
cargo build --release --locked -p polyrail-program
cargo build --workspace --all-features --locked --examples
built=${CARGO_TARGET_DIR:-target}
tests/rxe/guest.sh -t 300 -f "$built/release/polyrail" -f "$built/debug/examples/two_hosts" -f tests/rxe/ends -- \
  tests/rxe/copies "$@"
