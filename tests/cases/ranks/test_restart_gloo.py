# torchrun --standalone --nproc-per-node 2 --max-restarts 1 -m pytest --dtdispatch --dtdispatch-timeout 20 FILE
# Attempt 0 fails, so that torchrun restarts. Attempt 1 opens a gloo group of its own, which finds nothing that attempt 0 wrote: status 0.
import os

import torch
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def test_gather(dtdispatch, device_mesh):
    store, key = _get_default_store(), f"written by rank {os.environ['RANK']}"
    assert not store.check([key]), (
        "the group reads what an earlier attempt wrote, such as the addresses of dead ranks"
    )
    store.set(key, "yes")
    a = distribute_tensor(torch.arange(16.0), device_mesh, [Shard(0)])
    steps = dtdispatch.steps(lambda: a.redistribute(device_mesh, [Replicate()]), warmup=1, steps=2)
    assert ATTEMPT, "attempt 0 fails"
    assert steps.collectives_per_step == 1
