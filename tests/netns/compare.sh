#!/usr/bin/env bash
# polyrail over TCP beside iperf3, MPTCP, UCX, and NIXL over the UCX in its wheel, between two hosts on this machine (see
# hosts.sh), in one run and in turns: the medians of all rounds, and polyrail's ratio to the best of UCX and to the best
# of all.
#   tests/netns/compare.sh [ROUNDS]    rounds of each, 3 by default
# PLACES chooses among `unlimited` (one link without limit, one queue pair and four), `limited` (four links of RATE)
# and `latency` (8 bytes, half a round trip, over one link without limit). SIZES are the bytes of requests. A tool that
# cannot be installed has `-` for its figures. Fails only if something does not run: figures depend on the machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${1:-3} RATE=${RATE:-1gbit}
# Whole seconds, for iperf3.
SECONDS_EACH=${SECONDS_EACH:-1}
PLACES=${PLACES:-latency unlimited limited}
SIZES=${SIZES:-8 4096 65536 1048576 16777216 67108864}
DIR=$(mktemp -d)
. tests/netns/hosts.sh

build
make_hosts
tools=polyrail
! install iperf3 iperf3 || tools="$tools iperf"
! install mptcpize mptcpize || ! command -v iperf3 >/dev/null || tools="$tools mptcp"
! install ucx_perftest ucx-utils || tools="$tools ucx"
. std-shim/nixl/tests/wheel.sh
if (install_venv) >"$DIR/wheel.log" 2>&1; then tools="$tools nixl"; else
  echo "skipped: there is no NIXL ($NIXL cannot be installed: $(tail -n 1 "$DIR/wheel.log"))"
fi
has() { [[ " $tools " == *" $1 "* ]]; }
if has mptcp && ! on_a sysctl -qw net.mptcp.enabled=1 2>"$DIR/mptcp.log"; then
  echo "skipped: this kernel has no MPTCP"
  tools=${tools/ mptcp/}
fi
if has iperf; then on_b iperf3 -s -D -p 5300 >/dev/null && on_b iperf3 -s -D -p 5301 >/dev/null; fi
if has mptcp; then
  on_b sysctl -qw net.mptcp.enabled=1
  on_a ip mptcp limits set subflow 4 add_addr_accepted 4
  on_b ip mptcp limits set subflow 4 add_addr_accepted 4
  for n in 1 2 3; do on_b ip mptcp endpoint add "10.77.$n.2" dev "b$n" signal; done
  on_b mptcpize run iperf3 -s -D -p 5309 >/dev/null
fi

# All figures are Gbit/s; `-` if there is none.

# iperf STREAMS SIZE, over one link.
iperf() {
  { on_a iperf3 -c 10.77.0.2 -p 5300 -t "$SECONDS_EACH" -P "$1" -l "$(buffer "$2")" -f m 2>"$DIR/iperf.log" || true; } |
    awk '/receiver/ { v = $(NF - 2) } END { if (v == "") print "-"; else printf "%.4f\n", v / 1000 }'
}
# iperf3 takes at most 1 MiB at a time.
buffer() { echo $(($1 > 1048576 ? 1048576 : $1)); }

# iperf_links SIZE: over four links at the same time.
iperf_links() {
  local n pids=()
  for n in 0 1 2 3; do
    on_a iperf3 -c "10.77.$n.2" -p $((5300 + n)) -t "$SECONDS_EACH" -l "$(buffer "$1")" -f m \
      >"$DIR/iperf.$n.log" 2>&1 & pids+=($!)
  done
  wait "${pids[@]}" || true
  awk '/receiver/ { sum += $(NF - 2); n++ } END { if (n < 4) print "-"; else printf "%.4f\n", sum / 1000 }' \
    "$DIR"/iperf.[0-3].log
}

mptcp() {
  { on_a mptcpize run iperf3 -c 10.77.0.2 -p 5309 -t "$SECONDS_EACH" -l "$(buffer "$1")" -f m 2>"$DIR/iperf.log" || true; } |
    awk '/receiver/ { v = $(NF - 2) } END { if (v == "") print "-"; else printf "%.4f\n", v / 1000 }'
}

# ucx TEST LINKS SIZE COUNT [COLUMN]: a column of the result, the bandwidth in MB/s by default.
ucx() {
  local test=$1 size=$3 count=$4 at=${5:-0} server
  local ours theirs
  ours=$(seq -s, -f 'a%g' 0 $(($2 - 1))) theirs=$(seq -s, -f 'b%g' 0 $(($2 - 1)))
  local settings="UCX_TLS=tcp UCX_MAX_RNDV_RAILS=4 UCX_MAX_RMA_RAILS=4 UCX_MAX_EAGER_RAILS=4 UCX_WARN_UNUSED_ENV_VARS=n"
  on_b env $settings UCX_NET_DEVICES="$theirs" timeout 60 ucx_perftest -p 13340 >"$DIR/ucx.far.log" 2>&1 &
  server=$!
  wait_until "ucx_perftest does not listen" on_b sh -c 'ss -ltn | grep -q :13340'
  on_a env $settings UCX_NET_DEVICES="$ours" timeout 60 ucx_perftest "$FAR" -p 13340 -t "$test" -s "$size" \
    -n "$count" -w $((count / 10 + 1)) -f >"$DIR/ucx.log" 2>&1 || true
  wait "$server" || true
  # Iterations, the median and two averages in microseconds, average and overall MB/s and messages/s.
  awk -v at="$at" '/^(Final:)? *[0-9]+ / { v = at > 0 ? $at : $(NF - 2) } END { print v == "" ? "-" : v }' "$DIR/ucx.log"
}

# Enough for about a second, and an even share of small ones.
count() { local most=$((2000000000 / $1)); echo $((most > 200000 ? 200000 : most < 20 ? 20 : most)); }

ucx_gbit() { ucx "$1" "$2" "$3" "$(count "$3")" | awk '{ print $1 == "-" ? "-" : $1 * 8 * 1.048576 / 1000 }'; }

# nixl LINKS SIZE: WRITEs between agents of two processes, by the wheel's UCX.
nixl() {
  local ours theirs server
  local settings="UCX_TLS=tcp UCX_MAX_RNDV_RAILS=4 UCX_MAX_RMA_RAILS=4 UCX_WARN_UNUSED_ENV_VARS=n UCX_LOG_LEVEL=fatal"
  settings="$settings NIXL_LOG_LEVEL=FATAL PYTHONDONTWRITEBYTECODE=1"
  ours=$(seq -s, -f 'a%g' 0 $(($1 - 1))) theirs=$(seq -s, -f 'b%g' 0 $(($1 - 1)))
  # The line that is waited for may not be that of the last size.
  : >"$DIR/nixl.far.log"
  on_b env $settings UCX_NET_DEVICES="$theirs" timeout 60 "$venv/bin/python" std-shim/nixl/tests/goodput.py \
    serve UCX "$FAR" 7480 >"$DIR/nixl.far.log" 2>&1 &
  server=$!
  wait_until "NIXL's agent does not listen" grep -q listening "$DIR/nixl.far.log"
  { on_a env $settings UCX_NET_DEVICES="$ours" timeout 60 "$venv/bin/python" std-shim/nixl/tests/goodput.py \
    write UCX "$FAR" 7480 "$2" "$SECONDS_EACH" 2>"$DIR/nixl.log" || echo -; } | tail -n 1
  kill "$server" 2>/dev/null || true
  wait "$server" || true
}

# polyrail OPERATION LINKS RAILS SIZE
polyrail() {
  local window=16
  [ "$4" -le 1048576 ] || window=4
  [ "$4" -gt 65536 ] || window=64
  on_a "$POLYRAIL" perf --to "$FAR" $(devices a "$2") --rails "$3" --operations "$1" --schemes spray \
    --sizes "$4" --window $window --seconds "$SECONDS_EACH" --csv 2>"$DIR/perf.log" >"$DIR/perf.csv" ||
    fail "perf ended with $?"
  column gigabytes_per_second <"$DIR/perf.csv" | awk '{ printf "%.4f\n", $1 * 8 }'
}

# measured NAME COMMAND...: adds a figure to those of this name.
measured() {
  local name=$1
  shift
  "$@" >>"$DIR/figure.$name"
  [ "$(tail -n 1 "$DIR/figure.$name")" != - ] || echo "$name has no figure: it failed, or took longer than a minute"
}
figure() { { grep -v '^-$' "$DIR/figure.$1" 2>/dev/null || true; } | median; }

# best NAME...: the greatest of these medians.
best() { for name; do figure "$name"; done | { grep -v '^-$' || true; } | sort -n | tail -n 1; }

# row SIZE PATTERN...: the table's row, with ratios of the best of polyrail.
row() {
  local size=$1 name ours ucx all
  shift
  printf '%10s' "$size"
  for name; do printf ' %12s' "$(figure "$name" | awk '{ print $1 == "-" ? "-" : sprintf($1 < 0.1 ? "%.4f" : "%.2f", $1) }')"; done
  ours=$(best $(for name; do [[ $name != polyrail* ]] || echo "$name"; done))
  ucx=$(best $(for name; do [[ $name != ucx* ]] || echo "$name"; done))
  all=$(best $(for name; do [[ $name == polyrail* ]] || echo "$name"; done))
  awk -v o="$ours" -v u="$ucx" -v a="$all" 'BEGIN { printf " %8s %8s\n", u ? sprintf("%.2f", o / u) : "-", a ? sprintf("%.2f", o / a) : "-" }'
}
header() {
  printf '\n%s\n%10s' "$1" bytes
  shift
  for name; do printf ' %12s' "$name"; done
  printf ' %8s %8s\n' "of UCX" "of best"
}

unlimited() {
  local round names="iperf.1 iperf.4 ucx.put ucx.tag ucx.nixl polyrail.imm polyrail.imm4 polyrail.p2p" size
  limit none
  header "One link without limit, Gbit/s" $names
  for size in $SIZES; do
    rm -f "$DIR"/figure.*
    for round in $(seq "$ROUNDS"); do
      if has iperf; then
        measured iperf.1 iperf 1 "$size"
        measured iperf.4 iperf 4 "$size"
      fi
      if has ucx; then
        measured ucx.put ucx_gbit ucp_put_bw 1 "$size"
        measured ucx.tag ucx_gbit tag_bw 1 "$size"
      fi
      ! has nixl || measured ucx.nixl nixl 1 "$size"
      measured polyrail.imm polyrail write-imm 1 1 "$size"
      measured polyrail.imm4 polyrail write-imm 1 4 "$size"
      measured polyrail.p2p polyrail p2p 1 1 "$size"
    done
    row "$size" $names
  done
}

limited() {
  local round names="iperf.links mptcp ucx.put ucx.tag ucx.nixl polyrail.imm polyrail.write polyrail.p2p" size n
  limit "$RATE"
  if has iperf; then for n in 2 3; do on_b iperf3 -s -D -p $((5300 + n)) >/dev/null; done; fi
  header "Four links of $RATE, Gbit/s" $names
  for size in $SIZES; do
    rm -f "$DIR"/figure.*
    for round in $(seq "$ROUNDS"); do
      ! has iperf || measured iperf.links iperf_links "$size"
      ! has mptcp || measured mptcp mptcp "$size"
      if has ucx; then
        measured ucx.put ucx_gbit ucp_put_bw 4 "$size"
        measured ucx.tag ucx_gbit tag_bw 4 "$size"
      fi
      ! has nixl || measured ucx.nixl nixl 4 "$size"
      measured polyrail.imm polyrail write-imm 4 4 "$size"
      measured polyrail.write polyrail write 4 4 "$size"
      measured polyrail.p2p polyrail p2p 4 4 "$size"
    done
    row "$size" $names
  done
  limit none
}

# polyrail_latency OPERATION: the median, in microseconds.
polyrail_latency() {
  on_a "$POLYRAIL" perf --to "$FAR" $(devices a 1) --rails 1 --latency --operations "$1" --sizes 8 \
    --seconds "$SECONDS_EACH" --csv 2>"$DIR/perf.log" >"$DIR/perf.csv" || fail "perf ended with $?"
  column p50_ns <"$DIR/perf.csv" | awk '{ printf "%.2f\n", $1 / 1000 }'
}

latency() {
  local operation round names="ucx.tag ucx.put ucx.am polyrail.send polyrail.write polyrail.write-imm polyrail.p2p"
  limit none
  rm -f "$DIR"/figure.*
  for round in $(seq "$ROUNDS"); do
    if has ucx; then
      measured ucx.tag ucx tag_lat 1 8 100000 2
      measured ucx.put ucx ucp_put_lat 1 8 100000 2
      measured ucx.am ucx ucp_am_lat 1 8 100000 2
    fi
    for operation in send write write-imm p2p; do
      measured "polyrail.$operation" polyrail_latency $operation
    done
  done
  printf '\nHalf a round trip of 8 bytes, one link without limit, us\n'
  for name in $names; do printf '%-20s %8s\n' "$name" "$(figure "$name")"; done
  if has ucx; then
    awk -v o="$(figure polyrail.send)" -v p="$(figure polyrail.write)" -v t="$(figure ucx.tag)" \
      -v u="$(figure ucx.put)" 'function ratio(a, b) { return b > 0 ? sprintf("%.2f", a / b) : "-" }
        BEGIN { printf "send to UCX tag: %s, write to UCX put: %s\n", ratio(o, t), ratio(p, u) }'
  fi
}

serve $(devices b) --max-memory 2G
for place in $PLACES; do $place; done
stop_serving
