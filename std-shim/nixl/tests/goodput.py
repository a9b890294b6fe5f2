"""Goodput of WRITEs between agents of two processes, or of two hosts, by one of NIXL's backends; for
tests/netns/compare.sh.

    goodput.py serve BACKEND ADDRESS PORT
    goodput.py write BACKEND ADDRESS PORT SIZE SECONDS

The serving process has the memory. The other one connects to it for the metadata, writes SIZE bytes at a time for about
SECONDS, with several transfers in flight, and prints Gbit/s. Then both end. 64 MiB at a time is the most.
"""

import json
import os
import socket
import sys
import time

import numpy as np

from agents import agent, descriptors, finish, noise, prepare, register

# Transfers in flight, as far as they fit.
WINDOW = 16
MEMORY = 256 << 20


def window(size):
    return min(WINDOW, MEMORY // size)


def receive(stream):
    return json.loads(stream.readline())


def send(stream, value):
    print(json.dumps(value), file=stream, flush=True)


def serve(backend, address, port):
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        stream = listener.accept()[0].makefile("rw")
    there = agent("there", backend)
    size = receive(stream)
    memory = noise(window(size) * size, 2)
    region = register(there, memory, backend)
    send(stream, [there.get_agent_metadata().hex(), memory.ctypes.data])
    there.add_remote_agent(bytes.fromhex(receive(stream)))
    send(stream, "met")
    # The progress thread serves the writer until it is done.
    offset, length = receive(stream)
    send(stream, memory[offset : offset + length].tobytes().hex())
    receive(stream)
    there.deregister_memory(region)


def write(backend, address, port, size, seconds):
    stream = socket.create_connection((address, port)).makefile("rw")
    send(stream, size)
    here = agent("here", backend)
    memory = noise(window(size) * size, 1)
    region = register(here, memory, backend)
    metadata, remote = receive(stream)
    here.add_remote_agent(bytes.fromhex(metadata))
    send(stream, here.get_agent_metadata().hex())
    assert receive(stream) == "met"
    handles = [
        prepare(
            here,
            "WRITE",
            descriptors(memory, [(slot * size, size)]),
            [(remote + slot * size, size, 0)],
            "there",
            backend=backend,
        )
        for slot in range(window(size))
    ]
    # The first ones make the connection.
    for handle in handles:
        here.transfer(handle)
        assert finish(here, handle) == "DONE"
    written, begin = 0, time.perf_counter()
    for handle in handles:
        here.transfer(handle)
    while (elapsed := time.perf_counter() - begin) < seconds:
        for handle in handles:
            # The oldest ones are done first.
            assert finish(here, handle) == "DONE"
            written += size
            here.transfer(handle)
    for handle in handles:
        assert finish(here, handle) == "DONE"
        written += size
    elapsed = time.perf_counter() - begin
    last = window(size) - 1
    shown = min(size, 4096)
    send(stream, [last * size, shown])
    assert bytes.fromhex(receive(stream)) == memory[last * size : last * size + shown].tobytes(), "bytes differ"
    send(stream, "over")
    print(f"{written * 8 / elapsed / 1e9:.4f}", flush=True)
    for handle in handles:
        here.release_xfer_handle(handle)
    here.deregister_memory(region)


def main():
    role, backend, address, port, *rest = sys.argv[1:]
    if role == "serve":
        serve(backend, address, int(port))
    else:
        write(backend, address, int(port), int(rest[0]), float(rest[1]))
    # UCX's agents do not survive the end of the interpreter, with or without ours beside them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
