#!/usr/bin/env bash
# Two hosts on this machine that list their devices in opposite orders (see hosts.sh): the example `two_hosts` connects
# each rail within one network, and all links carry data.
#   tests/netns/pairs.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
DIR=$(mktemp -d)
. tests/netns/hosts.sh

if [ -z "${TWO_HOSTS:-}" ]; then
  cargo build --release --locked -p polyrail --example two_hosts
  TWO_HOSTS=${CARGO_TARGET_DIR:-target}/release/examples/two_hosts
fi
make_hosts
on_b "$TWO_HOSTS" listen tcp:b3 tcp:b2 tcp:b1 tcp:b0 >"$DIR/listen.out" 2>"$DIR/listen.log" &
LISTENER=$!
wait_until "two_hosts does not listen" on_b sh -c 'ss -ltn | grep -q :7471'
on_a timeout 60 "$TWO_HOSTS" "$FAR:7471" tcp:a0 tcp:a1 tcp:a2 tcp:a3 >"$DIR/send.out" 2>"$DIR/send.log" ||
  fail "the sender ended with $?"
wait "$LISTENER" || fail "the receiver ended with $?"
grep -q "^hello, immediate Some(42)" "$DIR/listen.out" || fail "received: $(cat "$DIR/listen.out")"
for link in 0 1 2 3; do
  sent=$(on_a cat "/sys/class/net/a$link/statistics/tx_bytes")
  # A quarter of the megabyte each.
  [ "$sent" -gt 200000 ] || fail "link $link carried $sent bytes"
  echo "link $link carried $sent bytes"
done
