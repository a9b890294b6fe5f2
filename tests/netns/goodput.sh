#!/usr/bin/env bash
# Goodput of four limited links between two hosts on this machine (see hosts.sh): `polyrail perf` over four TCP
# devices, beside iperf3 over all four links at the same time.
#   tests/netns/goodput.sh [ROUNDS]    rounds of each, 3 by default
# Prints the median ratio of each operation. The goal is 0.95, on a machine that does nothing else. A ratio fails
# nothing: on a machine that is busy, each side gets what the other one leaves.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${1:-3} RATE=${RATE:-1gbit}
# Whole seconds, for iperf3.
SECONDS_EACH=${SECONDS_EACH:-2}
DIR=$(mktemp -d)
. tests/netns/hosts.sh

build
make_hosts
limit "$RATE"
install iperf3 iperf3 || exit 0
for n in $(seq 0 $((LINKS - 1))); do
  on_b iperf3 -s -D -p $((5300 + n)) >/dev/null
done

# Gbit/s of all links together.
iperf() {
  local n pids=()
  for n in $(seq 0 $((LINKS - 1))); do
    on_a iperf3 -c "10.77.$n.2" -p $((5300 + n)) -t "$SECONDS_EACH" -f m >"$DIR/iperf.$n.log" 2>&1 &
    pids+=($!)
  done
  for n in "${pids[@]}"; do wait "$n" || fail "iperf3 ended with $?"; done
  awk '/receiver/ { sum += $(NF - 2) } END { printf "%.3f\n", sum / 1000 }' "$DIR"/iperf.*.log
}

# polyrail OPERATION SCHEME: Gbit/s.
polyrail() {
  on_a "$POLYRAIL" perf --to "$FAR" $(devices a) --rails $LINKS --operations "$1" --schemes "$2" \
    --sizes 1M --seconds "$SECONDS_EACH" --csv 2>"$DIR/perf.log" >"$DIR/perf.csv" || fail "perf ended with $?"
  column gigabytes_per_second <"$DIR/perf.csv" | awk '{ printf "%.3f\n", $1 * 8 }'
}

serve $(devices b)
SHAPES="write:spray write:dqplb write-imm:spray write-imm:dqplb read:spray p2p:spray"
for round in $(seq "$ROUNDS"); do
  iperf >>"$DIR/iperf"
  theirs=$(tail -n 1 "$DIR/iperf")
  for shape in $SHAPES; do
    ours=$(polyrail "${shape%:*}" "${shape#*:}")
    echo "$ours" >>"$DIR/ours.$shape"
    awk -v o="$ours" -v t="$theirs" 'BEGIN { print o / t }' >>"$DIR/ratio.$shape"
  done
done
stop_serving
printf '%-18s %10s %10s %6s\n' "$LINKS links of $RATE" "Gbit/s" "iperf3" ratio
for shape in $SHAPES; do
  ratio=$(median <"$DIR/ratio.$shape")
  printf '%-18s %10s %10s %6.2f\n' "${shape/:/, }" "$(median <"$DIR/ours.$shape")" "$(median <"$DIR/iperf")" "$ratio"
done
