# Two hosts on this machine, for the other scripts: two network namespaces, joined by pairs of virtual Ethernet
# devices. Link N has `a$N` with 10.77.N.1 in the first namespace and `b$N` with 10.77.N.2 in the second. Link
# `c`, with 10.77.100.1 and .2, has no limit and carries what programs need beside the data.
# The caller sets DIR, a directory for logs, which is removed when the script ends.
A=polyrail-$$-a B=polyrail-$$-b
LINKS=4
FAR=10.77.100.2

on_a() { ip netns exec "$A" "$@"; }
on_b() { ip netns exec "$B" "$@"; }

fail() {
  echo "FAILED: $*"
  for log in "$DIR"/*.log; do
    [ ! -s "$log" ] || { echo "--- ${log##*/}" && tail -n 20 "$log"; }
  done
  exit 1
}

# Ends the script where namespaces cannot be made, with the reason and exit status 77, which means "skipped".
skip_without_namespaces() {
  local reason=
  if [ "$(id -u)" -ne 0 ]; then reason="this is not root"
  elif ! install ip iproute2 || ! install tc iproute2; then exit 77
  elif ! ip netns add "$A" 2>"$DIR/netns.log"; then reason="no network namespaces: $(cat "$DIR/netns.log")"
  elif ! ip -n "$A" link add probe type veth peer name eborp 2>"$DIR/netns.log"; then
    reason="no virtual Ethernet: $(cat "$DIR/netns.log")" && ip netns del "$A"
  else
    ip -n "$A" link del probe
    return
  fi
  echo "skipped: $reason"
  exit 77
}

# install TOOL PACKAGE: returns whether the tool is there, after an attempt to install it.
install() {
  command -v "$1" >/dev/null || "$(dirname "${BASH_SOURCE[0]}")/../packages.sh" "$2"
}

link() { # NAME NET: a link with both addresses
  ip -n "$A" link add "a$1" type veth peer name "b$1" netns "$B"
  ip -n "$A" addr add "10.77.$2.1/24" dev "a$1"
  ip -n "$B" addr add "10.77.$2.2/24" dev "b$1"
  ip -n "$A" link set "a$1" up
  ip -n "$B" link set "b$1" up
}

# make_hosts: both namespaces with all links. They are removed when the script ends, and so are the processes in
# them.
make_hosts() {
  trap 'remove_hosts; rm -rf "$DIR"' EXIT
  skip_without_namespaces
  trap "exit 1" INT TERM
  ip netns add "$B"
  ip -n "$A" link set lo up
  ip -n "$B" link set lo up
  for n in $(seq 0 $((LINKS - 1))); do link "$n" "$n"; done
  link c 100
}

remove_hosts() {
  for host in "$A" "$B"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del "$host" 2>/dev/null || true
  done
}

# limit RATE [LINK]...: limits these links, or all but `c`, in both directions; `none`: no limit.
limit() {
  local rate=$1 n
  shift
  for n in ${*:-$(seq 0 $((LINKS - 1)))}; do
    tc -n "$A" qdisc del dev "a$n" root 2>/dev/null || true
    tc -n "$B" qdisc del dev "b$n" root 2>/dev/null || true
    [ "$rate" != none ] || continue
    tc -n "$A" qdisc add dev "a$n" root tbf rate "$rate" burst 256k latency 20ms
    tc -n "$B" qdisc add dev "b$n" root tbf rate "$rate" burst 256k latency 20ms
  done
}

# devices a|b [COUNT]: options for the devices of one host.
devices() { seq -f "--device tcp:$1%g" 0 $((${2:-$LINKS} - 1)); }

# The program, as users have it unless POLYRAIL names one.
build() {
  POLYRAIL=${POLYRAIL:-}
  if [ -z "$POLYRAIL" ]; then
    cargo build --release --locked -p polyrail-program
    POLYRAIL=${CARGO_TARGET_DIR:-target}/release/polyrail
  fi
}

# serve OPTIONS...: in the background on the second host; returns once it listens.
serve() {
  : >"$DIR/serve.log"
  ip netns exec "$B" "$POLYRAIL" serve --listen 0.0.0.0:7471 "$@" >"$DIR/serve.out" 2>"$DIR/serve.log" &
  SERVER=$!
  wait_until "serve does not listen" grep -q listening "$DIR/serve.log"
}

# wait_until WHAT COMMAND...: tries the command for 20 seconds.
wait_until() {
  local what=$1 tries=0
  shift
  until "$@"; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || fail "$what"
    sleep 0.1
  done
}

stop_serving() {
  kill -INT "$SERVER" 2>/dev/null || true
  wait "$SERVER" || true
}

median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print "-" }'; }

# column NAME: this column of CSV with a line of names.
column() { awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR > 1 { print $at }'; }
