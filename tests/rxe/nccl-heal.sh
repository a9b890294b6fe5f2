#!/usr/bin/env bash
# NCCL's network plugin between two processes over rxe, two merged devices on either side, while links fail and return,
# and while they fail for good, in a guest (see guest.sh). The checks are in the script `nccl-heals`.
#   tests/rxe/nccl-heal.sh [CASE]...    those cases, or all of them
# Exit status 0 if all passed; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
cargo build --release --locked -p polyrail-nccl --example pair
cargo build --release --locked -p polyrail-nccl
target=${CARGO_TARGET_DIR:-target}/release
tests/rxe/guest.sh -t 200 -f "$target/examples/pair" -f "$target/libnccl_net_polyrail.so" -f tests/rxe/ends -- \
  tests/rxe/nccl-heals "$@"
