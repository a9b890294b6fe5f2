"""Notifications: with payload, in order, behind the data, and alone."""

import time
import unittest

import numpy as np
from nixl_cu12 import _bindings as nixl

from agents import IS_OURS, TIMEOUT_S, Pair, agent, acquaint, descriptors, finish, move, notes, prepare, words
from relay import Relay


class Notifications(Pair):
    def test_of_all_lengths_in_order(self):
        lengths = [0, 1, 2, 4091, 4092, 4093, 8184, 8185, 100_000, 3, 1 << 20]
        sent = [bytes(np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)) for n in lengths]
        for note in sent:
            self.a.send_notif("b", note)
        got = notes(self.b, "a", len(sent))
        self.assertEqual([len(note) for note in got], lengths)
        self.assertEqual(got, sent)

    def test_more_than_there_are_receives(self):
        sent = [b"%d" % i for i in range(1000)]
        for note in sent:
            self.a.send_notif("b", note)
        self.assertEqual(notes(self.b, "a", len(sent)), sent)

    @unittest.skipUnless(IS_OURS, "others send it when the transfer is looked at")
    def test_come_after_the_data(self):
        # Back to front, so that there is a request for each.
        places = [(start, self.LENGTH // 16) for start in range(0, self.LENGTH, self.LENGTH // 16)]
        handle = prepare(
            self.a, "WRITE", descriptors(self.here, places), descriptors(self.there, places[::-1]), "b", b"x"
        )
        for turn in range(20):
            self.here[:] = turn
            self.a.transfer(handle, b"%d" % turn)
            # The transfer was not polled: the notification alone shows that it is done.
            self.assertEqual(notes(self.b, "a", 1), [b"%d" % turn])
            self.assertTrue((self.there == turn).all())
            self.assertEqual(finish(self.a, handle), "DONE")
        self.a.release_xfer_handle(handle)

    @unittest.skipUnless(IS_OURS, "others send it when the transfer is looked at")
    def test_reads_tell_when_they_are_done(self):
        handle = prepare(
            self.a, "READ", descriptors(self.here, [(0, 5000)]), descriptors(self.there, [(0, 5000)]), "b"
        )
        self.a.transfer(handle, b"you may have it back")
        self.assertEqual(notes(self.b, "a", 1), [b"you may have it back"])
        np.testing.assert_array_equal(self.here[:5000], self.there[:5000])
        self.assertEqual(finish(self.a, handle), "DONE")
        self.a.release_xfer_handle(handle)

    @unittest.skipUnless(IS_OURS, "a limit of ours")
    def test_longer_than_they_may_be(self):
        places = descriptors(self.here, [(0, 500)]), descriptors(self.there, [(0, 500)])
        before = self.there.copy()
        too_long = bytes((64 << 20) + 1)
        with words(), self.assertRaises(nixl.nixlInvalidParamError):
            self.a.send_notif("b", too_long)
        handle = prepare(self.a, "WRITE", *places, "b")
        with words(), self.assertRaises(nixl.nixlInvalidParamError):
            self.a.transfer(handle, too_long)
        np.testing.assert_array_equal(self.there, before)
        # Neither harms the transfer or the connection.
        self.a.transfer(handle, b"short enough")
        self.assertEqual(notes(self.b, "a", 1), [b"short enough"])
        self.assertEqual(finish(self.a, handle), "DONE")
        np.testing.assert_array_equal(self.there[:500], self.here[:500])
        self.a.release_xfer_handle(handle)

    @unittest.skipUnless(IS_OURS, "a limit of ours")
    def test_are_held_back_while_none_is_taken(self):
        """A receiver keeps at most 68 MiB, and a sender 256 MiB; then the sender is refused."""
        sent = 0
        with words() as said, self.assertRaises(nixl.nixlNotAllowedError):
            while sent < 400:
                self.a.send_notif("b", b"%d" % sent + bytes(1 << 20))
                sent += 1
        self.assertIn("agent b does not take notifications", said[0])
        self.assertLess(sent, 256 + 68)
        # Transfers with data still end.
        places = descriptors(self.here, [(0, 500)]), descriptors(self.there, [(0, 500)])
        self.assertEqual(move(self.a, "WRITE", *places, "b"), "DONE")
        got = notes(self.b, "a", sent)
        self.assertEqual([int(note.rstrip(b"\0")) for note in got], list(range(sent)))
        self.a.send_notif("b", b"go on")
        self.assertEqual(notes(self.b, "a", 1), [b"go on"])

    @unittest.skipUnless(IS_OURS, "a limit of ours")
    def test_go_on_though_the_link_lost_the_report_that_some_were_taken(self):
        c = agent("c")
        relay = Relay(self.b.get_agent_metadata())
        self.addCleanup(relay.close)
        c.add_remote_agent(relay.metadata)
        c.make_connection("b")
        relay.lose()
        sent = [b"%d" % number + bytes(1 << 20) for number in range(40)]
        for note in sent:
            c.send_notif("b", note)
        # As many as come before the sender waits.
        got = notes(self.b, "c", 15)
        deadline = time.monotonic() + TIMEOUT_S
        while b"taken ".hex().encode() not in relay.lost:
            self.assertLess(time.monotonic(), deadline, "nothing was reported")
            time.sleep(0.01)
        relay.cut()
        got += notes(self.b, "c", len(sent) - len(got))
        self.assertEqual(got, sent)

    def test_both_ways_from_both_sides(self):
        for turn in range(100):
            self.a.send_notif("b", b"ping %d" % turn)
            self.assertEqual(notes(self.b, "a", 1), [b"ping %d" % turn])
            self.b.send_notif("a", b"pong %d" % turn)
            self.assertEqual(notes(self.a, "b", 1), [b"pong %d" % turn])

    @unittest.skipUnless(IS_OURS, "a promise of ours")
    def test_arrive_though_their_agent_ends_at_once(self):
        c = agent("c")
        acquaint(c, self.b)
        c.send_notif("b", b"farewell")
        del c
        self.assertEqual(notes(self.b, "c", 1), [b"farewell"])


@unittest.skipUnless(IS_OURS, "parameters of ours")
class SlowDevices(Pair):
    """Rails that are done at different times: only the notification's own order keeps it behind the data."""

    PARAMETERS = {"devices": "soft0,soft1", "rails": "5", "software_bytes_per_second": "100000000"}

    test_come_after_the_data = Notifications.test_come_after_the_data
    test_reads_tell_when_they_are_done = Notifications.test_reads_tell_when_they_are_done


@unittest.skipUnless(IS_OURS, "others need both agents polled")
class NoProgressThread(Pair):
    PROGRESS = False

    def test_arrive_while_nobody_looks(self):
        handle = prepare(self.a, "WRITE", descriptors(self.here, [(0, 99)]), descriptors(self.there, [(0, 99)]), "b")
        for turn in range(500):
            if self.a.transfer(handle, b"%d" % turn) == "PROC":
                self.assertEqual(finish(self.a, handle), "DONE")
        self.a.release_xfer_handle(handle)
        time.sleep(0.1)
        self.assertEqual(notes(self.b, "a", 500), [b"%d" % turn for turn in range(500)])


if __name__ == "__main__":
    unittest.main()
