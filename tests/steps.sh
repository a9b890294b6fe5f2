# What tests/gate.sh and tests/full.sh share: how things are built, and how steps are run. To be sourced, in the root of the
# repository. A step is a function; what it runs ends it if it fails.

# Warnings of this compiler are errors, where code is linted. Those of another one are shown: it may have new ones.
COMPILER=1.95.0
is_the_compiler() { [ "$(rustc --version | cut -d' ' -f2)" = $COMPILER ]; }
! is_the_compiler || DENY=-Dwarnings

# A panic names its place in the code without debug information, which takes time to compile and half of the disk. Build
# scripts have the same, so that crates which they share with programs are compiled once.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG=none
export CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_SWEEP_DEBUG=none

# Incremental builds write much that only a next build of the same tree could use.
export CARGO_INCREMENTAL=0

# Optimizing a program as a whole takes minutes, on one processor. It pays where programs are measured.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

# Of any other choice, cargo compiles most of the packages again, with other features. What reads the headers of libibverbs
# needs libclang: `tests/full.sh libclang`.
ALL="--workspace --exclude polyrail-verbs-header --all-features --locked"

say() { printf '\n== %s\n' "$*"; }

# A C compiler links what Rust compiles.
install_basics() {
  local tool
  command -v cc >/dev/null || tests/packages.sh gcc libc6-dev
  for tool in rustfmt clippy; do
    cargo ${tool/rustfmt/fmt} --version >/dev/null 2>&1 || rustup component add $tool
  done
}

# known_steps KNOWN STEP...: fails, with words, if one of the steps is not known.
known_steps() {
  local known step
  known=$(tr -s '\n' ' ' <<< "$1")
  for step in "${@:2}"; do
    [[ " $known " == *" $step "* ]] || { echo "there is no step \"$step\", only these: $known" >&2; return 2; }
  done
}

# run_step STEP: returns its exit status, and says how long it took. Not to be called where a failure is looked at, as in
# `if`: there bash would go on behind what fails in the step.
run_step() {
  local begun=$SECONDS status
  (
    set -e
    "$1"
  )
  status=$?
  say "$1: exit status $status after $((SECONDS - begun)) s"
  return $status
}

# swept_simulate ARGUMENT...: as cargo builds it for the tests of its package; by itself it would have other features.
swept_simulate() {
  cargo test --quiet $SWEEP --test models --no-run
  ${LIMITED:-} "${CARGO_TARGET_DIR:-target}/sweep/simulate" "$@"
}
# What searches for long.
SWEEP="--profile sweep --locked -p polyrail-tests"

# with_loom ARGUMENT...: tests whose threads loom runs in many interleavings.
with_loom() {
  # Interleavings are loom's own work, which is optimized in any case. Compiling took most of the step.
  CARGO_PROFILE_SWEEP_OPT_LEVEL=1 RUSTFLAGS="--cfg polyrail_loom" CARGO_TARGET_DIR=$PWD/target/loom \
    cargo test --profile sweep --locked "$@"
}
