"""Estimates of what transfers cost, before and after there are measurements."""

import time
import unittest

from nixl_cu12 import _bindings as nixl

from agents import IS_OVER_TCP, Pair, descriptors, finish, move, prepare, words

# Two software NICs of this rate; TCP's has no limit.
BYTES_PER_SECOND = 20_000_000


class Costs(Pair):
    LENGTH = 2 << 20
    PARAMETERS = {"rails": "2", "devices": "soft0,soft1"}
    if not IS_OVER_TCP:
        PARAMETERS["software_bytes_per_second"] = str(BYTES_PER_SECOND)

    def estimate(self, operation, length):
        local, remote = descriptors(self.here, [(0, length)]), descriptors(self.there, [(0, length)])
        handle = prepare(self.a, operation, local, remote, "b")
        # Not by estimate_xfer_cost, which in 1.5.1 returns "UNKNOWN" as the method of every backend.
        duration, margin, method = self.a.agent.estimateXferCost(handle._handle)
        self.a.release_xfer_handle(handle)
        self.assertEqual(nixl.nixl_cost_t(method), nixl.NIXL_COST_ANALYTICAL_BACKEND)
        self.assertGreater(duration, 0)
        self.assertGreater(margin, 0)
        return duration, margin

    def transfer(self, operation, length):
        """Moves this many bytes, and returns how many microseconds that took at most."""
        local, remote = descriptors(self.here, [(0, length)]), descriptors(self.there, [(0, length)])
        handle = prepare(self.a, operation, local, remote, "b")
        begin = time.monotonic()
        self.a.transfer(handle)
        others = () if self.PROGRESS else (self.b,)
        self.assertEqual(finish(self.a, handle, others), "DONE")
        took = time.monotonic() - begin
        self.a.release_xfer_handle(handle)
        return took * 1e6

    def test_there_is_an_estimate_before_the_first_transfer(self):
        for operation in ("WRITE", "READ"):
            short, _ = self.estimate(operation, 1)
            long, margin = self.estimate(operation, self.LENGTH)
            self.assertGreater(long, short)
            # The rate of these devices is unknown.
            self.assertGreater(margin, long // 2)

    def test_estimates_follow_what_transfers_took(self):
        self.transfer("WRITE", 1)
        took = []
        for operation in ("WRITE", "READ"):
            took += [self.transfer(operation, self.LENGTH) for _ in range(8)]
            duration, _ = self.estimate(operation, self.LENGTH)
            self.assertLess(duration, 1.1 * max(took))
            if not IS_OVER_TCP:
                self.assertGreater(duration, 0.5e6 * self.LENGTH / (2 * BYTES_PER_SECOND))
            self.assertLessEqual(self.estimate(operation, self.LENGTH // 8)[0], duration)


class NoProgressThread(Costs):
    PROGRESS = False


@unittest.skipIf(IS_OVER_TCP, "needs devices of a known rate")
class Ended(Costs):
    # Two seconds for everything, over one rail: nothing can be taken back there, so a release ends the connection.
    PARAMETERS = Costs.PARAMETERS | {"rails": "1", "software_bytes_per_second": str(Costs.LENGTH // 2)}
    test_there_is_an_estimate_before_the_first_transfer = None
    test_estimates_follow_what_transfers_took = None

    def test_the_next_connection_has_the_measurements(self):
        for _ in range(3):
            self.transfer("WRITE", 1 << 17)
        before = self.estimate("WRITE", 1 << 17)
        everything = descriptors(self.here, [(0, self.LENGTH)]), descriptors(self.there, [(0, self.LENGTH)])
        lost = prepare(self.a, "WRITE", *everything, "b")
        self.assertEqual(self.a.transfer(lost), "PROC")
        with words() as said:
            self.a.release_xfer_handle(lost)
        self.assertIn("a released transfer was still in progress after a second", said[0])
        self.assertEqual(self.estimate("WRITE", 1 << 17), before)
        self.assertEqual(move(self.a, "WRITE", *(side[:1] for side in everything), "b"), "DONE")


if __name__ == "__main__":
    unittest.main()
