#!/usr/bin/env bash
# Instructions of the plugin's calls for a message of 8 bytes on one software NIC, counted by callgrind. The NIC is included:
# 47 instructions if nothing happened, and 190 if a completion is polled.
#   std-shim/nccl/tests/count_calls.sh [FOLDER]    callgrind's files stay in FOLDER
set -euo pipefail
cd "$(dirname "$0")/../../.."

cargo build --release --locked --quiet -p polyrail-nccl --no-default-features --lib --example count_calls
target=${CARGO_TARGET_DIR:-target}/release
files=${1:-$(mktemp -d)}
export POLYRAIL_BACKEND=software POLYRAIL_DEVICES=s0 POLYRAIL_INTERFACE=lo

instructions() { # CALL TIMES
  valgrind --tool=callgrind --quiet --callgrind-out-file="$files/$1" --dump-instr=yes \
    --toggle-collect='count_calls::counted*' "$target/examples/count_calls" "$target/libnccl_net_polyrail.so" "$@"
  sed -n 's/^totals: //p' "$files/$1"
}

for call in idle message messages sent isend irecv; do
  echo "$call: $(($(instructions $call 1000) / 1000))"
done
[ $# -gt 0 ] || rm -r "$files"
