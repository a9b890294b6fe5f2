"""Set up and torn down again and again: file descriptors, threads and memory are what they were."""

import ctypes
import gc
import itertools
import operator
import os
import time
import unittest

from agents import BACKEND, TIMEOUT_S, Pair, acquaint, agent, descriptors, move, noise, notes, prepare, register
from refusals import ERRORS, WRONG_SETTINGS, wrong_descriptors

CYCLES = int(os.environ.get("NIXL_TEST_CYCLES", "1000"))


class Allocated(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>"""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Allocated


def running():
    """(file descriptors, threads) of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def used():
    """(mappings, bytes allocated and not freed, resident pages) of this process. What threads keep for their next
    allocation would count as allocated: with glibc.malloc.tcache_count=0 in GLIBC_TUNABLES they keep nothing. With
    glibc.malloc.arena_max=1 they share one heap: otherwise one more thread at the same time than ever before costs a
    heap of its own, some 200 pages, which stays."""
    allocated = libc.mallinfo2()
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as statm:
        return len(maps.readlines()), allocated.uordblks + allocated.hblkhd, int(statm.read().split()[1])


def settled():
    """What runs, and what is used at least, when nothing ends in the background any more."""
    now, least, since = running(), used(), time.monotonic()
    while time.monotonic() < since + 0.1:
        time.sleep(0.01)
        least = tuple(map(min, least, used()))
        if now != (now := running()):
            least, since = used(), time.monotonic()
    return now, least


def cycle(progress):
    a, b = agent("a", progress=progress), agent("b", progress=progress)
    here, there = noise(1 << 16, 1), noise(1 << 16, 2)
    mine, theirs = register(a, here), register(b, there)
    acquaint(a, b)
    places = descriptors(here, [(0, 1 << 16)]), descriptors(there, [(0, 1 << 16)])
    assert move(a, "WRITE", *places, "b", b"note") == "DONE"
    assert (here == there).all()
    assert notes(b, "a", 1) == [b"note"]
    left = prepare(a, "READ", *places, "b")
    a.transfer(left)
    a.release_xfer_handle(left)
    a.deregister_memory(mine), b.deregister_memory(theirs)


class Counted:
    def check(self, run, cycles=CYCLES):
        for _ in range(cycles // 5):
            run()
        gc.collect()
        runs, before = settled()
        # The C library keeps stacks for later threads, and more threads than before may have run at
        # once. The limit is half of the smallest possible leak per cycle: 16 bytes, or a page.
        most = (10, cycles * 16 / 2, cycles / 2)
        for _ in range(cycles):
            run()
        gc.collect()
        # The far end notices a closed connection a moment later, and closes its files before it
        # frees memory.
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            now = running()
            grown = tuple(map(operator.sub, used(), before))
            is_left = now != runs or any(map(operator.ge, grown, most))
            if not is_left or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.assertFalse(is_left, f"descriptors and threads {now}, {runs} before; mappings, bytes and pages more: {grown}")


class Cycles(Counted, unittest.TestCase):
    def test_agents(self):
        progress = itertools.cycle([True, False])
        self.check(lambda: cycle(next(progress)))


class Parts(Counted, Pair):
    def test_registrations(self):
        memory = noise(1 << 16)
        self.check(lambda: self.a.deregister_memory(register(self.a, memory)))

    def test_transfers(self):
        places = descriptors(self.here, [(0, 999)]), descriptors(self.there, [(0, 999)])
        self.check(lambda: move(self.a, "READ", *places, "b"))

    def test_connections(self):
        metadata = self.b.get_agent_metadata()

        def run():
            self.a.remove_remote_agent("b")
            self.a.add_remote_agent(metadata)
            self.a.make_connection("b")

        self.check(run)


class Refusals(Counted, Pair):
    def setUp(self):
        super().setUp()
        # Every refusal has a message.
        self.saved = os.dup(2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)

    def tearDown(self):
        os.dup2(self.saved, 2)
        os.close(self.saved)
        super().tearDown()

    def refused(self, call, *arguments, cycles=CYCLES):
        def run():
            with self.assertRaises(ERRORS):
                call(*arguments)

        with self.subTest(call=call.__name__, arguments=arguments):
            self.check(run, cycles)

    def test_settings(self):
        for name, value in WRONG_SETTINGS:
            self.refused(agent, "c", BACKEND, True, {name: value})

    def test_descriptors(self):
        for local, remote, *to in wrong_descriptors(self.here, self.there):
            self.refused(prepare, self.a, "WRITE", local, remote, *(to or "b"))

    def test_registrations(self):
        start = self.here.ctypes.data
        for place, kind in (
            ((start, 0, 0, ""), "DRAM"),
            ((start, (1 << 64) - 1, 0, ""), "DRAM"),
            ((start, 4096, 0, ""), "VRAM"),
            ((0, 4096, 3, "/nowhere"), "FILE"),
        ):
            self.refused(self.a.register_memory, [place], kind, [BACKEND])

    def test_metadata(self):
        metadata = self.b.get_agent_metadata()
        self.a.remove_remote_agent("b")
        for place in (metadata.index(b"polyrail-nixl-2"), metadata.index(b"PLK") + 5):
            spoilt = bytearray(metadata)
            spoilt[place] ^= 0x20
            self.refused(self.a.add_remote_agent, bytes(spoilt))

    def test_peers(self):
        def connect(name, metadata):
            self.a.add_remote_agent(metadata)
            try:
                self.a.make_connection(name)
            finally:
                self.a.remove_remote_agent(name)

        differs, gone = agent("differs", parameters={"rails": "3"}), agent("gone")
        metadata = gone.get_agent_metadata()
        del gone
        self.refused(connect, "gone", metadata)
        # Each attempt waits for the peer's answer, 10 ms.
        self.refused(connect, "differs", differs.get_agent_metadata(), cycles=CYCLES // 4)


if __name__ == "__main__":
    unittest.main()
