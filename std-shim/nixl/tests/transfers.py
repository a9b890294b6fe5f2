"""Descriptor lists, READ and WRITE, byte by byte."""

import itertools
import unittest

import numpy as np

from agents import IS_OURS, IS_OVER_TCP, Pair, agent, acquaint, descriptors, finish, move, noise, notes, prepare, register


def scattered(count, length, seed):
    """`count` places of `length` bytes in a random order, no two of which touch."""
    order = np.random.default_rng(seed).permutation(count)
    return [(int(place) * (length + 3), length) for place in order]


class Lists(Pair):
    def check(self, operation, count, length):
        local, remote = scattered(count, length, count), scattered(count, length, count + 1)
        before_here, before_there = self.here.copy(), self.there.copy()
        note = f"{operation} {count}".encode()
        state = move(self.a, operation, descriptors(self.here, local), descriptors(self.there, remote), "b", note)
        self.assertEqual(state, "DONE")
        for (mine, _), (theirs, _) in zip(local, remote):
            if operation == "WRITE":
                before_there[theirs : theirs + length] = before_here[mine : mine + length]
            else:
                before_here[mine : mine + length] = before_there[theirs : theirs + length]
        # The transferred bytes have arrived, and nothing else has changed.
        np.testing.assert_array_equal(self.here, before_here)
        np.testing.assert_array_equal(self.there, before_there)
        self.assertEqual(notes(self.b, "a", 1), [note])

    def test_lists_of_1_to_10_000_entries(self):
        for operation, (count, length) in itertools.product(
            ("WRITE", "READ"), ((1, 1), (1, 1 << 20), (2, 4097), (100, 999), (1000, 1), (10_000, 97))
        ):
            with self.subTest(operation=operation, count=count, length=length):
                self.check(operation, count, length)

    def test_empty_entries_are_left_out(self):
        length, before = self.LENGTH, self.there.copy()
        for empty in (0, 100, length):
            for entries in ([(empty, 0)], [(empty, 0), (8, 64)], [(8, 64), (empty, 0)], [(empty, 0)] * 3):
                with self.subTest(entries=entries):
                    lists = descriptors(self.here, entries), descriptors(self.there, entries)
                    self.assertEqual(move(self.a, "WRITE", *lists, "b", b"done"), "DONE")
                    self.assertEqual(notes(self.b, "a", 1), [b"done"])
        before[8:72] = self.here[8:72]
        np.testing.assert_array_equal(self.there, before)

    def test_both_ways_at_once(self):
        half = self.LENGTH // 2
        ours, theirs = self.here.copy(), self.there.copy()
        places = descriptors(self.here, [(0, half)]), descriptors(self.there, [(half, half)])
        forth = prepare(self.a, "WRITE", descriptors(self.here, [(0, half)]), descriptors(self.there, [(0, half)]), "b")
        back = prepare(self.b, "WRITE", places[1], descriptors(self.here, [(half, half)]), "a")
        self.a.transfer(forth), self.b.transfer(back)
        self.assertEqual((finish(self.a, forth), finish(self.b, back)), ("DONE", "DONE"))
        np.testing.assert_array_equal(self.there[:half], ours[:half])
        np.testing.assert_array_equal(self.here[half:], theirs[half:])
        self.a.release_xfer_handle(forth), self.b.release_xfer_handle(back)

    def test_many_transfers_at_once(self):
        count, length = 200, 4096
        before = self.here.copy()
        handles = [
            prepare(
                self.a,
                "WRITE",
                descriptors(self.here, [(i * length, length)]),
                descriptors(self.there, [(i * length, length)]),
                "b",
                f"{i}".encode(),
            )
            for i in range(count)
        ]
        for handle in handles:
            self.assertNotEqual(self.a.transfer(handle), "ERR")
        for handle in handles:
            self.assertEqual(finish(self.a, handle), "DONE")
            self.a.release_xfer_handle(handle)
        np.testing.assert_array_equal(self.there[: count * length], before[: count * length])
        self.assertEqual(sorted(notes(self.b, "a", count), key=int), [f"{i}".encode() for i in range(count)])

    def test_a_transfer_is_posted_again(self):
        handle = prepare(self.a, "WRITE", descriptors(self.here, [(0, 999)]), descriptors(self.there, [(5, 999)]), "b")
        for turn in range(20):
            self.here[:999] = noise(999, turn)
            if self.a.transfer(handle, f"{turn}".encode()) == "PROC":
                self.assertEqual(finish(self.a, handle), "DONE")
            np.testing.assert_array_equal(self.there[5:1004], self.here[:999])
            self.assertEqual(notes(self.b, "a", 1), [f"{turn}".encode()])
        self.a.release_xfer_handle(handle)

    def test_lists_prepared_before(self):
        count, length = 512, 1024
        mine = [(self.here.ctypes.data + i * length, length, 0) for i in range(count)]
        theirs = [(self.there.ctypes.data + i * length, length, 0) for i in range(count)]
        local = self.a.prep_xfer_dlist("NIXL_INIT_AGENT", mine, "DRAM")
        remote = self.a.prep_xfer_dlist("b", theirs, "DRAM")
        order = np.random.default_rng(3).permutation(count)
        handle = self.a.make_prepped_xfer("WRITE", local, list(range(count)), remote, order, b"")
        if self.a.transfer(handle) == "PROC":
            self.assertEqual(finish(self.a, handle), "DONE")
        for index in range(count):
            place = int(order[index]) * length
            np.testing.assert_array_equal(
                self.there[place : place + length], self.here[index * length : (index + 1) * length]
            )
        for handle_ in (handle, local, remote):
            handle_.release()

    def test_within_one_agent(self):
        before = self.here.copy()
        half = self.LENGTH // 2
        note = b"to myself"
        for operation, source in (("WRITE", 0), ("READ", half)):
            state = move(
                self.a, operation, descriptors(self.here, [(0, half)]), descriptors(self.here, [(half, half)]), "a", note
            )
            self.assertEqual(state, "DONE")
            np.testing.assert_array_equal(self.here[:half], before[:half])
            np.testing.assert_array_equal(self.here[half:], before[:half])
            self.assertEqual(notes(self.a, "a", 1), [note])


@unittest.skipUnless(IS_OURS, "parameters of ours")
class OneRail(Lists):
    PARAMETERS = {"rails": "1"}


@unittest.skipUnless(IS_OURS, "parameters of ours")
class EightRails(Lists):
    PARAMETERS = {"rails": "8", "devices": "soft0,soft1,soft2", "fragment": "4K"}


@unittest.skipUnless(IS_OURS and not IS_OVER_TCP, "devices of the software NIC")
class UnequalRails(Lists):
    PARAMETERS = {"devices": "soft0,soft1", "device_mbps": "soft0=400000,soft1=100000", "fragment": "4K"}


@unittest.skipUnless(IS_OURS, "others need both agents polled")
class NoProgressThread(Lists):
    PROGRESS = False


class Agents(unittest.TestCase):
    def test_six_agents_all_to_all(self):
        length = 10_000
        names = [f"agent {i}" for i in range(6)]
        agents = {name: agent(name) for name in names}
        memory = {name: noise(length * len(names), i) for i, name in enumerate(names)}
        regions = {name: register(agents[name], memory[name]) for name in names}
        first = {name: memory[name].copy() for name in names}
        for one, other in itertools.combinations(names, 2):
            acquaint(agents[one], agents[other])
        handles = []
        for (i, one), (j, other) in itertools.permutations(enumerate(names), 2):
            # Each agent writes its own part to the copies of all other agents.
            part = [(i * length, length)]
            handle = prepare(
                agents[one], "WRITE", descriptors(memory[one], part), descriptors(memory[other], part), other, b"hello"
            )
            self.assertNotEqual(agents[one].transfer(handle), "ERR")
            handles.append((agents[one], handle))
        for owner, handle in handles:
            self.assertEqual(finish(owner, handle), "DONE")
            owner.release_xfer_handle(handle)
        for name, (i, one) in itertools.product(names, enumerate(names)):
            np.testing.assert_array_equal(
                memory[name][i * length : (i + 1) * length], first[one][i * length : (i + 1) * length]
            )
            if one != name:
                self.assertEqual(notes(agents[name], one, 1), [b"hello"])
        for name in names:
            agents[name].deregister_memory(regions[name])


if __name__ == "__main__":
    unittest.main()
