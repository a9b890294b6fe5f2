#!/usr/bin/env bash
# All tests over real verbs, on any machine: in a guest that has software RDMA (see guest.sh).
#   tests/rxe/run.sh                   behaviours, copies, and rails that fail
#   tests/rxe/run.sh BEHAVIOUR...      the behaviours of these names only
# Exit status 0 if all passed; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
# With the features and the examples of all packages, as other tests build them.
cargo build --workspace --all-features --locked --bin polyrail-rxe --examples
tests/rxe/guest.sh -t 300 -- "${CARGO_TARGET_DIR:-target}/debug/polyrail-rxe" "$@"
[ $# -eq 0 ] || exit 0
tests/rxe/copy.sh
tests/rxe/heal.sh
