"""NIXL's telemetry of transfers with this backend: of one transfer, and the agent's, as its Prometheus exporter shows it."""

import os
import re
import socket
import time
import unittest
import urllib.request

from nixl_cu12 import _bindings as nixl

from agents import TIMEOUT_S, acquaint, agent, descriptors, finish, move, noise, prepare, register, words

LENGTH = 1 << 20
PLACES = [(0, 1000), (5000, 300)]


def exporter():
    """Variables of a Prometheus exporter at a free port, and the address of its metrics."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    variables = {
        "NIXL_TELEMETRY_ENABLE": "y",
        "NIXL_TELEMETRY_EXPORTER": "prometheus",
        "NIXL_TELEMETRY_PROMETHEUS_LOCAL": "y",
        "NIXL_TELEMETRY_PROMETHEUS_PORT": str(port),
        "NIXL_TELEMETRY_RUN_INTERVAL": "10",
    }
    return variables, f"http://127.0.0.1:{port}/metrics"


class Telemetry(unittest.TestCase):
    def setUp(self):
        variables, self.metrics = exporter()
        os.environ.update(variables)
        self.here = agent("here")
        # One agent has the port.
        for name in variables:
            del os.environ[name]
        self.there = agent("there")
        self.mine, self.theirs = noise(LENGTH, 1), noise(LENGTH, 2)
        self.regions = [(self.here, register(self.here, self.mine)), (self.there, register(self.there, self.theirs))]
        acquaint(self.here, self.there)

    def tearDown(self):
        for owner, region in self.regions:
            owner.deregister_memory(region)
        del self.here, self.there, self.regions

    def await_metric(self, name, expected):
        """Waits until the exporter shows this value; `name` includes labels other than the agent and the host."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            text = urllib.request.urlopen(self.metrics, timeout=TIMEOUT_S).read().decode()
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            values = {re.sub(r'agent_name="here",hostname="[^"]*",?', "", key): value for key, value in lines.items()}
            value = values.get(name)
            if value == expected:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is {value}, not {expected}:\n{text}")
            time.sleep(0.01)

    def places(self):
        return descriptors(self.mine, PLACES), descriptors(self.theirs, PLACES)

    def test_a_transfer_has_its_bytes_and_times(self):
        for operation in ("WRITE", "READ"):
            handle = prepare(self.here, operation, *self.places(), "there", b"done")
            self.here.transfer(handle)
            self.assertEqual(finish(self.here, handle), "DONE")
            told = self.here.get_xfer_telemetry(handle)
            self.assertEqual((told.totalBytes, told.descCount), (1300, 2))
            self.assertGreaterEqual(told.xferDuration, told.postDuration)
            self.here.release_xfer_handle(handle)

    def test_the_exporter_counts_transfers(self):
        self.await_metric("agent_memory_registered_last_bytes{}", str(LENGTH))
        for _ in range(3):
            self.assertEqual(move(self.here, "WRITE", *self.places(), "there"), "DONE")
        self.assertEqual(move(self.here, "READ", *self.places(), "there"), "DONE")
        self.await_metric("agent_xfer_time_us_count{}", "4")
        self.await_metric("agent_tx_last_bytes{}", "1300")
        self.await_metric("agent_rx_last_bytes{}", "1300")

    def test_the_exporter_counts_errors_by_status(self):
        self.assertEqual(move(self.here, "WRITE", *self.places(), "there"), "DONE")
        # The peer stays: NIXL does not count a disconnect that it finds when it checks a transfer.
        owner, region = self.regions.pop()
        owner.deregister_memory(region)
        with words(), self.assertRaises(nixl.nixlBackendError):
            move(self.here, "WRITE", *self.places(), "there")
        self.await_metric('agent_errors_total{status="backend"}', "1")


if __name__ == "__main__":
    unittest.main()
