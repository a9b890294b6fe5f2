#!/usr/bin/env bash
# Installs the library into a prefix as its users do, and builds and runs C programs against it: as C11 and C++17, with
# AddressSanitizer, and under valgrind.
#   std-shim/c/tests/run.sh [PREFIX]    an installed one, instead of target/c/prefix
# Needs a C and a C++ compiler, pkg-config, valgrind, and what `tests/rxe/packages.sh` installs.
set -euo pipefail
cd "$(dirname "$0")/../../.."
HERE=std-shim/c/tests
OUT=$PWD/target/c
PREFIX=${1:-$OUT/prefix}
mkdir -p "$OUT"

if [ $# -eq 0 ]; then
  rm -rf "$PREFIX"
  std-shim/c/install.sh "$PREFIX" --profile sweep
fi

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
# The example, as its users build it: with the shared library, the static one, and without any shared library.
EXAMPLE=std-shim/c/examples/message.c
mkdir -p "$OUT/example"
cc -std=c11 $WARNINGS $EXAMPLE -o "$OUT/example/shared" $LIBRARY
c++ -std=c++17 $WARNINGS -x c++ $EXAMPLE -o "$OUT/example/cpp17" $LIBRARY
cc -std=c11 $WARNINGS $EXAMPLE -o "$OUT/example/static" \
  $(pkg-config --cflags --libs --static polyrail | sed 's/-lpolyrail/-l:libpolyrail.a/')
# The linker warns of what glibc and libpolyrail load when it is needed.
cc -std=c11 $WARNINGS -static $EXAMPLE -o "$OUT/example/all_static" \
  $(pkg-config --cflags --libs --static polyrail | sed 's/-lgcc_s/-lgcc_eh/') 2>"$OUT/example/warnings" ||
  { cat "$OUT/example/warnings" >&2; exit 1; }

# valgrind runs one thread at a time, so it leaves a processor to the others.
run c11 4 3 20 valgrind --quiet --fair-sched=try --error-exitcode=9 --leak-check=full \
  --errors-for-leak-kinds=definite,indirect,possible --suppressions=$HERE/ending_thread.supp &
valgrind=$!
run c11 "${MIB:-1024}" "${TIMES:-1000}" 100000
run cpp17 "${MIB:-1024}" 10 100000
run sanitized "${MIB:-1024}" 10 100000
wait $valgrind

# A message between two processes. The port is the example's: the system assigns none below 32768. The sender is refused
# until the receiver listens.
for program in shared cpp17 static all_static; do
  timeout 300 "$OUT/example/$program" receive 127.0.0.1:7571 lo > "$OUT/example/received" &
  receiver=$!
  until timeout 300 "$OUT/example/$program" send 127.0.0.1:7571 "to $program" lo 2>"$OUT/example/refused"; do
    grep -q refused "$OUT/example/refused" || { cat "$OUT/example/refused" >&2; exit 1; }
    kill -0 $receiver || exit 1
    sleep 0.1
  done
  wait $receiver
  [ "$(cat "$OUT/example/received")" = "to $program" ] || { echo "$program received something else" >&2; exit 1; }
done
