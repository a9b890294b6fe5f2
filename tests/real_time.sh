#!/usr/bin/env bash
# Checks that each test is where it belongs: a program `rt_*` or a module `rt_tests` if it needs real time, sockets, threads
# or other processes; else a test of the gate. It looks for words; those that mean something else, and tests of the gate that
# are right to have them, are in tests/real_time.txt with the reason.
#   tests/real_time.sh          checks that
#   tests/real_time.sh TESTS    checks that so many tests of the gate are as many as the list adds up to: none got lost
set -uo pipefail
cd "$(dirname "$0")/.." || exit

WORDS='(Instant|SystemTime)::now|sleep[(]|[Tt]hread::|recv_timeout|wait_timeout|event::poll|(Tcp|Unix)(Listener|Stream)'
WORDS+='|UnixDatagram|UdpSocket|Command::new|fork[(]'
LIST=tests/real_time.txt

# The sources, without those that run in a guest, and programs that must not compile.
sources() {
  git ls-files -z --cached --others --exclude-standard --deduplicate -- '*.rs' ':!tests/rxe' ':!core/tests/ui' |
    while IFS= read -rd '' file; do
      # One that is removed may still be listed.
      [ ! -f "$file" ] || printf '%s\n' "$file"
    done
}

# A module of tests in a file that has other code.
MODULE='^ *(pub([(][a-z: ]+[)])? )?mod [a-z0-9_]*tests[a-z0-9_]*( [{])?$'

# The lines of code in tests: `UNIT FILE TEXT`. A unit is the folder or file `rt_*`, or a file, or its module `rt_tests`.
lines_of_tests() {
  local files whole parts
  files=$(sources)
  whole=$(grep -E '(^|/)(tests|rt_[a-z0-9_]*)(/|\.rs$)' <<< "$files")
  parts=$(grep -vxF "$whole" <<< "$files" | xargs grep -lE '^ *#\[test\]|'"$MODULE")
  # Their tests are in no module.
  whole+=$'\n'$(xargs grep -LE "$MODULE" <<< "$parts")
  xargs awk '
    FNR == 1 {
      unit = FILENAME
      if (match(FILENAME, /(^|\/)rt_[a-z0-9_]*(\/|\.rs$)/)) {
        unit = substr(FILENAME, 1, RSTART + RLENGTH - 2)
        sub(/\.rs?$/, "", unit)
      }
    }
    !/^ *\/\// { print unit "\t" FILENAME "\t" $0 }' <<< "$whole"
  # To the brace that ends the module.
  xargs awk -v module="$MODULE" '
    FNR == 1 { inside = 0 }
    !inside && $0 ~ module {
      inside = 1
      unit = FILENAME ($0 ~ /mod rt_tests/ ? " rt_tests" : "")
      match($0, /^ */)
      closing = "^" substr($0, 1, RLENGTH) "}$"
    }
    inside && !/^ *\/\// { print unit "\t" FILENAME "\t" $0 }
    inside && $0 ~ closing { inside = 0 }' <<< "$parts"
}

# found: `PATH: WORD TIMES` of the tests of the gate, and `PATH: none` of those in real time that have no such word.
found() {
  lines_of_tests | awk -F '\t' -v words="$WORDS" '
    {
      is_late = $1 ~ /(^|[\/ ])rt_/
      units[$1] = is_late
      rest = substr($0, length($1) + length($2) + 3)
      while (match(rest, words)) {
        has[$1] = 1
        if (!is_late) times[$2 ": " substr(rest, RSTART, RLENGTH)]++
        rest = substr(rest, RSTART + RLENGTH)
      }
    }
    END {
      for (what in times) print what, times[what]
      for (unit in units) if (units[unit] && !has[unit]) print unit ": none"
    }'
}

# check_manifests: cargo leaves programs in real time out of `cargo test`.
check_manifests() {
  local program package missing=0
  for program in $(sources | sed -nE 's/^(.*\/tests\/rt_[a-z0-9_]*)(\.rs|\/main\.rs)$/\1/p'); do
    package=${program%/tests/*}
    awk -v RS= -v name="name = \"${program##*/}\"" \
      '/\[\[test\]\]/ && index($0, name) && /test = false/ { found = 1 } END { exit !found }' "$package/Cargo.toml" ||
      { echo "$package/Cargo.toml has no [[test]] with name = \"${program##*/}\" and test = false" >&2; missing=1; }
  done
  return $missing
}

# listed: the list without reasons and numbers of tests; of `PATH: any`, whatever was found in files below that path.
listed() {
  grep -vE '^(#|$|[+-])|: any$' $LIST
  sed -n 's/: any$//p' $LIST | while IFS= read -r path; do
    below=$(awk -v path="$path" 'index($0, path) == 1' <<< "$found")
    echo "${below:-$path: any}"
  done
}

# check_uses: tests have no other words of real time than the list says.
check_uses() {
  local found differences
  found=$(found) || return
  differences=$(diff <(listed | sort) <(sort <<< "$found") | grep '^[<>]')
  [ -n "$differences" ] || return 0
  cat >&2 <<END
What tests use (>) is not what $LIST has (<). A test that needs real time, sockets, threads or other processes
belongs into a program rt_* or a module rt_tests; one that needs nothing of these does not. What is right nevertheless is
listed there, under its reason.
$differences
END
  return 1
}

# check_number TESTS: so many ran as the list adds up to.
check_number() {
  local listed
  listed=$(grep -oE '^[+-][0-9]+' $LIST | awk '{ sum += $1 } END { print sum }')
  [ "$1" != "$listed" ] || return 0
  if [ "$1" -gt "$listed" ]; then
    echo "$1 tests of the gate ran, $(($1 - listed)) more than $LIST adds up to: add them to its first number" >&2
  else
    echo "$1 tests of the gate ran, $((listed - $1)) fewer than $LIST adds up to: add a line there, -$((listed - $1)), which
says where their property is checked now" >&2
  fi
  return 1
}

case "$#:$*" in
  0:) check_manifests && check_uses ;;
  1:[0-9]*) check_number "$1" ;;
  *) sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2 ;;
esac
