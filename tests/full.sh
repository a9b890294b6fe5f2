#!/usr/bin/env bash
# Everything that CI checks, from a fresh clone on a machine with Rust and apt. Installs what is missing.
#   tests/full.sh [STEP]...    these of STEPS, or all of them, in order; or one of MORE, which are not CI's
#   tests/full.sh STEP+STEP    two at a time, with build directories of their own
#   tests/full.sh STEP,STEP+STEP,STEP    two rows of steps at a time
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:--Dwarnings}" RUSTDOCFLAGS="${RUSTDOCFLAGS:--Dwarnings}"

# One processor idles while the other one optimizes a program as a whole, searches, counts instructions, or waits for a
# clock: the steps after a `+` run at the same time, and take what the steps before it leave of the processors. `test` waits
# half of its time, so `fuzz`, which compiles for long, is beside it: its limits of time are long. `optimize` and `nccl` use
# one processor for minutes, so searches are beside them. `loom` compiles and searches for as long as four steps take. The
# two sides of a row take about the same time. Steps that measure time run alone. So does `planted`, because beside it tests
# that wait for a clock are less certain. A machine that is slow leaves the last two out: see `is_late`.
STEPS="lint docs,no_std,examples,c+loom test+fuzz nixl races+aarch64 optimize,nccl+simulate,states package+sweep
  copy netns rxe bench instructions+libclang enumerate planted"
# The kernel's driver has locked up a processor of the guest when a link went down under the load of other work.
MORE="links"

# A panic names its place in the code without debug information, which takes time to compile and half of the disk. Build
# scripts have the same, so that crates which they share with programs are compiled once.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG=none
export CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_SWEEP_DEBUG=none

# Incremental builds write much that only a next build of the same tree could use.
export CARGO_INCREMENTAL=0

# Optimizing a program as a whole takes minutes, on one processor. It pays where programs are measured: see `measured`.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

# Many tests wait for a clock or for another process.
export RUST_TEST_THREADS=4

# Of any other choice, cargo compiles most of the packages again, with other features.
ALL="--workspace --all-features --locked"
# What searches for long.
SWEEP="--profile sweep --locked -p polyrail-tests"

say() { printf '\n== %s\n' "$*"; }

# measured COMMAND [ARGUMENT]...: with programs that are optimized as users have them.
measured() {
  env -u CARGO_PROFILE_RELEASE_LTO -u CARGO_PROFILE_RELEASE_CODEGEN_UNITS -u CARGO_PROFILE_RELEASE_DEBUG "$@"
}

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
  command -v c++ >/dev/null || tests/rxe/packages.sh g++
  cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
  install_tool fuzz cargo-fuzz
}

# install_tool COMMAND CRATE [OPTION]...: the command of cargo, if it is missing; what is quickest to compile.
install_tool() {
  cargo "$1" --version >/dev/null 2>&1 ||
    RUSTFLAGS= CARGO_PROFILE_DEV_DEBUG=none cargo install "$2" --locked --debug "${@:3}"
}

lint() {
  say "format and lints"
  cargo fmt --all --check
  cargo fmt $NO_STD --check
  cargo fmt --manifest-path fuzz/Cargo.toml --check
  # cargo-fuzz would update a lock file silently.
  cargo tree --manifest-path fuzz/Cargo.toml --locked >/dev/null
  cargo clippy $ALL --all-targets
  CARGO_TARGET_DIR=target/no_std cargo clippy $NO_STD --locked
  say "polyrail-core alone, and the program"
  cargo check -p polyrail-core --no-default-features --locked
  cargo check -p polyrail-program --locked
  if cargo tree --locked --edges all | grep -qE '(bindgen|pkg-config) '; then
    echo "a default member needs headers of libibverbs, or libclang" >&2
    return 1
  fi
  if cargo tree --locked -p polyrail --edges normal --all-features | grep -qE ' (clap|indicatif|plotters|signal-hook) '; then
    echo "the library depends on what only the program needs" >&2
    return 1
  fi
  say "each choice of backends"
  local package features
  cargo check -p polyrail-program --no-default-features --features cli --locked
  for package in polyrail polyrail-c polyrail-nccl; do
    for features in "" tcp verbs; do
      cargo check -p $package --no-default-features --features "$features" --locked
    done
  done
  say "the oldest compiler that the manifests promise"
  local oldest
  oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
  cargo "+$oldest" --version >/dev/null 2>&1 || rustup toolchain install "$oldest" --profile minimal
  # Warnings of an old compiler are not mended. What reads libibverbs' headers is for developers only.
  RUSTFLAGS= CARGO_TARGET_DIR=target/oldest cargo "+$oldest" check --workspace --exclude polyrail-verbs-header \
    --lib --bins --locked
  say "no two modules import each other"
  tests/imports.sh
}

docs() {
  say "documentation"
  cargo doc $ALL --no-deps
}

test() {
  say "tests, with the engine's invariants checked after every step"
  cargo test $ALL --lib --bins --tests -- --include-ignored
  cargo test $ALL --doc
}

c() {
  say "the C library: installed, used from C and C++, sanitized, under valgrind"
  tests/rxe/packages.sh g++ valgrind
  std-shim/c/tests/run.sh
}

nixl() {
  say "the plugin for NIXL: in its wheel, beside UCX, sanitized, and over real verbs in a guest"
  tests/rxe/packages.sh g++ make python3-venv
  # The library that the step before has installed, if it has.
  local installed="$PWD/target/c/prefix"
  [ -e "$installed/lib/libpolyrail.a" ] || installed=
  POLYRAIL="$installed" std-shim/nixl/tests/run.sh
  POLYRAIL="$installed" tests/rxe/nixl.sh
}

libclang() {
  say "libibverbs' headers, read by old and new compiler libraries"
  local version
  for version in 14 19; do
    tests/rxe/packages.sh libclang1-$version libclang-common-$version-dev
    LIBCLANG_PATH=/usr/lib/llvm-$version/lib CARGO_TARGET_DIR=target/libclang \
      cargo test -p polyrail-verbs-header --locked --test header -- --nocapture | tee target/libclang-tests.log
    if grep skipped: target/libclang-tests.log; then return 1; fi
    # The version that the build script printed.
    grep -qE "libclang: .*version $version\." target/libclang/debug/build/polyrail-verbs-header-*/output
  done
}

loom() {
  say "the ring between threads, in every interleaving; of three threads, in those with few preemptions"
  with_loom -p polyrail-core --test spsc -- --nocapture
  with_loom -p polyrail-core --lib spsc::wrap
  say "handles, the progress thread, and waiting for completions, in every interleaving with few preemptions"
  with_loom -p polyrail --test handles -- --nocapture
  say "what a thread of the TCP NIC leaves to another one, in every interleaving"
  with_loom -p polyrail-tcp-nic --lib handover
}

# with_loom ARGUMENT...
with_loom() {
  # Interleavings are loom's own work, which is optimized in any case. Compiling took most of the step.
  local -x CARGO_PROFILE_SWEEP_OPT_LEVEL=1
  RUSTFLAGS="$RUSTFLAGS --cfg polyrail_loom" CARGO_TARGET_DIR=target/loom cargo test --profile sweep --locked "$@"
}

rxe() {
  say "real verbs, over the kernel's software RDMA driver in a guest"
  tests/rxe/run.sh
}

sweep() {
  say "models and random traffic, many more cases than in the edit loop"
  QUICKCHECK_TESTS=50000 RANDOM_SEEDS=60000 FAIRNESS_SEEDS=300 \
    cargo test $SWEEP --test models --test random --test fairness
}

simulate() {
  # `planted` has worlds of the engine without its assertions, as users build it.
  say "simulated worlds"
  swept_simulate --seed 1 --seeds 6000
  swept_simulate ends --seed 1 --seeds 130000
  swept_simulate p2p --seed 1 --seeds 30000
}

# swept_simulate ARGUMENT...: as cargo builds it for its package's tests; by itself it would have other features.
swept_simulate() {
  cargo test --quiet $SWEEP --test models --no-run
  "${CARGO_TARGET_DIR:-target}/sweep/simulate" "$@"
}

enumerate() {
  ! is_late || return 0
  say "every interleaving of small configurations"
  ENUMERATION=all cargo test $SWEEP --test enumeration -- --nocapture
}

states() {
  say "every order of what two ends can do, up to so many states of each small world"
  swept_simulate ends --states 10000
  say "every order of two messages and a failure, with so many deviations from the plainest one"
  swept_simulate p2p --states 10000000 --deviations 3
}

planted() {
  ! is_late || return 0
  say "bugs planted on purpose, which must be found"
  tests/planted.sh
}

fuzz() {
  say "fuzz targets, 6 seconds each, two at a time"
  install_fuzz
  # Six seconds need no program that is optimized well, which takes ten minutes of a processor.
  local -x CARGO_PROFILE_RELEASE_OPT_LEVEL=1 FUZZ_BUILD="--codegen-units 16"
  # A nightly compiler may have new warnings.
  RUSTFLAGS= cargo +nightly fuzz build $FUZZ_BUILD
  export -f fuzz_one
  cargo fuzz list | xargs -P 2 -I TARGET bash -c 'fuzz_one TARGET'
}

# fuzz_one TARGET: tells all of it if it fails.
fuzz_one() {
  local log="target/fuzz-$1.log"
  mkdir -p target "fuzz/corpus/$1"
  if RUSTFLAGS= cargo +nightly fuzz run $FUZZ_BUILD "$1" "fuzz/corpus/$1" "fuzz/seeds/$1" -- \
    -max_total_time=6 -print_final_stats=1 > "$log" 2>&1; then
    echo "$1: $(grep -o 'number_of_executed_units: [0-9]*' "$log")"
  else
    cat "$log"
    return 1
  fi
}

# The standard library is compiled, too, because the sanitizer must see its locks.
races() {
  say "the threads of the TCP NIC, under ThreadSanitizer"
  cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
  if ! rustup component add rust-src --toolchain nightly; then
    say "skipped: the source of nightly's standard library cannot be installed"
    return
  fi
  # Children of tests that fork start threads of their own. The sanitizer does not support that if another thread runs
  # during the fork: one of hundreds of children hung.
  local options="die_after_fork=0 suppressions=$PWD/std-shim/tcp-nic/tests/sent_data.supp"
  # A report names the lines of both accesses.
  local -x CARGO_PROFILE_DEV_DEBUG=line-tables-only
  RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS="$options" CARGO_TARGET_DIR=target/races MODEL_SEEDS=5 \
    cargo +nightly test -Zbuild-std --target "$(uname -m)-unknown-linux-gnu" --locked -p polyrail-tcp-nic --tests -- \
    --skip a_child_waits_for_no_thread_of_its_parent
}

copy() {
  say "a large file over four rails, both schemes"
  local dir scheme
  mkdir -p target
  dir=$(mktemp -d -p target)
  head -c 1G /dev/urandom > "$dir/source"
  # The program that is packaged.
  cargo build --release --locked -p polyrail-program
  for scheme in spray dqplb; do
    "${CARGO_TARGET_DIR:-target}/release/polyrail" copy "$dir/source" "$dir/$scheme" --rails 4 --scheme $scheme
    cmp "$dir/source" "$dir/$scheme"
  done
  rm -r "$dir"
}

# Says why it skips what it cannot do, without root for example.
netns() {
  say "two hosts on this machine: links that fail and return, requests that are taken back, and the goodput of four links"
  tests/netns/faults.sh
  tests/netns/pairs.sh
  tests/netns/taken_back.sh 300
  tests/netns/goodput.sh 1
}

package() {
  say "all files of a release; its crates are used from the packed files alone"
  tests/rxe/packages.sh g++ make pkg-config
  install_tool deb cargo-deb
  local release
  release=$(tests/release.sh --dry-run | tee >(cat >&2) | tail -n 1)
  (cd "$release" && sha256sum --quiet --check SHA256SUMS)
  say "its Debian packages of the program, and of the C library with both plugins: installed, used, removed"
  std-shim/program/deb/try.sh "$release"/polyrail_*.deb
  std-shim/c/deb/try.sh "$release"/libpolyrail_*.deb
  say "its archives, unpacked and used"
  tests/released.sh "$release"
}

# The programs that later steps measure.
optimize() {
  say "programs that are measured, optimized as a whole"
  measured cargo build --release --locked -p polyrail-nccl --example pair
  measured cargo build --release --locked -p polyrail-nccl
  measured cargo build --release --locked -p polyrail-benches --bin instructions
}

nccl() {
  say "the network plugin of NCCL: its own loader takes every table, and moves messages through them"
  NCCL_LIBRARY=$(std-shim/nccl/wheel.sh) \
    cargo test $ALL --test plugin -- nccls_own_loader the_headers_agree
  say "beside NCCL's own network, over real verbs in a guest"
  measured tests/rxe/nccl.sh
  std-shim/nccl/gpu.sh
}

links() {
  say "the plugins' rails fail and return, and fail for good, over real verbs in a guest; so do rails of requests that are
taken back"
  tests/rxe/packages.sh g++ make
  tests/rxe/taken_back.sh
  tests/rxe/nccl-heal.sh
  tests/rxe/nixl-heal.sh
}

examples() {
  say "the examples, as they stand"
  local example
  cargo build $ALL --examples
  for example in buffer set_of_64 under_tokio halo async_messages; do
    "${CARGO_TARGET_DIR:-target}/debug/examples/$example"
  done
}

no_std() {
  say "the smallest backends: two examples, and a program without std"
  cargo run --locked -p polyrail-core --example loopback
  cargo run --locked -p polyrail-core --example messages
  CARGO_TARGET_DIR=target/no_std cargo run --release --locked $NO_STD
  CARGO_TARGET_DIR=target/no_std cargo run --locked $NO_STD
  say "the engine on processors without an operating system, and on one of 32 bits"
  local target
  for target in x86_64-unknown-none aarch64-unknown-none thumbv7em-none-eabihf riscv32imac-unknown-none-elf \
    riscv32imc-unknown-none-elf; do
    rustup -q target add $target
    cargo check -p polyrail-core --locked --target $target
  done
  # Debian's gcc-multilib cannot be installed beside a compiler for aarch64; these parts of it can.
  tests/rxe/packages.sh "gcc-$(cc -dumpversion)-multilib" libc6-dev-i386
  rustup -q target add i686-unknown-linux-gnu
  cargo test -p polyrail-core --locked --target i686-unknown-linux-gnu
}

aarch64() {
  say "aarch64, emulated: the engine, its NICs, and the bindings, whose layouts are compared with the headers there"
  local gcc=aarch64-linux-gnu-gcc-$(cc -dumpversion)
  tests/rxe/packages.sh "gcc-${gcc##*-}-aarch64-linux-gnu" libc6-dev-arm64-cross qemu-user
  rustup -q target add aarch64-unknown-linux-gnu
  # qemu 7.2 fails when a child of a process with threads starts one. Programs that execute themselves would execute without qemu.
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$gcc PKG_CONFIG_ALLOW_CROSS=1 MODEL_SEEDS=2 \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="timeout 1200 qemu-aarch64 -L /usr/aarch64-linux-gnu" \
    cargo test --locked --target aarch64-unknown-linux-gnu --lib --tests -p polyrail-core -p polyrail-ffi -p polyrail-process \
    -p polyrail-nic-parts -p polyrail-software-nic -p polyrail-tcp-nic -p polyrail-verbs-header -- \
    --skip a_child_waits_for_no_thread_of_its_parent --skip devices_of_the_parent_that_a_child_drops \
    --skip a_library_that_cannot_be_loaded --skip a_drop_that_fails_does_not \
    --skip an_older_library --skip devices_are_usable_where_forks
}

bench() {
  say "benches: a smoke run without timing"
  cargo test $ALL --bench '*'
  cargo build $ALL --bin report
  "${CARGO_TARGET_DIR:-target}/debug/report" --repeats 21
}

instructions() {
  say "instructions of the benches, compared with the accepted ones"
  measured benches/instructions.sh
}

# is_late: whether the caller, which takes up to 12 minutes, is left out because CI ends after 90. A change of the engine or
# of a test still needs it.
is_late() {
  [ -z "$asked" ] && ((SECONDS > 70 * 60)) || return
  say "skipped after $((SECONDS / 60)) minutes: \`tests/full.sh ${FUNCNAME[1]}\` runs it"
}

# timed STEP
timed() {
  local began=$SECONDS
  "$1"
  say "$1 took $((SECONDS - began)) s"
  make_room "$1"
}

# make_room STEP: where the disk has less than 20 GiB left, deletes what no later step uses. All that is built takes 10 GB.
make_room() {
  local left
  left=$(df --output=avail -k . | tail -n 1)
  ((left < 20 << 20)) || return 0
  case $1 in
    lint) rm -rf target/oldest ;;
    docs) rm -rf target/doc ;;
    no_std) rm -rf target/no_std target/i686-unknown-linux-gnu ;;
    fuzz) rm -rf fuzz/target ;;
    aarch64) rm -rf target/aarch64-unknown-linux-gnu ;;
    package) rm -rf target/packed target/deb target/x86_64-unknown-linux-musl ;;
    loom | races | libclang | planted) rm -rf "target/$1" ;;
  esac
}

# row STEP,STEP...: one after the other.
row() {
  local step
  for step in ${1//,/ }; do
    timed "$step"
  done
}

# beside ROW ROW: at the same time. What the second one says comes when both have ended.
beside() {
  local log=target/${2%%,*}.log first second status=0
  mkdir -p target
  row "$1" &
  first=$!
  { renice -n 10 -p "$BASHPID" >/dev/null; row "$2"; } > "$log" 2>&1 &
  second=$!
  wait $first || status=$?
  wait $second || status=$?
  cat "$log"
  return $status
}

asked="$*"
install
for step in ${asked:-$STEPS}; do
  case $step in
    *+*) beside "${step%+*}" "${step#*+}" ;;
    *) row "$step" ;;
  esac
done
say "all passed, after $SECONDS s"
