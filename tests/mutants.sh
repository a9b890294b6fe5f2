#!/usr/bin/env bash
# Are the quick tests sharp? Changes the engine in every way that cargo-mutants knows, one at a time, and
# runs the tests that need no minute. Takes hours for all modules on two free cores; not part of
# tests/full.sh. On a busy machine mutants time out that nothing has caught.
#   tests/mutants.sh [MODULE]...    rail, virtual_cq and virtual_qp, or the modules named, by their paths
#                                   in core/src: rail/tag, virtual_qp/scheme, ...
#
# Survivors that no test can catch are named, with the reason, in .cargo/mutants.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked

# Scenarios and models, with the unit tests; then, for what survives, random traffic.
SCENARIOS="--lib --test models --test scenarios"
TRAFFIC="--test random --test fairness --test simulation --test enumeration"

# mutate MODULE OUTPUT ARGUMENT...
mutate() {
  local file=core/src/$1.rs folder=core/src/$1/**/*.rs output=$2
  shift 2
  cargo mutants --file "$file" --file "$folder" --jobs 2 --output "$output" "$@"
}

mutate_module() {
  local module=$1 output=target/mutants/${1//\//-}
  if ! [ -e "core/src/$module.rs" ] && ! [ -d "core/src/$module" ]; then
    echo "there is no module core/src/$module" >&2
    return 1
  fi
  rm -rf "$output"
  mkdir -p "$output"
  # shellcheck disable=SC2086 # lists of arguments
  {
    mutate "$module" "$output" --timeout 45 -- -p polyrail-core -p polyrail-tests $SCENARIOS || true
    mutate "$module" "$output" --timeout 120 --iterate -- -p polyrail-tests $TRAFFIC
  }
}

failed=0
for module in ${@:-rail virtual_cq virtual_qp}; do
  mutate_module "$module" || failed=1
done
exit $failed
