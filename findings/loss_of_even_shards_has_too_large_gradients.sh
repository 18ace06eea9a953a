#!/usr/bin/env bash
# Guess: with even shards, the mean of the ranks' means is the mean, so that mse_loss of sharded DTensors has the loss and
# the gradients of the plain call; only uneven shards could be wrong.
# Seen (torch 2.13.0, CPU, two gloo ranks): the loss is right, and each gradient is twice as large as that of the plain
# call: the backward divides by the number of elements of the rank's own shard. smooth_l1_loss does the same; nll_loss of
# the same rows does not. Nothing warns, and a step with SGD uses the learning rate times the number of ranks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/losses.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
rows, target, classes = torch.rand(64, 8), torch.rand(64, 8), torch.randint(8, (64,))
if rank == 0:
    print("torch", torch.__version__)
for name, loss, expected, ratio in (
    ("mse_loss", F.mse_loss, target, 2.0),
    ("smooth_l1_loss", F.smooth_l1_loss, target, 2.0),
    ("nll_loss", F.nll_loss, classes, 1.0),
):
    plain = rows.clone().requires_grad_()
    value = loss(plain, expected)
    value.backward()
    sharded = distribute_tensor(rows, mesh, [Shard(0)]).detach().requires_grad_()
    of_shards = loss(sharded, distribute_tensor(expected, mesh, [Shard(0)]))
    of_shards.backward()
    gradient = sharded.grad.full_tensor()
    torch.testing.assert_close(of_shards.full_tensor(), value)
    torch.testing.assert_close(gradient, plain.grad * ratio)
    if rank == 0:
        print(f"{name} of even shards: the loss of the plain call, and {ratio:g} times its gradients")
dist.barrier()
dist.destroy_process_group()
PYTHON
for rank in 1 0; do
    OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore "$folder/losses.py" "$rank" "$folder/store" 2> "$folder/errors.$rank" &
done
for job in $(jobs -p); do wait "$job" || { cat "$folder"/errors.*; exit 1; }; done
