#!/usr/bin/env bash
# Requests are taken back between two hosts on this machine (see hosts.sh) over four TCP devices, while links fail and
# return: nothing of a request is written after its report says that it was taken back (see tests/rxe/src/bin/taken_back.rs).
#   tests/netns/taken_back.sh [CANCELS]    1000 with each scheme by default
#   TAKEN_BACK=PROGRAM                     that one, instead of one with the engine's assertions
# Then, with links that work, prints how long reports take, and how much other requests move beside one that is taken back
# twice a second.
set -euo pipefail
cd "$(dirname "$0")/../.."
CANCELS=${1:-1000}
DIR=$(mktemp -d)
. tests/netns/hosts.sh

if [ -z "${TAKEN_BACK:-}" ]; then
  cargo build --workspace --all-features --locked --bin taken_back
  TAKEN_BACK=${CARGO_TARGET_DIR:-target}/debug/taken_back
fi

# begin OPTIONS...: both sides, until `finish`.
begin() {
  on_b "$TAKEN_BACK" listen tcp:b0 tcp:b1 tcp:b2 tcp:b3 --scheme "$scheme" 2>"$DIR/listen.log" &
  LISTENER=$!
  wait_until "taken_back does not listen" on_b sh -c 'ss -ltn | grep -q :7471'
  on_a timeout 300 "$TAKEN_BACK" "$FAR:7471" tcp:a0 tcp:a1 tcp:a2 tcp:a3 --scheme "$scheme" "$@" >"$DIR/out" 2>"$DIR/near.log" &
  NEAR=$!
}

finish() {
  wait $NEAR || fail "the side that takes back ended with $?"
  wait $LISTENER || fail "the other side ended with $?"
  echo "$scheme: $(cat "$DIR/out")"
}

# flap: until the near side ends, a link at a time is down for up to 0.3 s.
flap() {
  local n
  while kill -0 $NEAR 2>/dev/null; do
    n=$((RANDOM % LINKS))
    ip -n "$A" link set "a$n" down
    sleep 0.$((RANDOM % 4))
    ip -n "$A" link set "a$n" up
    sleep 0.$((RANDOM % 8))
  done
}

make_hosts
limit "${RATE:-400mbit}"
for scheme in spray dqplb; do
  begin --cancels "$CANCELS" --losses 3
  flap
  finish
done
for scheme in spray dqplb; do
  begin --cancels 20 --every 500 --alone 3
  finish
done
