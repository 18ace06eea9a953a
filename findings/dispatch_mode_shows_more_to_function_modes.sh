#!/usr/bin/env bash
# Guess: a TorchFunctionMode receives the same functions whether a dispatch mode that only calls each op is open
# inside it or not, because a dispatch mode is below it.
# Seen (torch 2.13.0, CPU): for `torch.ones(2).untyped_storage().tolist()` it receives 2 functions without the
# dispatch mode and 34 with it. Ops that C++ code runs by itself reach the dispatch mode, which calls them from
# Python, where the function mode receives them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Names(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(getattr(func, "__name__", func)))
        return func(*args, **(kwargs or {}))


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def names(inner):
    with Names() as mode, inner:
        torch.ones(2).untyped_storage().tolist()
    return mode.names


alone, inside = names(nullcontext()), names(Passing())
print("torch", torch.__version__)
print("function mode alone:", len(alone), alone)
print("with a dispatch mode:", len(inside), sorted(set(inside)))
assert len(alone) <= 3, alone
assert len(inside) > 10, inside
PYTHON
