#!/usr/bin/env bash
# Makes a Debian package of the program with real NICs, shell completions and man pages, and prints where it is.
#   std-shim/program/deb/build.sh
# Needs cargo-deb (`cargo install cargo-deb --locked`).
set -euo pipefail
cd "$(dirname "$0")/../../.."

cargo build --release --locked -p polyrail-program
program=${CARGO_TARGET_DIR:-target}/release/polyrail
mkdir -p target/deb
"$program" completions bash > target/deb/polyrail.bash
"$program" completions zsh > target/deb/_polyrail
"$program" completions fish > target/deb/polyrail.fish
mkdir -p target/deb/man
"$program" man > target/deb/man/polyrail.1
for command in copy serve perf devices completions man; do
  "$program" man "$command" > "target/deb/man/polyrail-$command.1"
done
cargo deb --quiet --no-build --locked --package polyrail-program --output target/deb/ >&2
ls -t target/deb/polyrail_*.deb | head -n 1
