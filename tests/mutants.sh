#!/usr/bin/env bash
# Are the quick tests sharp? Changes the engine in every way that cargo-mutants knows, one at a time, and
# runs the tests that need no minute. Takes hours for all modules; not part of tests/full.sh.
#   tests/mutants.sh [MODULE]...    all modules, or those named: tag window tracker routing virtual_qp
#
# Survivors that no test can catch are named, with the reason, in .cargo/mutants.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked

# What tests a module most directly, then what takes longer; unit tests come before both.
DIRECT="--test models"
INDIRECT="--test simulation --test seed_dqplb"
QP_DIRECT="--test failures --test completion_queue --test drivers --test pass_through
  --test distribution --test reference_defects --test seed_dqplb --test seed_fragments
  --test seed_ordering --test seed_routing --test seed_spray"
QP_INDIRECT="--test random --test simulation"

# mutate MODULE FILES ARGUMENT...
mutate() {
  local module=$1 files=$2
  shift 2
  cargo mutants --file "$files" --jobs 2 --output "target/mutants/$module" "$@"
}

# Each stage takes what survived the one before. Later ones compile what they need within their time.
# mutate_module MODULE FILES DIRECT INDIRECT
mutate_module() {
  rm -rf "target/mutants/$1"
  mkdir -p "target/mutants/$1"
  mutate "$1" "$2" --timeout 15 -- --lib || true
  # shellcheck disable=SC2086 # lists of arguments
  {
    mutate "$1" "$2" --timeout 180 --iterate -- -p polyrail-tests $3 || true
    mutate "$1" "$2" --timeout 180 --iterate -- -p polyrail-tests $4
  }
}

failed=0
for module in ${@:-tag window tracker routing virtual_qp}; do
  case $module in
    virtual_qp) mutate_module "$module" 'core/src/virtual_qp/*.rs' "$QP_DIRECT" "$QP_INDIRECT" ;;
    *) mutate_module "$module" "core/src/$module.rs" "$DIRECT" "$INDIRECT" ;;
  esac || failed=1
done
exit $failed
