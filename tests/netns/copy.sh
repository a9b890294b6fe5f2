#!/usr/bin/env bash
# Copies between two hosts on this machine over limited links (see hosts.sh): `polyrail copy --to` over one link and
# over all, beside rsync (its own protocol, without encryption) and scp over one.
#   tests/netns/copy.sh [ROUNDS]    rounds of each, 3 by default
# Prints the median time of each in seconds: of one long file, of a directory of shards, of a directory of many small
# files, and of a second copy of each directory, when nothing is missing. Fails if a copy differs from its source.
set -euo pipefail
cd "$(dirname "$0")/../.."
ROUNDS=${1:-3} RATE=${RATE:-400mbit} MEBIBYTES=${MEBIBYTES:-128} SMALL=${SMALL:-10000}
DIR=$(mktemp -d)
. tests/netns/hosts.sh

build
make_hosts
limit "$RATE"
mkdir -p "$DIR/done" "$DIR/from/file" "$DIR/from/shards" "$DIR/from/small" "$DIR/to"
head -c "${MEBIBYTES}M" /dev/urandom >"$DIR/from/file/long"
split -n 8 "$DIR/from/file/long" "$DIR/from/shards/shard-"
for directory in $(seq 0 9); do
  mkdir "$DIR/from/small/$directory"
  head -c $((SMALL * 200)) /dev/urandom | split -a 5 -b 2000 - "$DIR/from/small/$directory/"
done

TOOLS="polyrail-$LINKS polyrail-1"
if install rsync rsync; then
  TOOLS="$TOOLS rsync"
  printf '[to]\npath = %s\nuse chroot = no\nread only = no\nuid = 0\ngid = 0\n' "$DIR/to" >"$DIR/rsyncd.conf"
  ip netns exec "$B" rsync --daemon --no-detach --config="$DIR/rsyncd.conf" --log-file="$DIR/rsyncd.log" &
  disown
fi
SSHD=/usr/sbin/sshd
if { [ -x $SSHD ] || install $SSHD openssh-server; } && command -v scp >/dev/null; then
  TOOLS="$TOOLS scp"
  ssh-keygen -q -t ed25519 -N "" -f "$DIR/key"
  ssh-keygen -q -t ed25519 -N "" -f "$DIR/host"
  mkdir -p /run/sshd
  ip netns exec "$B" $SSHD -D -e -f /dev/null -h "$DIR/host" -p 2222 -o AuthorizedKeysFile="$DIR/key.pub" \
    -o StrictModes=no -o PermitRootLogin=yes -o PidFile=none -o "Subsystem sftp internal-sftp" 2>"$DIR/sshd.log" &
  disown
fi

# copy TOOL: copies $DIR/from/$what into $DIR/to.
copy() {
  local options="-q -r -p -P 2222 -i $DIR/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
  case $1 in
    rsync) on_a rsync -a "$DIR/from/$what" rsync://10.77.0.2/to/ ;;
    scp) on_a scp $options "$DIR/from/$what" "10.77.0.2:$DIR/to/" ;;
    polyrail-*) on_a "$POLYRAIL" copy --to "$FAR" $(devices a "${1#*-}") --rails $LINKS --quiet "$DIR/from/$what" ;;
  esac >"$DIR/copy.log" 2>&1 || fail "$1 of $what ended with $?"
}

# timed TOOL FILE: adds the seconds of a copy to a file, and compares the copy with its source.
timed() {
  local begin end
  begin=$(date +%s%N)
  copy "$1"
  end=$(date +%s%N)
  awk -v ns=$((end - begin)) 'BEGIN { printf "%.3f\n", ns / 1e9 }' >>"$DIR/times.$1.$2"
  diff -r "$DIR/from/$what" "$DIR/to/$what" >/dev/null || fail "$1: the copy of $what differs"
}

serve $(devices b) "$DIR/to"
for tool in $TOOLS; do
  case $tool in
    rsync) wait_until "rsync does not listen" on_a rsync rsync://10.77.0.2/ >/dev/null 2>&1 ;;
    scp) wait_until "sshd does not listen" on_a bash -c ': </dev/tcp/10.77.0.2/2222' 2>/dev/null ;;
  esac
done
for round in $(seq "$ROUNDS"); do
  for what in file shards small; do
    for tool in $TOOLS; do
      timed "$tool" "$what"
      # scp copies everything again.
      [ "$what" = file ] || [ "$tool" = scp ] || timed "$tool" "$what.again"
      # Not removed: ext4 makes files slowly while it remembers many that were removed.
      mv "$DIR/to/$what" "$DIR/done/$what.$tool.$round"
    done
  done
done
stop_serving
printf '%-34s' "seconds, links of $RATE"
printf ' %11s' $TOOLS
echo
for row in "file:one file of $MEBIBYTES MiB" "shards:8 shards of it" "shards.again:the same again" \
  "small:$SMALL files of 2000 bytes" "small.again:the same again"; do
  printf '%-34s' "${row#*:}"
  for tool in $TOOLS; do
    printf ' %11s' "$([ -f "$DIR/times.$tool.${row%%:*}" ] && median <"$DIR/times.$tool.${row%%:*}" || echo -)"
  done
  echo
done
