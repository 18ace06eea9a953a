#!/usr/bin/env bash
# Guess: `x.clamp(0.0, bound)` with a 0-dim tensor runs `aten.clamp.Tensor`, as `x.clamp(max=bound)` does: neither reads
# the bound on the host, and a DTensor's cached plan serves every bound.
# Seen (torch 2.13.0, CPU): beside a number the tensor becomes a number too: `aten._local_scalar_dense`, which waits for
# a device, and `aten.clamp.default`, whose key has the value: a new bound in each step misses the cache of a DTensor.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def ops(call):
    with Ops() as ran:
        call()
    return ran.names


x, zero, bound = torch.rand(4), torch.zeros(()), torch.tensor(0.5)
alone = ops(lambda: x.clamp(max=bound))
tensors = ops(lambda: x.clamp(zero, bound))
mixed = ops(lambda: x.clamp(0.0, bound))
print("torch", torch.__version__)
print("clamp(max=tensor):", alone, "clamp(tensor, tensor):", tensors)
print("clamp(number, tensor):", mixed)
assert alone == tensors == ["aten.clamp.Tensor"]
assert mixed == ["aten._local_scalar_dense.default", "aten.clamp.default"]
PYTHON
