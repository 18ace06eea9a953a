"""Steps with a miss too many, each beside the same step without it, for ``dtdispatch selftest``.

The name of this file does not begin with ``test_``: the suite leaves it out, unless it is named.
"""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.suite.models import rows_split

OPS = ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "gt")
ROWS, WIDTHS = 8, range(4, 16)
WARMUP, STEPS = 2, 3
CLEAN, SPOILED = "clean", "with an extra miss"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", OPS)
def test_steps(dtdispatch: DtDispatch, device_mesh: DeviceMesh, op: str, width: int) -> None:
    """Count steady steps, and steps each of which calls the op on a shape that no step had before."""
    work, steady = getattr(torch, op), rows_split(device_mesh, ROWS, width)
    fresh = [rows_split(device_mesh, ROWS, 100 + step) for step in range(WARMUP + STEPS)]

    def clean() -> None:
        work(steady, steady)

    def spoiled() -> None:
        work(steady, steady)
        tensor = fresh.pop()
        work(tensor, tensor)

    dtdispatch.steps(clean, WARMUP, STEPS, name=CLEAN)
    dtdispatch.steps(spoiled, WARMUP, STEPS, name=SPOILED)
