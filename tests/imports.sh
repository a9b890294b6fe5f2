#!/usr/bin/env bash
# Checks that no two modules of a crate import each other, directly or through others. Lists those that do.
#   tests/imports.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# The crates that users build; git may still list a file that is gone.
roots=()
while IFS= read -rd '' root; do
  [ -e "$root" ] && roots+=("$root")
done < <(git ls-files -z --cached --others --exclude-standard --deduplicate -- \
  ':(glob)**/src/lib.rs' ':(glob)**/src/main.rs' ':(glob)**/src/bin/*.rs' ':(glob)**/src/bin/*/main.rs' \
  ':!benches' ':!tests')

cargo run --quiet --locked -p polyrail-imports -- "${roots[@]}"
