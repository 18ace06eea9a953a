#!/usr/bin/env bash
# Guess: CommDebugMode counts the collectives of whatever runs while it is open: two micro-batches, or a step whose model
# calls a layer twice.
# Seen (torch 2.13.0, CPU): the second forward of the same module raises IndexError, on plain tensors as on DTensors. One
# pass through each module works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
from torch.distributed.tensor.debug import CommDebugMode


class Model(torch.nn.Module):
    def __init__(self, calls: int) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 4), calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            x = self.layer(x)
        return x


def outcome(model: torch.nn.Module, passes: int) -> str:
    try:
        with CommDebugMode() as mode:
            for _ in range(passes):
                model(torch.ones(2, 4)).sum().backward()
        return f"{mode.get_total_counts()} collectives"
    except IndexError as error:
        return f"IndexError: {error}"


print("torch", torch.__version__)
found = {
    "one pass": outcome(Model(1), 1),
    "a layer called twice": outcome(Model(2), 1),
    "two passes": outcome(Model(1), 2),
}
for name, text in found.items():
    print(f"{name}: {text}")
failed = "IndexError: list index out of range"
assert found == {"one pass": "0 collectives", "a layer called twice": failed, "two passes": failed}, found
PYTHON
