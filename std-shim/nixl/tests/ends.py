"""Connections that end, and the ones that are made after them."""

import contextlib
import pathlib
import resource
import subprocess
import sys
import time
import unittest

import numpy as np
from nixl_cu12 import _bindings as nixl

from agents import Pair, agent, acquaint, descriptors, finish, move, noise, notes, prepare, register, words


@contextlib.contextmanager
def no_descriptors():
    """No file descriptor can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # NIXL's and Python's own are open, whatever their numbers.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OTHER_PROCESS = """
import sys
from agents import agent
other = agent("other")
print("metadata", other.get_agent_metadata().hex(), flush=True)
sys.stdin.read()
"""


class Connects(Pair):
    def test_software_nics_of_two_processes_do_not_connect(self):
        folder = pathlib.Path(__file__).parent
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", OTHER_PROCESS], cwd=folder, **pipes) as other:
            lines = (line.split() for line in other.stdout)
            metadata = next(bytes.fromhex(line[1].decode()) for line in lines if line[:1] == [b"metadata"])
            self.a.add_remote_agent(metadata)
            with words() as said, self.assertRaises(nixl.nixlBackendError):
                self.a.make_connection("other")
            _, their_words = other.communicate()
        for log in (said[0], their_words.decode()):
            self.assertIn("software NICs reach only devices of their own fabric, and none of another process", log)

    def test_a_lack_of_descriptors_is_no_disconnect_and_passes(self):
        with words() as said:
            with no_descriptors(), self.assertRaises(nixl.nixlBackendError):
                self.a.make_connection("b")
        self.assertIn("errno 24", said[0])
        self.a.make_connection("b")
        self.a.send_notif("b", b"here")
        self.assertEqual(notes(self.b, "a", 1), [b"here"])

    def test_a_transfer_after_a_failed_connect_connects(self):
        places = descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)])
        with words():
            with no_descriptors(), self.assertRaises(nixl.nixlBackendError):
                self.a.make_connection("b")
        self.assertEqual(move(self.a, "WRITE", *places, "b", b"moved"), "DONE")
        self.assertEqual(notes(self.b, "a", 1), [b"moved"])
        np.testing.assert_array_equal(self.there[:64], self.here[:64])

    def test_a_refusal_has_words_at_both_agents_and_no_control_characters(self):
        metadata = bytearray(self.b.get_agent_metadata())
        digit = metadata.index(b"polyrail-nixl-") + len(b"polyrail-nixl-2 ")
        metadata[digit] = ord("0") if metadata[digit] != ord("0") else ord("1")
        stranger = agent("x\n\x1b[2J\u202e")
        stranger.add_remote_agent(bytes(metadata))
        with words() as said, self.assertRaises(nixl.nixlRemoteDisconnectError):
            stranger.make_connection("b")
        lines = said[0].splitlines()
        shown = "x\\n\\u{1b}[2J\\u{202e}"
        reason = f'agent "{shown}" looks for another engine'
        self.assertEqual(lines[0], f"polyrail: b: refused an incoming connection: {reason}")
        self.assertEqual(len(lines), 2, lines)
        self.assertIn(f"polyrail: {shown}: connecting: agent b: ", lines[1])
        self.assertIn("looks for another engine", lines[1])

    def test_a_restarted_peer_is_accepted_when_nixl_has_forgotten_the_old_one(self):
        places = descriptors(self.here, [(0, 64)]), descriptors(self.there, [(0, 64)])
        self.assertEqual(move(self.a, "WRITE", *places, "b"), "DONE")
        owner, region = self.regions.pop()
        owner.deregister_memory(region)
        del owner
        self.b = None
        self.b = agent("b")
        self.regions.append((self.b, register(self.b, self.there)))
        metadata = self.b.get_agent_metadata()
        # NIXL's own answer, whatever the backend.
        with self.assertRaises(nixl.nixlNotAllowedError):
            self.a.add_remote_agent(metadata)
        self.a.remove_remote_agent("b")
        self.a.add_remote_agent(metadata)
        self.assertEqual(move(self.a, "WRITE", *places, "b"), "DONE")


class Leaves(Pair):
    """Peers that leave while a transfer of some seconds is in progress."""

    LENGTH = 32 << 20
    PARAMETERS = {"software_bytes_per_second": "4000000", "rails": "2"}

    def leave(self, deregisters):
        everything = [(0, self.LENGTH)]
        handle = prepare(
            self.a, "WRITE", descriptors(self.here, everything), descriptors(self.there, everything), "b", b"lost"
        )
        self.assertEqual(self.a.transfer(handle), "PROC")
        time.sleep(0.2)
        owner, region = self.regions.pop()
        begin = time.monotonic()
        if deregisters:
            owner.deregister_memory(region)
            # Until the transfer meets memory that is not registered.
            time.sleep(0.2)
        del owner, region
        self.b = None
        # A peer that stays for a second has not left because of this.
        is_slow = time.monotonic() - begin > 0.8
        expected = (nixl.nixlRemoteDisconnectError, nixl.nixlBackendError)[: 1 + is_slow]
        with words() as said, self.assertRaises(expected):
            finish(self.a, handle)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertIn("a transfer with agent b failed: ", said[0])
        self.a.release_xfer_handle(handle)

    def test_a_peer_that_deregisters_first(self):
        self.leave(deregisters=True)

    def test_a_peer_that_just_leaves(self):
        self.leave(deregisters=False)


if __name__ == "__main__":
    unittest.main()
