#!/usr/bin/env bash
# Requests are taken back between two processes over rxe, while links fail and return, in a guest (see guest.sh): nothing
# of a request is written after its report says that it was taken back. The checks are in the program (src/bin/taken_back.rs),
# which the script `takes-back` calls.
#   tests/rxe/taken_back.sh [CANCELS]    30 with each scheme by default
# Exit status 0 if all passed; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
cargo build --release --locked -p polyrail-rxe --bin taken_back
tests/rxe/guest.sh -t "${SECONDS_FOR_ALL:-280}" -n 3 -f "${CARGO_TARGET_DIR:-target}/release/taken_back" -f tests/rxe/ends -- \
  tests/rxe/takes-back "$@"
