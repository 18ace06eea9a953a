#!/usr/bin/env bash
# Guess: `squeeze_` removes a dimension of a DTensor, as it does of a plain tensor; or torch refuses it, as it refuses
# `unsqueeze_`, `t_` and `transpose_` on DTensors ("does not have a sharding strategy registered").
# Seen (torch 2.13.0, CPU): it raises nothing and returns its DTensor, whose shape stays (1, 4), while the local tensor has
# shape (4,). Results of later ops contradict themselves in the same way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x = distribute_tensor(torch.ones(1, 4), mesh, [Replicate()])
assert x.squeeze_(0) is x
later = x + 1
print("torch", torch.__version__)
for name, tensor in {"x.squeeze_(0)": x, "x + 1": later}.items():
    shape, local = tuple(tensor.shape), tuple(tensor.to_local().shape)
    print(f"{name}: shape {shape}, local shape {local}")
    assert (shape, local) == ((1, 4), (4,))
plain = torch.ones(1, 4)
assert plain.squeeze_(0).shape == (4,)
for name in ("unsqueeze_", "transpose_"):
    dims = (0,) if name == "unsqueeze_" else (0, 1)
    try:
        getattr(distribute_tensor(torch.ones(1, 4), mesh, [Replicate()]), name)(*dims)
    except NotImplementedError as error:
        print(f"{name}: {error}")
    else:
        raise AssertionError(name)
dist.destroy_process_group()
PYTHON
