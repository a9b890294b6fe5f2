"""One of two ranks on one GPU: all_reduce, and send and receive, with checked numbers. See gpu.sh.

With CUT, the address of a rail over TCP, the rank shuts the rail's connections down again and again meanwhile.
"""

import os
import socket
import threading
import time

rank = int(os.environ["RANK"])
# NCCL refuses two ranks on one GPU of a host. Ranks of two hosts use nothing but the network.
os.environ["NCCL_HOSTID"] = f"polyrail-{rank}"

import torch  # noqa: E402 (NCCL reads the variable when it is loaded)
import torch.distributed as dist  # noqa: E402

CUT = os.environ.get("CUT")
SECONDS_OF_CUTS = 20

torch.cuda.set_device(0)
dist.init_process_group("nccl")


def connections(address):
    """Yields this process's TCP connections from an address to the same address."""
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        with found:
            try:
                if found.family == socket.AF_INET and found.getsockname()[0] == found.getpeername()[0] == address:
                    yield found
            except OSError:
                continue  # not connected


def cut_until(ended):
    """Returns how many connections of the rail were shut down."""
    cut = 0
    while not ended.wait(1.0):
        for connection in connections(CUT):
            connection.shutdown(socket.SHUT_RDWR)
            cut += 1
    return cut


def all_reduce(count):
    numbers = torch.arange(count, device="cuda", dtype=torch.int64) * (rank + 1)
    dist.all_reduce(numbers)
    expected = torch.arange(count, device="cuda", dtype=torch.int64) * 3
    assert torch.equal(numbers, expected), f"all_reduce of {count}"


def exchange(count):
    ours = torch.arange(count, device="cuda", dtype=torch.int32) + rank
    theirs = torch.empty_like(ours)
    operations = [dist.P2POp(dist.isend, ours, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    torch.cuda.synchronize()
    assert torch.equal(theirs, torch.arange(count, device="cuda", dtype=torch.int32) + 1 - rank), f"sendrecv of {count}"


for count in [1, 1000, 1 << 20, (1 << 24) + 3]:
    all_reduce(count)
    exchange(count)

if CUT:
    ended, cuts = threading.Event(), []
    thread = threading.Thread(target=lambda: cuts.append(cut_until(ended)))
    thread.start()
    times, begun = 0, time.monotonic()
    is_over = torch.zeros(1, device="cuda")
    while not is_over.item():
        all_reduce((1 << 22) + times)
        exchange((1 << 22) + times)
        times += 1
        # Rank 0 decides for both.
        is_over.fill_(float(rank == 0 and time.monotonic() - begun > SECONDS_OF_CUTS))
        dist.all_reduce(is_over)
    ended.set()
    thread.join()
    assert cuts[0] > 0, "no connection was shut down"
    print(f"rank {rank}: {times} times right, while {cuts[0]} connections of {CUT} were shut down", flush=True)

dist.destroy_process_group()
print(f"rank {rank}: the numbers are right", flush=True)
