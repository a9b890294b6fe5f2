#!/usr/bin/env bash
# Everything that CI checks, from a fresh clone on a machine with Rust and apt. Installs what is missing.
#   tests/full.sh [STEP]...    all steps, or those named: lint docs test no_std bench
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:--Dwarnings}" RUSTDOCFLAGS="${RUSTDOCFLAGS:--Dwarnings}"

say() { printf '\n== %s\n' "$*"; }

lint() {
  say "format and lints"
  rustup component add rustfmt clippy >/dev/null 2>&1 || true # no network is fine if they are there
  cargo fmt --all --check
  cargo clippy --workspace --all-targets --all-features --locked
  say "polyrail-core alone"
  cargo check -p polyrail-core --no-default-features --locked
}

docs() {
  say "documentation"
  cargo doc --workspace --no-deps --locked
}

test() {
  say "tests, with the engine's invariants checked after every step"
  cargo test --workspace --locked
}

no_std() {
  say "a program without std"
  local dir=tests/no_std
  CARGO_TARGET_DIR=target/no_std cargo run --release --locked --manifest-path $dir/Cargo.toml
  CARGO_TARGET_DIR=target/no_std cargo run --locked --manifest-path $dir/Cargo.toml
}

bench() {
  say "benches, a smoke run: nothing is timed"
  cargo bench -p polyrail-benches --locked -- --test
  cargo run --release --locked -p polyrail-benches --bin report -- --repeats 21
}

for step in "${@:-lint docs test no_std bench}"; do
  for name in $step; do "$name"; done
done
say "all passed"
