#!/usr/bin/env bash
# Guess: `get_optimizer_state_dict` of torch.distributed.checkpoint only reads, so that a program may call it before its
# first step, to learn the keys or to save step 0, and trains to the same parameters.
# Seen (torch 2.13.0, CPU): if the optimizer has no state yet, the call runs `optimizer.step()` with zero gradients and
# lr=0, including its hooks. Parameters stay, but AdamW's step counter is 1 then: the bias correction of the first real
# step is that of the second, and its update is 0.744 of lr instead of lr.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

LR = 0.125


def first_update(reads: bool) -> tuple[float, int]:
    """Train for one step; return the size of the update in units of lr, and the steps that a hook saw before it."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    before = model.weight.item()
    if reads:
        get_optimizer_state_dict(model, optimizer)
    assert model.weight.item() == before
    seen = len(steps)
    model.weight.grad = torch.ones(1, 1)
    optimizer.step()
    return round((before - model.weight.item()) / LR, 3), seen


print("torch", torch.__version__)
found = {reads: first_update(reads) for reads in (False, True)}
for reads, (update, steps) in found.items():
    print(f"read before: {reads}, steps of a hook before the first: {steps}, first update: {update} of lr")
assert found == {False: (1.0, 0), True: (0.744, 1)}, found
PYTHON
