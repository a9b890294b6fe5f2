#!/usr/bin/env bash
# Everything that CI checks, from a fresh clone on a machine with Rust and apt. Installs what is missing.
#   tests/full.sh [STEP]...    these of STEPS, or all of them, in order
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:--Dwarnings}" RUSTDOCFLAGS="${RUSTDOCFLAGS:--Dwarnings}"

STEPS="lint docs test libclang loom sweep simulate enumerate planted fuzz copy package examples no_std rxe bench instructions"

say() { printf '\n== %s\n' "$*"; }

NO_STD="--manifest-path tests/no_std/Cargo.toml"

# Packages and components beside Rust. Does nothing if they are there.
install() {
  command -v cc >/dev/null || { apt-get -qq update && apt-get -qq install -y gcc libc6-dev; }
  tests/rxe/packages.sh
  for tool in rustfmt clippy; do
    cargo ${tool/rustfmt/fmt} --version >/dev/null 2>&1 || rustup component add $tool
  done
}

# Requirements of the fuzz targets: a C++ compiler for libFuzzer, a nightly compiler, cargo-fuzz.
install_fuzz() {
  command -v c++ >/dev/null || { apt-get -qq update && apt-get -qq install -y g++; }
  cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
  cargo fuzz --version >/dev/null 2>&1 || RUSTFLAGS= cargo install cargo-fuzz --locked
}

lint() {
  say "format and lints"
  cargo fmt --all --check
  cargo fmt $NO_STD --check
  cargo fmt --manifest-path fuzz/Cargo.toml --check
  # cargo-fuzz would update a lock file silently.
  cargo tree --manifest-path fuzz/Cargo.toml --locked >/dev/null
  cargo clippy --workspace --all-targets --all-features --locked
  CARGO_TARGET_DIR=target/no_std cargo clippy $NO_STD --locked
  say "polyrail-core alone, and everything that needs no libibverbs"
  cargo check -p polyrail-core --no-default-features --locked
  cargo check -p polyrail --no-default-features --locked
  if cargo tree --locked --edges all | grep -q rdma-sys; then
    echo "a default member depends on rdma-sys" >&2
    return 1
  fi
  if cargo tree --locked -p polyrail --edges normal --all-features | grep -qE ' (clap|indicatif|plotters|signal-hook) '; then
    echo "the library depends on what only the program needs" >&2
    return 1
  fi
  say "no two modules import each other"
  tests/imports.sh
}

docs() {
  say "documentation"
  cargo doc --workspace --all-features --no-deps --locked
}

test() {
  say "tests, with the engine's invariants checked after every step"
  cargo test --workspace --all-features --locked --lib --bins --tests -- --include-ignored
  cargo test --workspace --all-features --locked --doc
}

libclang() {
  say "libibverbs' headers, read by old and new compiler libraries"
  local version
  for version in 14 19; do
    tests/rxe/packages.sh libclang1-$version libclang-common-$version-dev
    LIBCLANG_PATH=/usr/lib/llvm-$version/lib CARGO_TARGET_DIR=target/libclang \
      cargo test -p rdma-sys -p polyrail-ffi --locked --lib --tests
    # The version that the build script printed.
    grep -qE "libclang: .*version $version\." target/libclang/debug/build/rdma-sys-*/output
  done
}

loom() {
  say "the ring between threads, in every interleaving"
  RUSTFLAGS="$RUSTFLAGS --cfg polyrail_loom" CARGO_TARGET_DIR=target/loom \
    cargo test --profile sweep --locked -p polyrail-tests --test spsc -- --nocapture
  RUSTFLAGS="$RUSTFLAGS --cfg polyrail_loom" CARGO_TARGET_DIR=target/loom \
    cargo test --profile sweep --locked -p polyrail-core --lib spsc::wrap
}

rxe() {
  say "real verbs, over the kernel's software RDMA driver in a guest"
  tests/rxe/run.sh
}

sweep() {
  say "models and random traffic, many more cases than in the edit loop"
  QUICKCHECK_TESTS=50000 cargo test --profile sweep --locked -p polyrail-tests --test models
  RANDOM_SEEDS=100000 cargo test --profile sweep --locked -p polyrail-tests --test random
  FAIRNESS_SEEDS=300 cargo test --profile sweep --locked -p polyrail-tests --test fairness
}

simulate() {
  say "simulated worlds: the engine as users build it, then with its own assertions"
  cargo run --release --locked -p polyrail-tests --bin simulate -- --seed 1 --seeds 20000
  cargo run --profile sweep --locked -p polyrail-tests --bin simulate -- --seed 100001 --seeds 50000
  cargo run --release --locked -p polyrail-tests --bin simulate -- ends --seed 1 --seeds 100000
  cargo run --profile sweep --locked -p polyrail-tests --bin simulate -- ends --seed 1000001 --seeds 200000
  cargo run --release --locked -p polyrail-tests --bin simulate -- p2p --seed 1 --seeds 50000
  cargo run --profile sweep --locked -p polyrail-tests --bin simulate -- p2p --seed 1000001 --seeds 20000
}

enumerate() {
  say "every interleaving of small configurations"
  ENUMERATION=all cargo test --profile sweep --locked -p polyrail-tests --test enumeration -- --nocapture
  cargo run --profile sweep --locked -p polyrail-tests --bin simulate -- ends --states 60000
  say "every order of two messages and a failure, with so many deviations from the plainest one"
  cargo run --profile sweep --locked -p polyrail-tests --bin simulate -- p2p --states 10000000 --deviations 3
}

planted() {
  say "bugs planted on purpose, which must be found"
  tests/planted.sh
}

fuzz() {
  say "fuzz targets, 30 seconds each"
  install_fuzz
  local target
  for target in $(cargo fuzz list); do
    mkdir -p "fuzz/corpus/$target"
    # A nightly compiler may have new warnings.
    RUSTFLAGS= cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
      -max_total_time=30 -print_final_stats=1
  done
}

copy() {
  say "a large file over four rails, both schemes"
  local dir scheme
  mkdir -p target
  dir=$(mktemp -d -p target)
  head -c 1G /dev/urandom > "$dir/source"
  for scheme in spray dqplb; do
    cargo run --release --locked --bin polyrail -- \
      copy "$dir/source" "$dir/$scheme" --rails 4 --scheme $scheme
    cmp "$dir/source" "$dir/$scheme"
  done
  rm -r "$dir"
}

package() {
  say "a Debian package, that installs, runs and removes cleanly"
  cargo deb --version >/dev/null 2>&1 || RUSTFLAGS= cargo install cargo-deb --locked --debug
  std-shim/program/deb/try.sh "$(std-shim/program/deb/build.sh)"
}

examples() {
  say "the examples, as they stand"
  local example
  for example in buffer set_of_64 under_tokio halo; do
    cargo run --profile sweep --locked -p polyrail --example $example
  done
}

no_std() {
  say "the smallest backend: an example, and a program without std"
  cargo run --locked -p polyrail-core --example loopback
  CARGO_TARGET_DIR=target/no_std cargo run --release --locked $NO_STD
  CARGO_TARGET_DIR=target/no_std cargo run --locked $NO_STD
}

bench() {
  say "benches: a smoke run without timing"
  cargo bench -p polyrail-benches --locked -- --test
  cargo run --release --locked -p polyrail-benches --bin report -- --repeats 21
}

instructions() {
  say "instructions of the benches, compared with the accepted ones"
  benches/instructions.sh
}

install
for step in "${@:-$STEPS}"; do
  for name in $step; do "$name"; done
done
say "all passed"
