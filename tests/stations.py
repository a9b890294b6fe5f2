"""Runs within gdb, for tests/stations.sh: prints which functions of polyrail-core a request comes by.

A station is a function of core/src that the engine or the program calls. These do not count:
- closures, which are read with the function around them;
- implementations of the standard library's traits: derives, operators, conversions, iterators, guards;
- what another crate's macro writes: the methods of bitflags;
- what the device calls: constructors of completions, for example;
- functions of one or two lines: accessors and delegations, which are read at a glance.
The last line of the output counts those of one or two lines as well.
"""

import re
import subprocess
import sys

import gdb

CORE = "core/src/"
GLANCE_LINES = 2

entered = []


class Entry(gdb.Breakpoint):
    """Takes note of every time that a function is entered on the request's way."""

    def __init__(self, address, name):
        super().__init__(f"*{address:#x}", internal=True)
        place = gdb.find_pc_line(address)
        self.file = place.symtab.filename if place.symtab else ""
        self.name = re.sub(r"<.*?>::|<.*>", "", name.rsplit("::", 1)[-1])
        self.counts = self.file.startswith(CORE) and not re.search(r"{{closure|^<.* as core::", name)
        self.lines = body_lines(self.file, place.line) if self.counts else 0

    def stop(self):
        if self.counts and is_on_the_way():
            entered.append(self)
        return False


def body_lines(file, line):
    """The lines between the braces of the function that begins at or before this line."""
    with open(file) as source:
        lines = source.read().splitlines()
    first = next(at for at in range(line - 1, -1, -1) if re.search(r"\bfn \w", lines[at]))
    opening = next(at for at in range(first, len(lines)) if lines[at].endswith(("{", "}")))
    if lines[opening].endswith("}"):
        return 1
    indent = re.match(" *", lines[first])[0]
    closing = next(at for at in range(opening, len(lines)) if lines[at].startswith(indent + "}"))
    return closing - opening - 1


def callers(frame):
    while (frame := frame.older()) is not None:
        yield frame


def file_of(frame):
    symtab = frame.find_sal().symtab
    return symtab.filename if symtab else ""


def is_watched(frame):
    return re.fullmatch(r"stations::(post|poll)", frame.name() or "") is not None


def is_on_the_way():
    """Whether the engine calls, or the watched part of the program: neither the device nor set-up."""
    ours = (frame for frame in callers(gdb.newest_frame()) if file_of(frame).startswith((CORE, "tests/")))
    caller = next(ours)
    if file_of(caller).startswith("tests/"):
        return is_watched(caller)
    return any(map(is_watched, callers(caller)))


def changes(stations):
    return sum(before.file != after.file for before, after in zip(stations, stations[1:]))


def functions_of_core():
    symbols = subprocess.run(
        ["nm", "--demangle", gdb.current_progspace().filename],
        capture_output=True, check=True, text=True,
    )
    for symbol in symbols.stdout.splitlines():
        found = re.match(r"([0-9a-f]+) [tT] (.*polyrail_core.*)", symbol)
        if found:
            yield int(found[1], 16), found[2]


breakpoints = [Entry(address, name) for address, name in functions_of_core()]
gdb.execute("run", to_string=True)
stations = [station for station in entered if station.lines > GLANCE_LINES]
# gdb is silent, and what Python prints is gdb's.
out = sys.__stdout__
for station in stations:
    print(f"{station.file}: {station.name}", file=out)
print(f"{len(stations)} stations, {changes(stations)} changes of file", file=out)
print(f"{len(entered)} and {changes(entered)} with functions of one or two lines", file=out)
