"""One of two ranks on one GPU: all_reduce, and send and receive, with checked numbers. See gpu.sh."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
for count in [1, 1000, 1 << 20, (1 << 24) + 3]:
    numbers = torch.arange(count, device="cuda", dtype=torch.int64) * (rank + 1)
    dist.all_reduce(numbers)
    expected = torch.arange(count, device="cuda", dtype=torch.int64) * 3
    assert torch.equal(numbers, expected), f"all_reduce of {count}"

    ours = torch.arange(count, device="cuda", dtype=torch.int32) + rank
    theirs = torch.empty_like(ours)
    operations = [dist.P2POp(dist.isend, ours, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    torch.cuda.synchronize()
    assert torch.equal(theirs, torch.arange(count, device="cuda", dtype=torch.int32) + 1 - rank), f"sendrecv of {count}"
dist.destroy_process_group()
print(f"rank {rank}: the numbers are right")
