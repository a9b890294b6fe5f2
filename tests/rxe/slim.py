#!/usr/bin/env python3
"""Leaves the code for GPUs out of NCCL's library, nine tenths of it, so that it fits into a guest.

    slim.py FROM TO

Where it was, nothing is mapped: nobody looks there who has no GPU. Symbols stay.
"""

import struct
import sys

PAGE = 4096
LOAD, NOTE = 1, 4
HEADER = "<IIQQQQQQ"
GPU_SECTIONS = (b"__nv_relfatbin", b".nv_fatbin")

source = bytearray(open(sys.argv[1], "rb").read())
(first,) = struct.unpack_from("<Q", source, 32)
(sections,) = struct.unpack_from("<Q", source, 40)
count, section_size, section_count, names_at = struct.unpack_from("<HHHH", source, 56)
headers = [list(struct.unpack_from(HEADER, source, first + at * struct.calcsize(HEADER))) for at in range(count)]


def section(index):
    return list(struct.unpack_from("<IIQQQQIIQQ", source, sections + index * section_size))


names = section(names_at)[4]
all_sections = [section(index) for index in range(section_count)]
name = lambda entry: bytes(source[names + entry[0] : source.index(0, names + entry[0])])
gpu = [entry for entry in all_sections if name(entry) in GPU_SECTIONS]
# Offsets and addresses are the same in the first segment, which all of it is in.
assert len(gpu) == 2 and all(entry[3] == entry[4] for entry in gpu), "another layout than expected"
begin = -(-min(entry[4] for entry in gpu) // PAGE) * PAGE
end = max(entry[4] + entry[5] for entry in gpu) // PAGE * PAGE
gone = end - begin

# The first segment is cut in two; there is room for one more header, since the note goes.
text = next(header for header in headers if header[0] == LOAD)
rest = [header for header in headers if header is not text and header[0] != NOTE]
alignment = PAGE
before = [LOAD, text[1], 0, text[3], text[4], begin, begin, alignment]
behind = [LOAD, text[1], begin, end, end, text[5] - end, text[6] - end, alignment]
assert text[2] == 0 and text[3] == 0, "another layout than expected"
for header in rest:
    if header[2] >= end:
        header[2] -= gone
    if header[0] == LOAD:
        header[7] = alignment
for at, header in enumerate([before, behind] + rest):
    struct.pack_into(HEADER, source, first + at * struct.calcsize(HEADER), *header)
for at, entry in enumerate(all_sections):
    if entry[4] >= end:
        struct.pack_into("<Q", source, sections + at * section_size + 24, entry[4] - gone)
struct.pack_into("<Q", source, 40, sections - gone)
# Debugging stays behind as well: sections at the end are cut to what symbols need.
with open(sys.argv[2], "wb") as target:
    target.write(source[:begin])
    target.write(source[end:])
