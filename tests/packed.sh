#!/usr/bin/env bash
# Packs the crates that are meant for the crate registry, then builds and runs, in another workspace and from the packed
# files alone, the program `polyrail` and a program that uses the library: the first one of README.md.
#   tests/packed.sh
set -euo pipefail
cd "$(dirname "$0")/.."

CRATES="polyrail-core polyrail-process polyrail-rdma-sys polyrail-ffi polyrail-nic-parts polyrail-software-nic
  polyrail-tcp-nic polyrail polyrail-program"

# Building them one by one would take minutes, and show no more than what follows.
cargo package --quiet --locked --allow-dirty --no-verify $(printf ' -p %s' $CRATES)

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
packed=$target/packed
rm -rf "$packed/workspace"
mkdir -p "$packed/workspace/user/src"
lock=$PWD/Cargo.lock packages=$target/package readme=$PWD/README.md
cd "$packed/workspace"
{
  printf '[workspace]\nresolver = "3"\nmembers = ["user", "polyrail-program-%s"]\n\n[patch.crates-io]\n' "$version"
  for crate in $CRATES; do
    tar -xzf "$packages/$crate-$version.crate"
    printf '%s = { path = "%s-%s" }\n' "$crate" "$crate" "$version"
  done
} >Cargo.toml
printf '[package]\nname = "user"\nedition = "2024"\n\n[dependencies]\npolyrail = "%s"\n' "$version" >user/Cargo.toml
sed -n '/^```rust/,/^```$/{/^```/d;p}' "$readme" >user/src/main.rs
cp "$lock" .

export CARGO_TARGET_DIR=$packed/target
cargo run --quiet -p user
cargo build --quiet -p polyrail-program
head -c 1M /dev/urandom >source
"$CARGO_TARGET_DIR/debug/polyrail" copy source copy --rails 4 >/dev/null
cmp source copy
echo "packed.sh: passed"
