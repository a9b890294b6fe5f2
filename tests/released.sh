#!/usr/bin/env bash
# Tries the archives of a release, unpacked: the program, and a C program with the shared and the static library.
#   tests/released.sh target/release-VERSION
# Needs a C compiler and pkg-config.
set -euo pipefail
release=$(realpath "$1")
programs=$(realpath "$(dirname "$0")/../std-shim/c/tests/c")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
for archive in "$release"/*.tar.gz; do
  tar -xzf "$archive"
done

polyrail=$(echo polyrail-*-musl)/polyrail
if ldd "$polyrail" 2>/dev/null | grep '=>'; then
  echo "$polyrail is not static" >&2
  exit 1
fi
head -c 10M /dev/urandom > source
"./$polyrail" copy --quiet source copy
cmp source copy
# Between two processes it uses TCP.
mkdir served
timeout 120 "./$polyrail" serve --listen 127.0.0.1:0 --once served > serve.log 2>&1 &
server=$!
until grep -q "listening at" serve.log; do
  kill -0 $server || { cat serve.log >&2; exit 1; }
  sleep 0.1
done
timeout 60 "./$polyrail" copy --quiet source --to "$(sed -n 's/.*listening at \([^,]*\),.*/\1/p' serve.log)"
wait $server
cmp source served/source

library=$PWD/$(echo libpolyrail-*-linux-gnu)
export PKG_CONFIG_PATH=$library/lib/pkgconfig
# shellcheck disable=SC2046
cc -std=c11 "$programs/move.c" -o shared $(pkg-config --cflags --libs polyrail)
LD_LIBRARY_PATH=$library/lib ./shared 16
# shellcheck disable=SC2046
cc -std=c11 "$programs/move.c" -o static $(pkg-config --cflags polyrail) "$library/lib/libpolyrail.a" \
  $(pkg-config --libs-only-l --static polyrail | sed 's/-lpolyrail//g')
./static 16
echo "unpacked and ran: $(cd "$release" && echo *.tar.gz)"
