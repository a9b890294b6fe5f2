"""What must be refused: descriptors, peers, metadata, settings; and peers that go away."""

import os
import pathlib
import re
import time
import unittest

import numpy as np
from nixl_cu12 import _bindings as nixl

from agents import BACKEND, Pair, agent, acquaint, descriptors, finish, move, noise, notes, prepare, register, words

ERRORS = (
    nixl.nixlBackendError,
    nixl.nixlInvalidParamError,
    nixl.nixlMismatchError,
    nixl.nixlNotAllowedError,
    nixl.nixlNotFoundError,
    nixl.nixlNotSupportedError,
    nixl.nixlRemoteDisconnectError,
    nixl.nixlUnknownError,
)


WRONG_SETTINGS = (
    ("backend", "sofware"),
    ("rails", "0"),
    ("rails", "9"),
    ("rails", "two"),
    ("rails", " 2"),
    ("rail_weights", "fast"),
    ("device_mbps", "soft0"),
    ("device_mbps", "soft0=0"),
    ("device_mbps", "=1"),
    ("device_mbps", "soft0=1,"),
    ("device_mbps", "no such=1"),
    ("fragment", "100"),
    ("fragment", "4G"),
    ("traffic_class", "256"),
    ("service_level", "16"),
    ("gid_index", "-1"),
    ("near", "gpu0"),
    ("qp_timeout", "32"),
    ("retries", "8"),
    ("healing", "yes"),
    ("stall_timeout_ms", "0"),
    ("connect_timeout_ms", "1.5"),
    ("port", "65536"),
    ("log_level", "loud"),
    ("interface", "no such"),
    ("token", "short"),
    ("rials", "2"),
)


def wrong_descriptors(mine, theirs):
    """Lists of two regions that make no transfer, and to whom if not to "b"."""
    here, there, length = mine.ctypes.data, theirs.ctypes.data, mine.nbytes
    good_here, good_there = descriptors(mine, [(0, 100)]), descriptors(theirs, [(0, 100)])
    # A length that wraps around the end of the address space.
    huge = (1 << 64) - 16
    return (
        ([(here + length + 1, 0, 0)], [(there + length + 1, 0, 0)]),
        ([(here - 1, 100, 0)], good_there),
        (good_here, [(there - 1, 100, 0)]),
        ([(here + length - 99, 100, 0)], good_there),
        (good_here, [(there + length - 99, 100, 0)]),
        ([(here, length + 1, 0)], [(there, length + 1, 0)]),
        ([(here + 16, huge, 0)], [(there + 16, huge, 0)]),
        (good_here, descriptors(theirs, [(0, 101)])),
        (good_here, good_there + good_there),
        (good_here, good_there, "nobody"),
    )


class Descriptors(Pair):
    def refused(self, local, remote, to="b"):
        with self.assertRaises(ERRORS):
            handle = prepare(self.a, "WRITE", local, remote, to)
            # Not reached; but if it is, the test must not crash.
            self.a.release_xfer_handle(handle)

    def test_wrong_ones(self):
        before = self.there.copy()
        for local, remote, *to in wrong_descriptors(self.here, self.there):
            self.refused(local, remote, *to)
        good_here, good_there = descriptors(self.here, [(0, 100)]), descriptors(self.there, [(0, 100)])
        self.assertEqual(move(self.a, "WRITE", good_here, good_there, "b"), "DONE")
        before[:100] = self.here[:100]
        np.testing.assert_array_equal(self.there, before)

    def test_registrations(self):
        for length in (0, (1 << 64) - 1):
            with self.assertRaises(ERRORS):
                self.a.register_memory([(self.here.ctypes.data, length, 0, "")], "DRAM", [BACKEND])
        with words() as said, self.assertRaises(ERRORS):
            self.a.register_memory([(self.here.ctypes.data, 4096, 0, "")], "VRAM", [BACKEND])
        self.assertIn("GPU 0", said[0])
        with self.assertRaises(ERRORS):
            self.a.register_memory([(0, 4096, 3, "/nowhere")], "FILE", [BACKEND])

    def test_memory_that_is_registered_no_more(self):
        extra = noise(4096)
        region = register(self.b, extra)
        self.a.remove_remote_agent("b")
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.b.deregister_memory(region)
        handle = prepare(self.a, "WRITE", descriptors(self.here, [(0, 64)]), descriptors(extra, [(0, 64)]), "b")
        before = extra.copy()
        # The peer is still there, so this is no disconnect.
        with words() as said, self.assertRaises(nixl.nixlBackendError):
            self.a.transfer(handle)
            finish(self.a, handle)
        self.assertIn("remote access error (status 10)", said[0])
        np.testing.assert_array_equal(extra, before)
        self.a.release_xfer_handle(handle)
        # The connection failed, too; a new one is made.
        good = descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)])
        self.assertEqual(move(self.a, "WRITE", *good, "b"), "DONE")


class Metadata(unittest.TestCase):
    def test_bytes_that_are_broken(self):
        """Every byte of ours in an agent's metadata is spoilt in turn: an error, or a peer that cannot be reached."""
        a, b = agent("a"), agent("b")
        memory, target = noise(4096, 1), noise(4096, 2)
        regions = register(a, memory), register(b, target)
        places = descriptors(memory, [(0, 64)]), descriptors(target, [(0, 64)])
        metadata, before = b.get_agent_metadata(), target.copy()
        # The address of the agent, and the keys of its region, which are last; NIXL checks its own
        # metadata.
        address = metadata.index(b"polyrail-nixl-2")
        keys = metadata.index(b"PLK")
        for place in (*range(address, address + 48), *range(keys, len(metadata) - 1)):
            with self.subTest(place=place, byte=metadata[place]), words(), self.assertRaises(ERRORS):
                spoilt = bytearray(metadata)
                spoilt[place] ^= 0x20
                name = a.add_remote_agent(bytes(spoilt)).decode()
                try:
                    move(a, "WRITE", *places, name)
                finally:
                    a.remove_remote_agent(name)
        np.testing.assert_array_equal(target, before)
        # No resources are left behind.
        self.assertEqual(move(a, "WRITE", *places, a.add_remote_agent(metadata).decode()), "DONE")
        a.deregister_memory(regions[0]), b.deregister_memory(regions[1])

    def test_of_an_agent_that_is_gone(self):
        a, b = agent("a"), agent("b")
        memory, target = noise(4096, 1), noise(4096, 2)
        mine, theirs = register(a, memory), register(b, target)
        a.add_remote_agent(b.get_agent_metadata())
        b.deregister_memory(theirs)
        del b
        with words(), self.assertRaises(ERRORS):
            a.make_connection("b")
        with self.assertRaises(ERRORS):
            handle = prepare(a, "WRITE", descriptors(memory, [(0, 64)]), descriptors(target, [(0, 64)]), "b")
            a.transfer(handle)
            finish(a, handle)
        a.deregister_memory(mine)


class Settings(unittest.TestCase):
    def test_unknown_and_malformed_ones_are_named(self):
        for name, value in WRONG_SETTINGS:
            with self.subTest(name=name, value=value):
                with words() as said, self.assertRaises(ERRORS):
                    agent("a", parameters={name: value})
                self.assertIn(name, said[0])
        for name, value in (("POLYRAIL_RIALS", "2"), ("POLYRAIL_RAILS", "many"), ("POLYRAIL_rails", "2")):
            os.environ[name] = value
            try:
                with words() as said, self.assertRaises(ERRORS):
                    agent("a")
                self.assertIn(name, said[0])
            finally:
                del os.environ[name]

    def test_without_an_rdma_device_the_log_names_the_backend_that_needs_none(self):
        hint = "the backend tcp (POLYRAIL_BACKEND=tcp) needs no RDMA device"
        for backend, setting, value, hints in (
            ("verbs", "devices", "missing0", True),
            ("tcp", "devices", "missing0", False),
            # Which is for RDMA devices only.
            ("verbs", "near", "gpu0", False),
        ):
            with self.subTest(backend=backend, setting=setting):
                with words() as said, self.assertRaises(ERRORS):
                    agent("a", parameters={"backend": backend, setting: value})
                self.assertEqual(hint in said[0], hints, said[0])

    def test_what_nccls_plugin_is_told_is_no_mistake(self):
        page = pathlib.Path(__file__).parents[2] / "nccl" / "README.md"
        names = set(re.findall("`POLYRAIL_([A-Z_]+)`", page.read_text()))
        ours = {name.upper() for name in agent("a").get_plugin_params("POLYRAIL")}
        self.assertLess({"RAILS", "DEVICES"}, names & ours)
        self.assertLess({"FLUSH", "SPLIT_THRESHOLD"}, names - ours)
        for name in names - ours:
            with self.subTest(name=name):
                os.environ[f"POLYRAIL_{name}"] = "1"
                try:
                    agent("a")
                finally:
                    del os.environ[f"POLYRAIL_{name}"]

    def test_parameters_come_before_variables(self):
        os.environ["POLYRAIL_RAILS"] = "many"
        try:
            with words(), self.assertRaises(ERRORS):
                agent("a", parameters={"rails": "2"})
            os.environ["POLYRAIL_RAILS"] = "3"
            one = agent("a", parameters={"rails": "2"})
            self.assertEqual(one.get_plugin_params("POLYRAIL")["rails"], "3")
        finally:
            del os.environ["POLYRAIL_RAILS"]

    def test_what_is_offered_is_taken(self):
        agent("a", parameters=agent("b").get_plugin_params("POLYRAIL"))

    def test_a_token_is_never_shown(self):
        secret = "correct horse battery staple"
        os.environ["POLYRAIL_TOKEN"] = secret
        try:
            a, b = agent("a"), agent("b")
            offered = b.get_plugin_params("POLYRAIL")
            self.assertEqual(offered["token"], "")
            # The variable still counts for agents that are made with what is offered.
            c = agent("c", parameters=offered)
        finally:
            del os.environ["POLYRAIL_TOKEN"]
        acquaint(a, c)
        a.make_connection("c")
        for wrong in (secret + "\0 and more", "quite short"):
            with self.subTest(token=wrong), words() as said, self.assertRaises(ERRORS):
                agent("a", parameters={"token": wrong})
            self.assertIn("token", said[0])
            self.assertNotIn(wrong[:9], said[0])

    def test_agents_that_differ_do_not_meet(self):
        a, b = agent("a", parameters={"rails": "2"}), agent("b", parameters={"rails": "3"})
        acquaint(a, b)
        with words() as said, self.assertRaises(nixl.nixlMismatchError):
            a.make_connection("b")
        self.assertIn("agent b", said[0])

    def test_a_token(self):
        secret = {"token": "correct horse battery staple"}
        a, b = agent("a", parameters=secret), agent("b", parameters=secret)
        acquaint(a, b)
        a.make_connection("b")
        for name, parameters, reason in (
            ("c", {"token": "some other words entirely"}, "the peer has another token than this side"),
            ("d", {}, "this side has a token, but the peer sent no proof of a token"),
        ):
            with self.subTest(agent=name):
                self.refuse(agent(name, parameters=parameters), b, "b", reason)
        e = agent("e")
        self.refuse(a, e, "e", "the peer has a token, but this side has none")

    def refuse(self, one, other, name, reason):
        """An agent refuses another one: both report the reason."""
        acquaint(one, other)
        refused = f"polyrail: {name}: refused a connection from 127.0.0.1:"
        with words(until=refused) as said, self.assertRaises(nixl.nixlMismatchError):
            one.make_connection(name)
        lines = said[0].splitlines()
        at_other = [line for line in lines if line.startswith(refused)]
        self.assertEqual(len(at_other), 1, lines)
        self.assertIn(reason, at_other[0])
        self.assertTrue(any(f"connecting: agent {name}: " in line and reason in line for line in lines), lines)

    def test_devices_without_a_rail_are_named(self):
        devices = ",".join(f"soft{number}" for number in range(6))
        for rails, unused in (("2", "2: soft2, soft3, soft4, soft5"), ("", "4: soft4, soft5"), ("6", None)):
            with self.subTest(rails=rails):
                with words() as said:
                    agent("a", parameters={"devices": devices, **({"rails": rails} if rails else {})})
                line = f"polyrail: a: of 6 devices the last ones are not used, because rails={unused}"
                self.assertEqual(said[0].splitlines(), [line] if unused else [])


class Ends(Pair):
    def test_a_peer_that_goes_away(self):
        self.a.send_notif("b", b"first")
        self.assertEqual(notes(self.b, "a", 1), [b"first"])
        handle = prepare(self.a, "WRITE", descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)]), "b")
        self.regions[1][0].deregister_memory(self.regions[1][1])
        del self.regions[1]
        self.b = None
        deadline = time.monotonic() + 20
        with words(), self.assertRaises(ERRORS):
            while time.monotonic() < deadline:
                self.a.transfer(handle)
                finish(self.a, handle)
        self.assertLess(time.monotonic(), deadline)

    def test_a_transfer_released_while_it_is_out(self):
        length = self.LENGTH
        for turn in range(20):
            handle = prepare(
                self.a, "WRITE", descriptors(self.here, [(0, length)]), descriptors(self.there, [(0, length)]), "b"
            )
            self.here[:] = turn
            self.a.transfer(handle, b"not to come if it was cancelled")
            self.a.release_xfer_handle(handle)
            # From here on, nothing writes to this memory.
            self.there[:] = 200
            self.assertTrue((self.there == 200).all())
        places = descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)])
        self.assertEqual(move(self.a, "WRITE", *places, "b"), "DONE")
        self.assertTrue((self.there[64:] == 200).all())


class LongTransfers(Pair):
    """Transfers are under way for much longer than a release waits."""

    LENGTH = 32 << 20
    PARAMETERS = {"software_bytes_per_second": "8000000", "rails": "2"}

    def test_one_that_is_released_is_over_and_others_go_on(self):
        half = self.LENGTH // 2
        for operation in ("READ", "WRITE"):
            with self.subTest(operation):
                mine, theirs = descriptors(self.here, [(0, half)]), descriptors(self.there, [(0, half)])
                long = prepare(self.a, operation, mine, theirs, "b", b"not to come")
                mine, theirs = descriptors(self.here, [(half, half)]), descriptors(self.there, [(half, half)])
                other = prepare(self.a, "WRITE", mine, theirs, "b", b"done")
                self.assertEqual(self.a.transfer(long), "PROC")
                self.assertEqual(self.a.transfer(other), "PROC")
                time.sleep(0.3)
                begin = time.monotonic()
                self.a.release_xfer_handle(long)
                self.assertLess(time.monotonic() - begin, 0.9, "before the connection would be ended")
                self.assertEqual(self.a.check_xfer_state(other), "PROC")
                # The caller owns the memory again.
                self.here[:half] = 200
                self.there[:half] = 100
                self.assertEqual(finish(self.a, other), "DONE")
                np.testing.assert_array_equal(self.there[half:], self.here[half:])
                self.assertTrue((self.here[:half] == 200).all())
                self.assertTrue((self.there[:half] == 100).all())
                self.assertEqual(notes(self.b, "a", 1), [b"done"])
                self.here[half:] += 1
                self.a.release_xfer_handle(other)


class OverOneRail(Pair):
    """Nothing can be taken back over one rail: a release that waited for a second ends the connection."""

    LENGTH = 64 << 20
    PARAMETERS = {"software_bytes_per_second": "8000000", "rails": "1"}

    def test_one_that_is_released_is_over(self):
        everything = [(0, self.LENGTH)]
        some = descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)])
        long = prepare(self.a, "READ", descriptors(self.here, everything), descriptors(self.there, everything), "b")
        other = prepare(self.a, "WRITE", descriptors(self.here, everything), descriptors(self.there, everything), "b")
        self.assertEqual(self.a.transfer(long), "PROC")
        self.assertEqual(self.a.transfer(other), "PROC")
        time.sleep(0.3)
        with words() as said:
            self.a.release_xfer_handle(long)
        self.assertIn("the connection to agent b is ended", said[0])
        # The caller owns the memory again.
        self.here[:] = 200
        before = self.there.copy()
        with self.assertRaises(nixl.nixlRemoteDisconnectError):
            finish(self.a, other)
        self.a.release_xfer_handle(other)
        time.sleep(1)
        self.assertTrue((self.here == 200).all())
        np.testing.assert_array_equal(self.there, before)
        # Everything connects again.
        self.a.send_notif("b", b"still here")
        self.assertEqual(notes(self.b, "a", 1), [b"still here"])
        self.a.make_connection("b")
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.assertEqual(move(self.a, "WRITE", *some, "b"), "DONE")


class MemoryTakenBack(Pair):
    """Memory that is registered no more while a transfer of some two seconds is out."""

    LENGTH = 16 << 20
    PARAMETERS = {"software_bytes_per_second": "8000000", "rails": "2"}

    def check(self, operation, at_near):
        extra = noise(self.LENGTH, 5)
        owner = self.a if at_near else self.b
        region = register(owner, extra)
        self.a.remove_remote_agent("b")
        self.a.add_remote_agent(self.b.get_agent_metadata())
        everything = [(0, self.LENGTH)]
        near, far = (extra, self.there) if at_near else (self.here, extra)
        handle = prepare(self.a, operation, descriptors(near, everything), descriptors(far, everything), "b", b"done")
        self.assertEqual(self.a.transfer(handle), "PROC")
        time.sleep(0.1)
        owner.deregister_memory(region)
        extra[:] = 200
        begin = time.monotonic()
        with words(), self.assertRaises(ERRORS):
            finish(self.a, handle)
        self.assertLess(time.monotonic() - begin, 10)
        self.a.release_xfer_handle(handle)
        time.sleep(0.6)
        self.assertTrue((extra == 200).all())
        self.assertFalse(self.b.update_notifs([BACKEND]).get("a"))

    def test_what_is_written_from(self):
        self.check("WRITE", at_near=True)

    def test_what_is_read_into(self):
        self.check("READ", at_near=True)

    def test_what_is_written_to(self):
        self.check("WRITE", at_near=False)

    def test_what_is_read_from(self):
        self.check("READ", at_near=False)


class SlowEnds(Pair):
    """Transfers are under way for milliseconds."""

    PARAMETERS = {"software_bytes_per_second": "100000000"}

    test_a_transfer_released_while_it_is_out = Ends.test_a_transfer_released_while_it_is_out


if __name__ == "__main__":
    unittest.main()
