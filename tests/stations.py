"""Runs within gdb, for tests/stations.sh: prints which functions of polyrail-core run on each way.

A station is a function of core/src that the engine or the program calls. These do not count:
- closures, which are read with the function around them;
- implementations of the standard library's traits: derives, operators, conversions, iterators, guards;
- what another crate's macro writes: the methods of bitflags;
- what the device calls: constructors of completions, for example;
- functions of one or two lines of code: accessors and delegations, which are read at a glance.
The right half of the table counts those of one or two lines as well.

The environment has the names of the ways in STATIONS_WAYS, and STATIONS_LIST is not empty if stations are to be
listed.
"""

import os
import re
import subprocess
import sys

import gdb

CORE = "core/src/"
# The engine, the program and the devices: the others are the standard library and dependencies.
OURS = (CORE, "core/examples/", "tests/")
# The calls of the program that are traced: see tests/examples/stations/watched.rs.
WATCHED = r"stations::watched::\w+(<.*>)?"
GLANCE_LINES = 2
FIGURES = ("changes of file", "files")
TABLE = "{:8} {:>9} {:>16} {:>6} | {:>10} {:>16} {:>6}"

entered = []


class Entry(gdb.Breakpoint):
    """Takes note of every time that a function is entered on the request's way."""

    def __init__(self, address, name):
        super().__init__(f"*{address:#x}", internal=True)
        place = gdb.find_pc_line(address)
        self.file = path_of(place.symtab)
        self.name = re.sub(r"<.*?>::|<.*>", "", name.rsplit("::", 1)[-1])
        is_ours = self.file.startswith(CORE) and not re.search(r"{{closure|^<.* as core::", name)
        self.lines = body_lines(self.file, place.line) if is_ours else None
        self.counts = self.lines is not None

    def stop(self):
        if self.counts and is_on_the_way():
            entered.append(self)
        return False


def body_lines(file, line):
    """The lines of code between the braces of the function that begins at or before this line.

    None if there is no such function: a derive, a macro or the constructor of a variant is at this line.
    """
    with open(file) as source:
        lines = source.read().splitlines()
    before = range(line - 1, -1, -1)
    first = next((at for at in before if re.search(r"\bfn \w", lines[at])), None)
    if first is None:
        return None
    opening = next(at for at in range(first, len(lines)) if lines[at].endswith(("{", "}")))
    if lines[opening].endswith("}"):
        return 1
    indent = re.match(" *", lines[first])[0]
    closing = next(at for at in range(opening, len(lines)) if lines[at].startswith(indent + "}"))
    # A comment does not make a function longer to follow.
    body = (line.strip() for line in lines[opening + 1 : closing])
    return sum(1 for line in body if line and not line.startswith("//"))


def callers(frame):
    while (frame := frame.older()) is not None:
        yield frame


def path_of(symtab):
    return os.path.normpath(symtab.filename) if symtab else ""


def file_of(frame):
    return path_of(frame.find_sal().symtab)


def is_watched(frame):
    return re.fullmatch(WATCHED, frame.name() or "") is not None


def is_on_the_way():
    """Whether the engine calls, or the watched part of the program: neither the device nor set-up."""
    ours = (frame for frame in callers(gdb.newest_frame()) if file_of(frame).startswith(OURS))
    caller = next(ours)
    if file_of(caller).startswith(CORE):
        return any(map(is_watched, callers(caller)))
    return is_watched(caller)


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


def figures(functions):
    files = {function.file for function in functions}
    return len(functions), changes(functions), len(files)


breakpoints = [Entry(address, name) for address, name in functions_of_core()]
# gdb is silent, and what Python prints is gdb's.
out = sys.__stdout__
rows = []
for way in os.environ["STATIONS_WAYS"].split():
    entered.clear()
    gdb.execute(f"run {way}", to_string=True)
    if gdb.parse_and_eval("$_exitcode") != 0:
        sys.exit(f"the program of the way {way} failed")
    stations = [function for function in entered if function.lines > GLANCE_LINES]
    rows.append((way, *figures(stations), *figures(entered)))
    if os.environ["STATIONS_LIST"]:
        print(f"{way}:", file=out)
        for station in stations:
            print(f"  {station.file}: {station.name}", file=out)
        print(file=out)

print(f"{'':9}functions of three or more lines | all functions", file=out)
print(TABLE.format("way", "stations", *FIGURES, "functions", *FIGURES), file=out)
for row in rows:
    print(TABLE.format(*row), file=out)
