#!/usr/bin/env bash
# Are the quick tests sharp? Changes the engine in every way that cargo-mutants knows, one at a time, and
# runs the tests that need no minute. Takes over an hour for all modules on two free cores; not part of
# tests/full.sh. On a busy machine mutants time out that nothing has caught.
#   tests/mutants.sh [MODULE]...    all modules, or those named: tag window tracker routing virtual_qp
#
# Survivors that no test can catch are named, with the reason, in .cargo/mutants.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked

# Scenarios and models, with the unit tests; then, for what survives, random traffic.
SCENARIOS="--lib --test models --test failures --test completion_queue --test drivers
  --test pass_through --test distribution --test reference_defects --test seed_dqplb
  --test seed_fragments --test seed_ordering --test seed_routing --test seed_spray"
TRAFFIC="--test random --test simulation --test enumeration"

# mutate MODULE FILES ARGUMENT...
mutate() {
  local module=$1 files=$2
  shift 2
  cargo mutants --file "$files" --jobs 2 --output "target/mutants/$module" "$@"
}

mutate_module() {
  local module=$1 files=core/src/$1.rs
  [ "$module" = virtual_qp ] && files='core/src/virtual_qp/*.rs'
  rm -rf "target/mutants/$module"
  mkdir -p "target/mutants/$module"
  # shellcheck disable=SC2086 # lists of arguments
  {
    mutate "$module" "$files" --timeout 45 -- -p polyrail-core -p polyrail-tests $SCENARIOS || true
    mutate "$module" "$files" --timeout 120 --iterate -- -p polyrail-tests $TRAFFIC
  }
}

failed=0
for module in ${@:-tag window tracker routing virtual_qp}; do
  mutate_module "$module" || failed=1
done
exit $failed
