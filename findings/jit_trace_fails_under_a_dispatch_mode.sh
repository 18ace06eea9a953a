#!/usr/bin/env bash
# Guess: a dispatch mode that only calls each op, as a counter of ops does, changes no program that runs inside of it.
# Seen (torch 2.13.0, CPU): torch.jit.trace raises RuntimeError under it, for the function that it traces without a mode.
# torch.fx.symbolic_trace and torch.export.export of the same function work.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Calling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Model(torch.nn.Module):
    def forward(self, x):
        return x.cpu() + 1


def outcome(trace, mode) -> str:
    try:
        with mode:
            trace()
        return "works"
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"


tracers = {
    "jit.trace": lambda: torch.jit.trace(Model(), torch.ones(2)),
    "fx.symbolic_trace": lambda: torch.fx.symbolic_trace(Model()),
    "export.export": lambda: torch.export.export(Model(), (torch.ones(2),)),
}
print("torch", torch.__version__)
found = {name: (outcome(each, nullcontext()), outcome(each, Calling())) for name, each in tracers.items()}
for name, (without, under) in found.items():
    print(f"{name}: without a mode {without}, under a mode {under}")
without, under = found.pop("jit.trace")
assert without == "works" and under.startswith("RuntimeError: aten::view() Expected a value of type 'Tensor'"), under
assert set(found.values()) == {("works", "works")}, found
PYTHON
