#!/usr/bin/env bash
# NCCL's network plugin between two processes over rxe, two devices on either side, in a guest (see guest.sh): what it
# says of devices, and checked messages, by every version of its table; then goodput and half round trips of 8 bytes
# beside NCCL's own ncclNetIb, out of the wheel's library, by the same program in the same boot. The guest's clock counts
# instructions. All of it is in the script `nccls`.
#   tests/rxe/nccl.sh [ROUNDS]
# Exit status 0 if all of it was so, whatever the figures; else see guest.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/rxe/packages.sh
cargo build --release --locked -p polyrail-nccl --example pair
cargo build --release --locked -p polyrail-nccl
target=${CARGO_TARGET_DIR:-target}/release
theirs=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/nccl/libnccl-slim.so.2
if ! [ -s "$theirs" ]; then
  library=$(std-shim/nccl/wheel.sh)
  # Without the code for GPUs, and without what debuggers need.
  objcopy --remove-section '.debug_*' "$library" "$theirs.whole"
  python3 tests/rxe/slim.py "$theirs.whole" "$theirs.new"
  rm "$theirs.whole"
  mv "$theirs.new" "$theirs"
fi
tests/rxe/guest.sh -c -t 560 -f "$target/examples/pair" -f "$target/libnccl_net_polyrail.so" -f "$theirs" -- \
  tests/rxe/nccls "$@"
