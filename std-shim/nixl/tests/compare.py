"""Goodput beside NIXL's own backend over UCX, in one process, round by round: medians of ratios.

Both have their progress threads, and both move the same bytes between the same two arrays, which are compared. Tells
whether the geometric mean of the medians, of lists whose entries have 1 MiB or more, is at least the limit: how fast a
machine is fails no test.
"""

import os
import statistics
import sys
import time

import numpy as np

from agents import agent, acquaint, descriptors, move, noise, prepare, register

LENGTH = 64 << 20
ROUNDS = int(os.environ.get("NIXL_TEST_ROUNDS", "15"))
LIMIT = 1.0
# (entries, bytes of each)
LISTS = [(1, 1 << 20), (1, 8 << 20), (1, 64 << 20), (64, 1 << 20), (256, 64 << 10), (4096, 4 << 10), (10_000, 256)]
SECONDS = 0.05


class Side:
    def __init__(self, backend, here, there):
        self.backend = backend
        self.a, self.b = agent("a", backend), agent("b", backend)
        self.regions = register(self.a, here, backend), register(self.b, there, backend)
        acquaint(self.a, self.b)

    def goodput(self, operation, local, remote, length):
        """Bytes a second, of transfers one after the other."""
        handle = prepare(self.a, operation, local, remote, "b", backend=self.backend)
        turns, start = 0, time.perf_counter()
        while turns < 2 or time.perf_counter() - start < SECONDS:
            state = self.a.transfer(handle)
            while state == "PROC":
                state = self.a.check_xfer_state(handle)
            assert state == "DONE", state
            turns += 1
        elapsed = time.perf_counter() - start
        self.a.release_xfer_handle(handle)
        return turns * length / elapsed


def main():
    here, there = noise(LENGTH, 1), noise(LENGTH, 2)
    sides = Side("POLYRAIL", here, there), Side("UCX", here, there)
    large = []
    print(f"{'list':>16} {'op':>5} {'ours':>7} {'UCX':>7} GB/s   ratio (lowest, highest)")
    for count, length in LISTS:
        stride = LENGTH // count
        local = descriptors(here, [(i * stride, length) for i in range(count)])
        order = np.random.default_rng(count).permutation(count)
        remote = descriptors(there, [(int(i) * stride, length) for i in order])
        for operation in ("WRITE", "READ"):
            rounds = []
            for turn in range(ROUNDS):
                # The second backend finds memory as the first left it.
                pair = {side: side.goodput(operation, local, remote, count * length) for side in sides[:: 1 - turn % 2 * 2]}
                rounds.append([pair[side] for side in sides])
            mine, theirs = (memory[:count * stride].reshape(count, stride)[:, :length] for memory in (here, there))
            assert (mine == theirs[order]).all(), f"{count} x {length}: bytes differ after a {operation}"
            ratios = sorted(ours / theirs for ours, theirs in rounds)
            ours, ucx = (statistics.median(column) / 1e9 for column in zip(*rounds))
            ratio = statistics.median(ratios)
            print(
                f"{count:>6} x {length:>7} {operation:>5} {ours:7.2f} {ucx:7.2f}        {ratio:.2f}"
                f" ({ratios[0]:.2f}, {ratios[-1]:.2f})",
                flush=True,
            )
            large += [ratio] if length >= 1 << 20 else []
    mean = statistics.geometric_mean(large)
    print(f"entries of 1 MiB or more, all together: {mean:.2f}")
    print(f"at least {LIMIT} of UCX: {'yes' if mean >= LIMIT else 'NO'}")
    # UCX's agents do not survive the end of the interpreter, with or without ours beside them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
