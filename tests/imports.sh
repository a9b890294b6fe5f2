#!/usr/bin/env bash
# Checks that no two modules of a crate import each other, directly or through others, and no two files of the NIXL
# plugin include each other. Lists those that do.
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

# tsort fails, and lists the files, if there is a circle.
echo "std-shim/nixl/src: $(sed -n 's/^#include "\(.*\)"/\1/p' std-shim/nixl/src/* | wc -l) includes"
(cd std-shim/nixl/src && grep -H '^#include "' ./*.h ./*.cpp | sed 's|^\./||; s|:#include "\(.*\)"| \1|' | tsort > /dev/null)
