#!/usr/bin/env bash
# Are the quick tests sharp? Changes the engine in every way that cargo-mutants knows, one at a time, and
# runs the tests that need no minute. Takes hours for all modules; not part of tests/full.sh.
#   tests/mutants.sh [MODULE]...    all modules, or those named: tag window tracker routing virtual_qp
#
# Survivors that no test can catch are named, with the reason, in .cargo/mutants.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked

# The scenarios, the models, the simulation; of modules that have direct tests, fewer.
MORE_TESTS="--test models --test simulation --test seed_dqplb"
ALL_TESTS="$MORE_TESTS --test random --test failures --test completion_queue --test drivers
  --test pass_through --test distribution --test reference_defects --test seed_fragments
  --test seed_ordering --test seed_routing --test seed_spray"

# mutate FILES NAME ARGUMENT...
mutate() {
  local files=$1 name=$2
  shift 2
  mkdir -p "target/mutants/$name"
  cargo mutants --file "$files" --jobs 2 --timeout 120 --output "target/mutants/$name" "$@"
}

failed=0
for name in ${@:-tag window tracker routing virtual_qp}; do
  tests=$MORE_TESTS files=core/src/$name.rs
  [ "$name" = virtual_qp ] && tests=$ALL_TESTS && files='core/src/virtual_qp/*.rs'
  rm -rf "target/mutants/$name"
  # Unit tests first, since they take no time, then the models; what survives meets the others.
  mutate "$files" "$name" -- --lib || true
  mutate "$files" "$name" --iterate -- -p polyrail-tests --test models || true
  # shellcheck disable=SC2086 # a list of arguments
  mutate "$files" "$name" --iterate -- -p polyrail-tests $tests || failed=1
done
exit $failed
