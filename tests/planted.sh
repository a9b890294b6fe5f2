#!/usr/bin/env bash
# Is the simulation sharp? Plants bugs in a copy of the tree, one at a time, and has the simulation find
# each within 1,000 seeds.
#   tests/planted.sh
#
# A bug is a line of the engine and what to put in its place. A line that is not there exactly once is
# an error: then the engine has changed, and the bug has to be planted anew.
set -euo pipefail
cd "$(dirname "$0")/.."

SEEDS=1000
COPY=$PWD/target/planted/tree
export CARGO_TARGET_DIR=$PWD/target/planted/build
# The engine as users build it, without its own assertions, but built faster.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

fresh_copy() {
  rm -rf "$COPY"
  mkdir -p "$COPY"
  # With the times of now: what was planted before must not pass for compiled.
  git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C "$COPY" -xmf -
}

# plant FILE LINE REPLACEMENT
plant() {
  local file=$COPY/$1 count
  count=$(grep -cxF -- "$2" "$file" || true)
  if [ "$count" != 1 ]; then
    echo "$1 has this line $count times, not once: $2" >&2
    exit 1
  fi
  WANTED=$2 PLANTED=$3 awk '{ print ($0 == ENVIRON["WANTED"]) ? ENVIRON["PLANTED"] : $0 }' \
    "$file" > "$file.new"
  mv "$file.new" "$file"
}

build() {
  cargo build --quiet --release --locked --manifest-path "$COPY/Cargo.toml" -p polyrail-tests --bin simulate
}

search() {
  "$CARGO_TARGET_DIR/release/simulate" --seed 1 --seeds "$SEEDS" 2>&1
}

# find_bug NAME FILE LINE REPLACEMENT
find_bug() {
  local output
  fresh_copy
  plant "$2" "$3" "$4"
  build
  if output=$(search); then
    echo "not found within $SEEDS seeds: $1" >&2
    exit 1
  fi
  if ! grep -q "shortest prefix" <<< "$output"; then
    echo "$output" >&2
    exit 1
  fi
  printf '\nfound: %s\n%s\n' "$1" "$output"
}

# What is found even if nothing is planted is another matter.
fresh_copy
build
search

find_bug "the window wraps one bit too late" core/src/window.rs \
  '            bit % Self::CAPACITY' \
  '            if bit > Self::CAPACITY { bit - Self::CAPACITY } else { bit }'

find_bug "a notify is sent while one batch of its data is in flight" core/src/virtual_qp/notify.rs \
  '            if slot.outstanding > 0 {' \
  '            if slot.outstanding > 1 {'

find_bug "a credit is lost when a driver takes a batch in part" core/src/in_flight.rs \
  '            self.missing = count - accepted;' \
  '            self.missing = count - accepted; self.credits -= 1;'

find_bug "a notify overtakes a SEND or atomic that went straight to rail 0" core/src/virtual_qp/notify.rs \
  '            } else if self.pass_through_ahead() || !self.post_notifies(id) && !self.failed {' \
  '            } else if !self.post_notifies(id) && !self.failed {'

find_bug "numbers of DQPLB overtake a plain WRITE" core/src/virtual_qp/dispatch.rs \
  '        front.is_some_and(|front| front < self.unnumbered_until) || self.pass_through_ahead()' \
  '        front.is_some_and(|_| false) || self.pass_through_ahead()'

find_bug "numbers of DQPLB overtake a SEND or atomic that went straight to rail 0" core/src/virtual_qp/dispatch.rs \
  '        front.is_some_and(|front| front < self.unnumbered_until) || self.pass_through_ahead()' \
  '        front.is_some_and(|front| front < self.unnumbered_until)'

echo
echo "every planted bug was found"
