"""The calls that inference engines make of NIXL, with this backend and with memory of the CPU as the KV cache.

They are those of vLLM 0.33.0 (kv_connector/v1/nixl/base_worker.py and pull_worker.py) and of SGLang 0.5.23
(srt/disaggregation/nixl/conn.py), in their order and with their kinds of arguments. In both, only the side that moves data
loads the metadata of the other one.
"""

import threading
import time
import unittest
import uuid

import numpy as np
from nixl_cu12 import nixl_agent, nixl_agent_config, nixl_thread_sync_t

from agents import BACKEND, TIMEOUT_S, finish, noise

LAYERS, BLOCKS, BLOCK = 4, 64, 16 << 10


def caches(seed):
    """The KV cache of each layer."""
    return [noise(BLOCKS * BLOCK, seed + layer) for layer in range(LAYERS)]


def runs(layers):
    """All blocks as strided descriptors: address, length, device, stride, count."""
    return np.array([(layer.ctypes.data, BLOCK, 0, BLOCK, BLOCKS) for layer in layers], dtype=np.uint64)


def over_layers(blocks):
    return np.concatenate([np.asarray(blocks) + layer * BLOCKS for layer in range(LAYERS)])


def of(layer, block):
    return layer[block * BLOCK : (block + 1) * BLOCK]


class Engines(unittest.TestCase):
    def check_blocks(self, came, sent, pairs):
        before = caches(200)
        for layer in range(LAYERS):
            for to, source in pairs:
                of(before[layer], to)[:] = of(sent[layer], source)
            np.testing.assert_array_equal(came[layer], before[layer])


class Vllm(Engines):
    """A decoder pulls blocks of a prefiller. The settings of the backend can only be environment variables."""

    def worker(self, layers):
        config = nixl_agent_config(backends=[BACKEND], capture_telemetry=True)
        wrapper = nixl_agent(str(uuid.uuid4()), config)
        descs = wrapper.get_reg_descs([(layer.ctypes.data, layer.nbytes, 0, "") for layer in layers], "DRAM")
        wrapper.register_memory(descs, backends=[BACKEND])
        return wrapper, descs, wrapper.prep_xfer_dlist("NIXL_INIT_AGENT", runs(layers), mem_type="DRAM")

    def setUp(self):
        self.sent, self.came = caches(100), caches(200)
        self.prefiller, self.sent_descs, self.sent_dlist = self.worker(self.sent)
        self.decoder, self.came_descs, self.came_dlist = self.worker(self.came)
        # The handshake, in a thread of its own.
        metadata = self.prefiller.get_agent_metadata()
        self.name = None

        def handshake():
            self.name = self.decoder.add_remote_agent(metadata)
            self.remote_dlist = self.decoder.prep_xfer_dlist(self.name, runs(self.sent), mem_type="DRAM")

        thread = threading.Thread(target=handshake)
        thread.start()
        thread.join()
        self.assertEqual(self.name, self.prefiller.name.encode())

    def tearDown(self):
        self.decoder.release_dlist_handle(self.remote_dlist)
        self.decoder.remove_remote_agent(self.name)
        for wrapper, dlist, descs in (
            (self.decoder, self.came_dlist, self.came_descs),
            (self.prefiller, self.sent_dlist, self.sent_descs),
        ):
            wrapper.release_dlist_handle(dlist)
            wrapper.deregister_memory(descs)
        del self.decoder, self.prefiller

    def notified(self, count):
        """The notifications that the prefiller gets, of any agent."""
        got, deadline = [], time.monotonic() + TIMEOUT_S
        while len(got) < count:
            self.assertLess(time.monotonic(), deadline)
            for notes in self.prefiller.get_new_notifs().values():
                got += notes
        return got

    def read(self, request, pairs):
        mine, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
        handle = self.decoder.make_prepped_xfer(
            "READ", self.came_dlist, over_layers(mine), self.remote_dlist, over_layers(theirs), notif_msg=request
        )
        self.decoder.transfer(handle)
        return handle

    def done(self, handle):
        self.assertEqual(finish(self.decoder, handle), "DONE")
        recorded = self.decoder.get_xfer_telemetry(handle)
        self.decoder.release_xfer_handle(handle)
        return recorded

    def test_a_decoder_pulls_blocks(self):
        self.decoder.send_notif(self.name, notif_msg=b"HB:request-1")
        pairs = [(3, 40), (9, 41), (10, 42), (63, 0)]
        recorded = self.done(self.read(b"request-1:1", pairs))
        self.assertEqual(recorded.totalBytes, len(pairs) * LAYERS * BLOCK)
        self.assertGreaterEqual(recorded.xferDuration, recorded.postDuration)
        self.assertEqual(self.notified(2), [b"HB:request-1", b"request-1:1"])
        self.check_blocks(self.came, self.sent, pairs)

    def test_many_requests_are_read_at_once(self):
        order = np.random.default_rng(1).permutation(BLOCKS).tolist()
        pairs = list(enumerate(order))
        handles = [self.read(b"%d:1" % first, pairs[first : first + 4]) for first in range(0, BLOCKS, 4)]
        for handle in handles:
            self.done(handle)
        self.assertEqual(sorted(self.notified(len(handles))), sorted(b"%d:1" % first for first in range(0, BLOCKS, 4)))
        self.check_blocks(self.came, self.sent, pairs)


class Sglang(Engines):
    """A prefiller writes blocks and other data into a decoder. The settings of the backend are its parameters, from JSON."""

    def manager(self, layers, other, threads):
        config = nixl_agent_config(
            backends=[], num_threads=threads, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        )
        agent = nixl_agent(str(uuid.uuid4()), config)
        agent.create_backend(BACKEND, {"rails": "2"})
        self.assertIn(BACKEND, agent.get_plugin_list())
        regions = [
            agent.register_memory([(each.ctypes.data, each.nbytes, 0, "") for each in kind], "DRAM")
            for kind in (layers, [other])
        ]
        return agent, regions

    def setUp(self):
        self.sent, self.came = caches(100), caches(200)
        self.sent_aux, self.came_aux = noise(4096, 1), noise(4096, 2)
        self.prefiller, self.sent_regions = self.manager(self.sent, self.sent_aux, 8)
        self.decoder, self.came_regions = self.manager(self.came, self.came_aux, 0)
        self.prefiller.add_remote_agent(self.decoder.get_agent_metadata())
        self.assertTrue(self.prefiller.check_remote_metadata(self.decoder.name))
        self.source = self.prefiller.prep_xfer_dlist("", runs(self.sent), "DRAM")
        self.target = self.prefiller.prep_xfer_dlist(self.decoder.name, runs(self.came), "DRAM")

    def tearDown(self):
        self.source.release(), self.target.release()
        for agent, regions in ((self.prefiller, self.sent_regions), (self.decoder, self.came_regions)):
            for region in regions:
                agent.deregister_memory(region)
        del self.prefiller, self.decoder

    def write(self, pairs):
        mine, theirs = ([pair[side] for pair in pairs] for side in (1, 0))
        handle = self.prefiller.make_prepped_xfer(
            "WRITE", self.source, over_layers(mine), self.target, over_layers(theirs)
        )
        self.assertNotEqual(self.prefiller.transfer(handle), "ERR")
        return handle

    def write_aux(self):
        mine = self.prefiller.get_xfer_descs([(self.sent_aux.ctypes.data + 100, 1000, 0)], "DRAM")
        theirs = self.prefiller.get_xfer_descs([(self.came_aux.ctypes.data + 200, 1000, 0)], "DRAM")
        handle = self.prefiller.initialize_xfer("WRITE", mine, theirs, self.decoder.name)
        self.assertNotEqual(self.prefiller.transfer(handle), "ERR")
        return handle

    def test_threads_of_a_prefiller_write_blocks(self):
        order = np.random.default_rng(1).permutation(BLOCKS).tolist()
        pairs = list(enumerate(order))
        failures = []

        def work(first):
            try:
                for start in range(first, BLOCKS, 16):
                    handles = [self.write(pairs[start : start + 4]), self.write_aux()]
                    for handle in handles:
                        while (state := self.prefiller.check_xfer_state(handle)) == "PROC":
                            time.sleep(0)
                        self.assertEqual(state, "DONE")
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 16, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        self.assertEqual(failures, [])
        self.assertFalse(any(thread.is_alive() for thread in threads))
        self.check_blocks(self.came, self.sent, pairs)
        expected = noise(4096, 2)
        expected[200:1200] = self.sent_aux[100:1100]
        np.testing.assert_array_equal(self.came_aux, expected)


if __name__ == "__main__":
    unittest.main()
