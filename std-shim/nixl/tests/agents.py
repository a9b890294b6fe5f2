"""Two NIXL agents in one process, with memory to move between them."""

import contextlib
import os
import time
import unittest

import numpy as np
from nixl_cu12 import nixl_agent, nixl_agent_config

BACKEND = os.environ.get("NIXL_TEST_BACKEND", "POLYRAIL")
IS_OURS = BACKEND == "POLYRAIL"
IS_OVER_TCP = os.environ.get("POLYRAIL_BACKEND") == "tcp"
# Only reached on a machine that is busy with other work.
TIMEOUT_S = 20


def agent(name, backend=BACKEND, progress=True, parameters=None):
    """An agent with one backend. Over TCP, names of software NICs become addresses of the loopback interface."""
    made = nixl_agent(name, nixl_agent_config(backends=[], enable_prog_thread=progress))
    parameters = dict(parameters or {})
    if IS_OVER_TCP and "devices" in parameters:
        parameters["devices"] = parameters["devices"].replace("soft", "127.0.1.10")
    made.create_backend(backend, parameters)
    return made


def acquaint(one, other):
    """Loads each one's metadata into the other."""
    one.add_remote_agent(other.get_agent_metadata())
    other.add_remote_agent(one.get_agent_metadata())


def register(owner, array, backend=BACKEND):
    return owner.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM", [backend])


def noise(length, seed=1):
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def descriptors(array, places):
    """(offset, length) of an array as NIXL's descriptors."""
    return [(array.ctypes.data + offset, length, 0) for offset, length in places]


def prepare(owner, operation, local, remote, to, note=b"", backend=BACKEND):
    mine = owner.get_xfer_descs(local, "DRAM")
    theirs = owner.get_xfer_descs(remote, "DRAM")
    return owner.initialize_xfer(operation, mine, theirs, to, note, [backend])


def finish(owner, handle, others=()):
    """Waits until a transfer that was posted is over; `others` are agents without a thread of their own."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        state = owner.check_xfer_state(handle)
        if state != "PROC":
            return state
        if time.monotonic() > deadline:
            raise TimeoutError("the transfer does not end")
        for other in others:
            other.update_notifs([BACKEND])


def move(owner, operation, local, remote, to, note=b"", backend=BACKEND):
    handle = prepare(owner, operation, local, remote, to, note, backend)
    state = owner.transfer(handle)
    if state == "PROC":
        state = finish(owner, handle)
    owner.release_xfer_handle(handle)
    return state


def notes(owner, whose, count, backend=BACKEND):
    """The next `count` notifications of one agent, in order."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(owner.update_notifs([backend]).get(whose, [])) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(owner.notifs.get(whose, []))} of {count} notifications came")
    got, owner.notifs[whose] = owner.notifs[whose][:count], owner.notifs[whose][count:]
    return got


class Pair(unittest.TestCase):
    """Agents "a" and "b", each with a region of this many bytes."""

    LENGTH = 1 << 20
    PROGRESS = True
    PARAMETERS = None

    def setUp(self):
        self.a = agent("a", progress=self.PROGRESS, parameters=self.PARAMETERS)
        self.b = agent("b", progress=self.PROGRESS, parameters=self.PARAMETERS)
        self.here = noise(self.LENGTH, 1)
        self.there = noise(self.LENGTH, 2)
        self.regions = [(self.a, register(self.a, self.here)), (self.b, register(self.b, self.there))]
        acquaint(self.a, self.b)

    def tearDown(self):
        for owner, region in self.regions:
            owner.deregister_memory(region)
        del self.a, self.b, self.regions


@contextlib.contextmanager
def words(until=""):
    """What is written to standard error, by libraries too. Threads may write it later: waits until this text is written."""
    import sys
    import tempfile

    def written():
        # Reading would move the place at which the next line is written.
        return os.pread(file.fileno(), 1 << 20, 0).decode()

    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        said = []
        try:
            yield said
            deadline = time.monotonic() + 10
            while until not in written() and time.monotonic() < deadline:
                time.sleep(0.001)
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            said.append(written())
