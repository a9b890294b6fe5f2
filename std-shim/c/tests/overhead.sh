#!/usr/bin/env bash
# Instructions of a post and a poll by the C functions and by the Rust library beneath them, on the NIC in software.
#   std-shim/c/tests/overhead.sh
set -euo pipefail
cd "$(dirname "$0")/../../.."

cargo build --release --locked --quiet -p polyrail-c --no-default-features --example overhead
mkdir -p target/c

instructions() { # c|rust TIMES
  valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/overhead "$@" 2>&1 |
    sed -n 's/.*Collected : //p'
}

for by in rust c; do
  few=$(instructions $by 1000)
  many=$(instructions $by 11000)
  echo "$by: $(((many - few) / 10000)) instructions for a request of 64 bytes over one of 4 rails: posted and polled"
done
