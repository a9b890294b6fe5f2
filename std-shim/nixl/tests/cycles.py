"""Set up and torn down again and again: file descriptors, threads and memory are what they were."""

import gc
import os
import time
import unittest

from agents import Pair, acquaint, agent, descriptors, move, noise, notes, prepare, register

CYCLES = int(os.environ.get("NIXL_TEST_CYCLES", "100"))


def used():
    """(file descriptors, threads, KiB of memory) of this process."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * 4


def settled():
    """What is used when nothing ends in the background any more."""
    before, since = used(), time.monotonic()
    deadline = since + 5
    while time.monotonic() < min(since + 0.5, deadline):
        time.sleep(0.01)
        now = used()
        if now[:2] != before[:2]:
            before, since = now, time.monotonic()
    return before


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


class Cycles(unittest.TestCase):
    def check(self, run, cycles):
        for _ in range(max(cycles // 5, 5)):
            run()
        gc.collect()
        fds, threads, memory = settled()
        for _ in range(cycles):
            run()
        gc.collect()
        # The far end learns of an end a moment later.
        deadline = time.monotonic() + 5
        while (after := used())[:2] != (fds, threads) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(after[:2], (fds, threads))
        # The allocator and NIXL's own parts keep some; per cycle that is far less than anything of ours.
        self.assertLess(after[2] - memory, 2000 + 8 * cycles)

    def test_agents(self):
        self.check(lambda: cycle(True), CYCLES)

    def test_agents_without_progress_thread(self):
        self.check(lambda: cycle(False), max(CYCLES // 5, 5))


class Parts(Pair):
    check = Cycles.check

    def test_registrations(self):
        memory = noise(1 << 16)
        self.check(lambda: self.a.deregister_memory(register(self.a, memory)), 10 * CYCLES)

    def test_transfers(self):
        places = descriptors(self.here, [(0, 999)]), descriptors(self.there, [(0, 999)])
        self.check(lambda: move(self.a, "READ", *places, "b"), 10 * CYCLES)

    def test_connections(self):
        metadata = self.b.get_agent_metadata()

        def run():
            self.a.remove_remote_agent("b")
            self.a.add_remote_agent(metadata)
            self.a.make_connection("b")

        self.check(run, CYCLES)

    def test_refusals(self):
        def run():
            try:
                agent("c", parameters={"rails": "nine"})
            except Exception:
                return
            raise AssertionError("not refused")

        saved = os.dup(2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            self.check(run, 10 * CYCLES)
        finally:
            os.dup2(saved, 2)
            os.close(saved)


if __name__ == "__main__":
    unittest.main()
