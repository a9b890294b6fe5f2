#!/usr/bin/env bash
# Links between two hosts on this machine (see hosts.sh) fail and return while data moves over four TCP devices.
#   tests/netns/faults.sh [CASE]...    those cases, or all of them; the cases are the functions below
# Most cases copy a file with each scheme, and compare it byte for byte. `time_...` measures for how long no data
# moves; a machine that is busy with other things fails none of them.
set -euo pipefail
cd "$(dirname "$0")/../.."
CASES="links_in_turn two_at_once all_at_once silent_link link_of_control lost_link_of_control renamed deleted another_address
shared_address time_link_down time_two_links_down time_silent_link"
RATE=${RATE:-400mbit} BYTES=${BYTES:-384M}
SCHEMES="spray dqplb"
# Seconds after which a link that carries nothing counts as failed.
STALL=2
DIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)")
. tests/netns/hosts.sh

carried() { on_a cat "/sys/class/net/$1/statistics/tx_bytes"; }
moves() { [ "$(carried "$1")" -gt $((BEFORE + 2000000)) ]; }
down() { for n; do ip -n "$A" link set "a$n" down; done; }
up() { for n; do ip -n "$A" link set "a$n" up; done; }

# silent N, audible N: packets of link N arrive at a hardware address that is not there.
silent() {
  ip -n "$A" neigh replace "10.77.$1.2" lladdr 02:00:00:00:0f:ff nud permanent dev "a$1"
  ip -n "$B" neigh replace "10.77.$1.1" lladdr 02:00:00:00:0f:ff nud permanent dev "b$1"
}
audible() {
  ip -n "$A" neigh del "10.77.$1.2" dev "a$1"
  ip -n "$B" neigh del "10.77.$1.1" dev "b$1"
}

# begin OPTIONS...: begins a copy, and returns when data moves.
begin() {
  rm -rf "$DIR/in" && mkdir "$DIR/in"
  serve --once $(devices b) --stall-timeout $STALL "$DIR/in"
  BEFORE=$(carried a1)
  on_a "$POLYRAIL" copy --to "${TO:-$FAR}" $(devices a) --rails $LINKS --stall-timeout $STALL \
    --scheme "$scheme" "$@" "$DIR/source" >"$DIR/copy.out" 2>"$DIR/copy.log" &
  COPY=$!
  wait_until "no data moves" moves a1
}

still_copies() { kill -0 $COPY 2>/dev/null || fail "the copy ended before the fault: let it have more BYTES"; }

finish() {
  wait $COPY || fail "copy ended with $?"
  wait "$SERVER" || fail "serve ended with $?"
  cmp "$DIR/source" "$DIR/in/source" || fail "the bytes differ"
}

# says TEXT: at one of the two ends, now or soon.
says() { wait_until "neither end says: $1" grep -q "$1" "$DIR/copy.log" "$DIR/serve.log"; }
fails() { for n; do says "rail $n .*failed"; done; }
recovers() { for n; do says "rail $n .*is back in service"; done; }

# returns [N]...: these links, or link 1, carry data again, before the copy ends.
returns() {
  local n
  for n in ${*:-1}; do
    BEFORE=$(carried "a$n")
    wait_until "no data moves over link $n again" moves "a$n"
  done
}

# with_each_scheme FUNCTION OPTIONS...: a copy during which the function is called.
with_each_scheme() {
  local fault=$1 scheme
  shift
  for scheme in $SCHEMES; do
    begin "$@"
    still_copies
    $fault
    finish
  done
}

links_in_turn() { with_each_scheme turn_links; }
turn_links() {
  for n in 0 1 2 3; do
    down $n && fails $n && up $n && sleep 0.2
  done
  recovers 0 1 2 3
}

two_at_once() { with_each_scheme turn_two; }
turn_two() { down 0 2 && fails 0 2 && up 0 2 && recovers 0 2 && returns 0 2; }

all_at_once() { with_each_scheme turn_all; }
turn_all() {
  down 0 1 2 3 && sleep 3
  still_copies
  up 0 1 2 3
  recovers 0 1 2 3
}

silent_link() { with_each_scheme silence; }
silence() {
  silent 1
  fails 1
  audible 1
  recovers 1
  returns
}

# Messages about the repair of rails go over a link that fails, too.
link_of_control() { TO=10.77.2.2 with_each_scheme turn_control; }
turn_control() { down 2 && sleep 1 && fails 2 && up 2 && recovers 2 && returns 2; }

# That link never returns, and the control connection goes on over another one.
lost_link_of_control() {
  local scheme
  for scheme in $SCHEMES; do
    TO=10.77.2.2 begin
    still_copies
    down 2
    finish
    fails 2
    up 2
  done
}

# A device is an address, whatever the name of the interface that has it.
renamed() { with_each_scheme rename; }
rename() {
  # Linux before 6.2 renames only interfaces that are down.
  ip -n "$A" link set a1 name z1 2>/dev/null || { ip -n "$A" link set a1 down &&
    ip -n "$A" link set a1 name z1 && ip -n "$A" link set z1 up; }
  BEFORE=$(carried z1)
  wait_until "no data moves over the renamed interface" moves z1
  ip -n "$A" link set z1 down
  sleep 0.3
  ip -n "$A" link set z1 up
  BEFORE=$(carried z1)
  wait_until "no data moves over the renamed interface after it was down" moves z1
  ip -n "$A" link set z1 down
  ip -n "$A" link set z1 name a1
  ip -n "$A" link set a1 up
}

# The interface of a device that is deleted does not return; the one that takes its place has its name and address.
deleted() { with_each_scheme delete; }
delete() {
  ip -n "$A" link del a1
  fails 1
  link 1 1
  limit "$RATE" 1
  returns
}

another_address() { with_each_scheme change_address; }
change_address() {
  ip -n "$A" addr del 10.77.1.1/24 dev a1
  ip -n "$A" addr add 10.77.1.77/24 dev a1
  fails 1
  sleep 0.5
  ip -n "$A" addr add 10.77.1.1/24 dev a1
  ip -n "$A" addr del 10.77.1.77/24 dev a1
  # Deleting a first address deletes those of its subnet that were added later.
  ip -n "$A" addr replace 10.77.1.1/24 dev a1
  returns
}

# Hosts with unnumbered links have one address on several, and on the loopback interface.
shared_address() {
  share add
  with_each_scheme move
  share del
}
share() { # add|del: the addresses of link 1 on link 0
  local end
  for end in "$A a 1" "$B b 2"; do
    set -- "$1" $end
    ip -n "$2" addr "$1" "10.77.1.$4/32" dev "${3}0"
    ip -n "$2" addr "$1" "10.77.1.$4/32" dev lo
    ip -n "$2" route "$1" 10.77.1.0/24 dev "${3}0" metric 1000
  done
}
move() {
  # An end that has lost only its carrier keeps the route.
  down 1 && ip -n "$B" link set b1 down
  says "rail 1 .*vendor code 0x40"
  recovers 1
  up 1 && ip -n "$B" link set b1 up
}

# timed WHAT MOST FAULT LINK...: how long no request completes, in milliseconds, when these links fail.
timed() {
  local what=$1 most=$2 fault=$3 scheme perf gap
  shift 3
  for scheme in $SCHEMES; do
    serve --once $(devices b) --stall-timeout $STALL
    BEFORE=$(carried a1)
    on_a "$POLYRAIL" perf --to "$FAR" $(devices a) --rails $LINKS --timeline --csv --seconds "${LASTS:-4}" \
      --operations write-imm --schemes "$scheme" --sizes 64K --window 32 --rail-failure reroute \
      --stall-timeout $STALL >"$DIR/timeline.csv" 2>"$DIR/copy.log" &
    perf=$!
    wait_until "no data moves" moves a1
    sleep 0.3
    $fault "$@"
    wait $perf || fail "perf ended with $?"
    wait "$SERVER" || fail "serve ended with $?"
    fails "$@"
    recovers "$@"
    gap=$(awk -F, 'NR > 1 { step = $1 - last; last = $1; gap = $2 > 0 ? 0 : gap + step
      if (gap > most) most = gap } END { printf "%d", 1000 * most }' "$DIR/timeline.csv")
    echo "$what, $scheme: no data for $gap ms (goal: $most ms)"
  done
}

time_link_down() { timed "a link goes down" 100 hide 1; }
time_two_links_down() { LASTS=8 timed "two links go down" 100 hide 0 2; }
hide() { down "$@" && sleep 1 && fails "$@" && up "$@"; }
time_silent_link() { LASTS=8 timed "a link falls silent" $((STALL * 1000 + 500)) hush 1; }
hush() { silent "$1" && sleep 3 && stays_out "$1" && audible "$1"; }
stays_out() {
  ! grep -q "rail $1 .*is back in service" "$DIR/copy.log" "$DIR/serve.log" ||
    fail "rail $1 is back in service over a link that carries nothing"
}

build
make_hosts
limit "$RATE"
head -c "$BYTES" /dev/urandom >"$DIR/source"
for case in ${*:-$CASES}; do
  began=$(date +%s.%N)
  $case
  awk -v n="$case" -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%-20s passed, %.1f s\n", n, b - a }'
done
