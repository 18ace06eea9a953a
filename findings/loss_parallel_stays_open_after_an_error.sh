#!/usr/bin/env bash
# Guess: `with loss_parallel():` closes when its block raises, as other context managers do.
# Seen (torch 2.13.0, CPU): it stays open. A cross entropy outside of any block then returns a result without
# the usual redistribution: its ops are still handled by loss_parallel, until a later block closes without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
logits = distribute_tensor(torch.zeros(4, 16), mesh, [Shard(1)])
labels = distribute_tensor(torch.arange(4), mesh, [Replicate()])


def collectives():
    with CommDebugMode() as mode:
        torch.nn.functional.cross_entropy(logits, labels)
    return {str(op): count for op, count in mode.get_comm_counts().items()}


before = collectives()
try:
    with loss_parallel():
        raise ValueError("a batch without labels")
except ValueError:
    pass
after = collectives()
with loss_parallel():
    pass
closed = collectives()
print("torch", torch.__version__)
print("before:", before)
print("after an error in the block:", after)
print("after a block without an error:", closed)
assert before != after, "the block closes if it raises"
assert closed == before, "a later block does not close it"
PYTHON
