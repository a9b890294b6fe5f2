"""Agents of two processes, whose queue pairs are TCP connections: nothing but NIXL's metadata travels between them
outside the plugin."""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

import numpy as np
from nixl_cu12 import _bindings as nixl

from agents import agent, descriptors, finish, move, noise, notes, prepare, register, words

LENGTH = 4 << 20

# The other process: an agent with memory, which answers commands with a line each.
OTHER_PROCESS = f"""
import sys
from agents import agent, descriptors, move, noise, notes, register
other = agent("other", parameters={{"devices": "tcp:127.0.4.1,127.0.4.2"}})
memory = noise({LENGTH}, 2)
region = register(other, memory)
print(other.get_agent_metadata().hex(), memory.ctypes.data, flush=True)
for line in sys.stdin:
    command, *values = line.split()
    if command == "meet":
        other.add_remote_agent(bytes.fromhex(values[0]))
        print("met", flush=True)
    elif command == "notes":
        print(*(note.hex() for note in notes(other, "here", int(values[0]))), flush=True)
    elif command == "check":
        length = int(values[0])
        print((memory[:length] == noise(length, int(values[1]))).all(), flush=True)
    elif command == "write":
        local, remote = descriptors(memory, [({LENGTH // 2}, {LENGTH // 2})]), [(int(values[0]), {LENGTH // 2}, 0)]
        print(move(other, "WRITE", local, remote, "here", b"from the other"), flush=True)
other.deregister_memory(region)
"""


class Processes(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(__file__).parent
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.other = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS], cwd=folder, **pipes)
        metadata, address = self.other.stdout.readline().split()
        self.there = int(address)
        self.here = agent("here", parameters={"devices": "127.0.3.1,127.0.3.2"})
        self.memory = noise(LENGTH, 1)
        self.region = register(self.here, self.memory)
        self.here.add_remote_agent(bytes.fromhex(metadata))
        self.assertEqual(self.ask(f"meet {self.here.get_agent_metadata().hex()}"), "met")

    def tearDown(self):
        self.other.stdin.close()
        self.other.wait(60)
        self.other.stdout.close()
        self.here.deregister_memory(self.region)
        del self.here

    def ask(self, command):
        print(command, file=self.other.stdin, flush=True)
        return self.other.stdout.readline().strip()

    def remote(self, *places):
        return [(self.there + offset, length, 0) for offset, length in places]

    def test_memory_moves_both_ways(self):
        everything = descriptors(self.memory, [(0, LENGTH)])
        self.assertEqual(move(self.here, "WRITE", everything, self.remote((0, LENGTH)), "other", b"written"), "DONE")
        self.assertEqual(self.ask("notes 1"), b"written".hex())
        self.assertEqual(self.ask(f"check {LENGTH} 1"), "True")
        before = self.memory.copy()
        self.memory[:] = 0
        self.assertEqual(move(self.here, "READ", everything, self.remote((0, LENGTH)), "other", b"read"), "DONE")
        np.testing.assert_array_equal(self.memory, before)
        self.assertEqual(self.ask("notes 1"), b"read".hex())
        self.memory[:] = 0
        self.assertEqual(self.ask(f"write {self.memory.ctypes.data}"), "DONE")
        self.assertEqual(notes(self.here, "other", 1), [b"from the other"])
        np.testing.assert_array_equal(self.memory[: LENGTH // 2], before[LENGTH // 2 :])
        self.assertFalse(self.memory[LENGTH // 2 :].any())

    def test_lists_and_notifications_arrive_in_order(self):
        count, length = 1000, 97
        places = [(number * 2 * length, length) for number in range(count)]
        before = self.memory.copy()
        handle = prepare(
            self.here, "WRITE", descriptors(self.memory, places), self.remote(*places), "other", b"the list"
        )
        self.here.transfer(handle)
        self.assertEqual(finish(self.here, handle), "DONE")
        self.here.release_xfer_handle(handle)
        sent = [b"the list"] + [bytes([number]) * (number * 1000) for number in range(1, 50)]
        for note in sent[1:]:
            self.here.send_notif("other", note)
        self.assertEqual(self.ask(f"notes {len(sent)}").split(), [note.hex() for note in sent])
        self.memory[:] = 0
        everything = descriptors(self.memory, [(0, LENGTH)])
        self.assertEqual(move(self.here, "READ", everything, self.remote((0, LENGTH)), "other"), "DONE")
        expected = noise(LENGTH, 2)
        for offset, length in places:
            expected[offset : offset + length] = before[offset : offset + length]
        np.testing.assert_array_equal(self.memory, expected)

    def test_a_process_that_is_killed_ends_the_transfers(self):
        self.here.send_notif("other", b"first")
        self.assertEqual(self.ask("notes 1"), b"first".hex())
        os.kill(self.other.pid, signal.SIGKILL)
        self.other.wait(60)
        everything = descriptors(self.memory, [(0, LENGTH)])
        with words(), self.assertRaises((nixl.nixlRemoteDisconnectError, nixl.nixlBackendError)):
            move(self.here, "WRITE", everything, self.remote((0, LENGTH)), "other")


if __name__ == "__main__":
    unittest.main()
