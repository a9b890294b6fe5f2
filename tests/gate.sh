#!/usr/bin/env bash
# What decides whether a change lands: README's test command, and what CI runs. It needs Rust, a C compiler, and the crates
# that cargo fetches, and takes about 15 minutes on two processors.
#   tests/gate.sh [STEP]...    these of STEPS, or all of them
# No verdict depends on a clock, a scheduler, another process, a kernel or root: what needs real time are tests with names
# `rt_*`, which `tests/full.sh` runs. No step ends the others. When all steps have passed on a clean tree, target/gate-passed
# names the tree.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/steps.sh

STEPS="lint docs rules unit worlds loom planted"

# The only clock: a test program that takes so many seconds hangs.
LIMITED="timeout --foreground 600"
RUNNER=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER
export "$RUNNER=$LIMITED"

lint() {
  local formatted=0 dependencies
  say "format"
  for manifest in Cargo.toml tests/no_std/Cargo.toml fuzz/Cargo.toml; do
    cargo fmt --all --check --manifest-path $manifest || formatted=1
  done
  # Another version may format otherwise.
  if [ $formatted = 1 ] && is_the_compiler; then return 1; fi
  say "lints"
  # Flags for rustc would compile all dependencies once more.
  cargo clippy $ALL --all-targets -- ${DENY:-}
  cargo clippy $ALL --test 'rt_*' -- ${DENY:-}
  say "lock files, and what a default build depends on"
  # cargo-fuzz would update a lock file silently.
  cargo tree --manifest-path fuzz/Cargo.toml --locked >/dev/null
  dependencies=$(cargo tree --locked --edges all)
  if grep -E '(bindgen|pkg-config) ' <<< "$dependencies"; then
    echo "a default member needs headers of libibverbs, or libclang" >&2
    return 1
  fi
  dependencies=$(cargo tree --locked -p polyrail --edges normal --all-features)
  if grep -E ' (clap|indicatif|plotters|signal-hook) ' <<< "$dependencies"; then
    echo "the library depends on what only the program needs" >&2
    return 1
  fi
}

docs() {
  say "documentation"
  RUSTDOCFLAGS=${DENY:-} cargo doc $ALL --no-deps
}

rules() {
  say "tests that need real time are kept apart"
  tests/real_time.sh
  say "no two modules import each other"
  tests/imports.sh
  say "every step of the full test has passed lately: so many commits ago"
  tests/full.sh --due
}

unit() {
  say "tests, with the engine's invariants checked after every step"
  # What does not compile is compared with the words of one compiler.
  local skip= log=target/gate-unit.log
  is_the_compiler || skip="--skip misuse_does_not_compile"
  mkdir -p target
  cargo test $ALL --no-fail-fast --lib --bins --tests -- --include-ignored --skip rt_tests:: $skip | tee $log
  say "examples in the documentation"
  # With a runner, rustdoc would run all of a crate in one process; so the limit is one for compiling them, too.
  env -u "$RUNNER" timeout --foreground 1800 cargo test $ALL --doc | tee -a $log
  say "as many tests as ever"
  [ -n "$skip" ] || tests/real_time.sh "$(awk '/^test result:/ { sum += $4 } END { print sum }' $log)"
}

worlds() {
  say "models and random traffic"
  QUICKCHECK_TESTS=5000 RANDOM_SEEDS=6000 FAIRNESS_SEEDS=60 cargo test $SWEEP --test models --test random --test fairness
  say "every interleaving of small configurations"
  cargo test $SWEEP --test enumeration
  say "simulated worlds"
  swept_simulate --seed 1 --seeds 500
  swept_simulate ends --seed 1 --seeds 10000
  swept_simulate p2p --seed 1 --seeds 3000
  say "small worlds in every order"
  swept_simulate ends --states 2000
  swept_simulate p2p --states 10000000 --deviations 2
}

loom() {
  say "the ring between threads, in every interleaving; of three threads, in those with few preemptions; handles, the progress
thread, and waiting for completions, in every interleaving with few preemptions"
  with_loom -p polyrail-core -p polyrail --test spsc --test handles -- --nocapture
  say "the ring's numbers that wrap, and what a thread of the TCP NIC leaves to another one, in every interleaving"
  with_loom -p polyrail-core -p polyrail-tcp-nic --lib -- spsc::wrap handover
}

planted() {
  say "bugs planted on purpose, which must be found"
  tests/planted.sh --gate
}

tree() { [ -n "$(git status --porcelain --untracked-files=normal)" ] || git rev-parse 'HEAD^{tree}'; }

known_steps "$STEPS" "$@" || exit
install_basics
[ $# != 0 ] || rm -f target/gate-passed
before=$(tree) passed=0 failed=()
# shellcheck disable=SC2086
for step in ${@:-$STEPS}; do
  run_step "$step"
  # shellcheck disable=SC2181
  if [ $? = 0 ]; then passed=$((passed + 1)); else failed+=("$step"); fi
done

say "the gate, after $SECONDS s"
for step in "${failed[@]}"; do
  echo "FAILED: $step; to repeat it: tests/gate.sh $step"
done
mkdir -p target
[ $# = 0 ] && [ ${#failed[@]} = 0 ] && [ -n "$before" ] && [ "$before" = "$(tree)" ] && echo "$before" > target/gate-passed
echo "$passed passed, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ]
