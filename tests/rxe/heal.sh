#!/usr/bin/env bash
# Files copied between two processes over real verbs while rails fail and return: `polyrail serve` with
# `polyrail copy --to`, in a guest that has software RDMA (see guest.sh). The checks are in the script `heals`.
#   tests/rxe/heal.sh [CASE]...    those cases, or all of them
# Exit status 0 if all passed; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
cargo build --release --locked -p polyrail-program
# Three rails for each of the cases that run side by side.
tests/rxe/guest.sh -t 300 -n 9 -f "${CARGO_TARGET_DIR:-target}/release/polyrail" -f tests/rxe/ends -- \
  tests/rxe/heals "$@"
