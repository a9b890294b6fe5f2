#!/usr/bin/env bash
# Installs the library into a prefix as its users do, and builds and runs C programs against it: as C11 and C++17, with
# AddressSanitizer, and under valgrind. Checks that the committed header is the installed one.
#   std-shim/c/tests/run.sh [PREFIX]    an installed one, instead of target/c/prefix
# Needs cargo-c (`cargo install cargo-c --locked`), a C and a C++ compiler, pkg-config, valgrind, and what
# `tests/rxe/packages.sh` installs.
set -euo pipefail
cd "$(dirname "$0")/../../.."
HERE=std-shim/c/tests
OUT=$PWD/target/c
PREFIX=${1:-$OUT/prefix}
mkdir -p "$OUT"

if [ $# -eq 0 ]; then
  rm -rf "$PREFIX"
  # cargo-c finds the crate by its folder.
  (cd std-shim/c && cargo cinstall --locked --profile sweep --prefix "$PREFIX" --libdir lib)
fi

# What cargo-c adds to what cbindgen makes: the version's parts, in one place.
added='/^#define POLYRAIL_\(MAJOR\|MINOR\|PATCH\) /d'
diff <(grep -v '^$' std-shim/c/include/polyrail.h) <(sed "$added" "$PREFIX/include/polyrail.h" | grep -v '^$') >&2 ||
  { echo "std-shim/c/include/polyrail.h is not what cbindgen makes of the sources" >&2; exit 1; }

# Each function of the header is misused.
for function in $(grep -oE 'polyrail_[a-z0-9_]+\(' "$PREFIX/include/polyrail.h" | sort -u); do
  grep -qF "$function" $HERE/c/misuse.c || { echo "misuse.c does not misuse $function)" >&2; exit 1; }
done

export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig" LD_LIBRARY_PATH="$PREFIX/lib"
# For `again`, which counts memory.
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0
WARNINGS="-Wall -Wextra -Wpedantic -Werror"
LIBRARY=$(pkg-config --cflags --libs polyrail)
PROGRAMS="layout small options move messages links reconnect heal processes misuse again"

build() { # COMPILER... KIND
  local kind=${*: -1} program
  mkdir -p "$OUT/$kind"
  for program in $PROGRAMS; do
    # shellcheck disable=SC2086
    ${*:1:$#-1} -O1 -g $WARNINGS "$HERE/c/$program.c" -o "$OUT/$kind/$program" $LIBRARY -lpthread
  done
}

run() { # KIND MIB TIMES MESSAGES [WRAPPER]...
  local kind=$1 mib=$2 times=$3 messages=$4 program
  shift 4
  for program in layout small options "move $mib" messages "messages link" "links $messages" reconnect heal misuse "again $times"; do
    # shellcheck disable=SC2086
    timeout 300 "$@" "$OUT/$kind"/$program || { echo "$kind: $program failed" >&2; exit 1; }
  done
  for program in small "move $mib" messages "messages link" "links $messages" reconnect heal "processes $mib" "again $times"; do
    # shellcheck disable=SC2086
    TCP=1 timeout 300 "$@" "$OUT/$kind"/$program || { echo "$kind: $program failed over TCP" >&2; exit 1; }
  done
}

build cc -std=c11 c11
build c++ -std=c++17 -x c++ cpp17
build cc -std=c11 -fsanitize=address,undefined -fno-sanitize-recover=all sanitized
# The same with the static library, which needs what it was linked with.
cc -std=c11 -O1 $WARNINGS $HERE/c/move.c -o "$OUT/c11/static" \
  $(pkg-config --cflags polyrail) "$PREFIX/lib/libpolyrail.a" $(pkg-config --libs-only-l --static polyrail | sed 's/-lpolyrail//g')

# valgrind runs one thread at a time, so it leaves a processor to the others.
run c11 4 3 20 valgrind --quiet --fair-sched=try --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect,possible &
valgrind=$!
run c11 "${MIB:-1024}" "${TIMES:-1000}" 100000
run cpp17 "${MIB:-1024}" 10 100000
run sanitized "${MIB:-1024}" 10 100000
wait $valgrind
"$OUT/c11/static" 16
