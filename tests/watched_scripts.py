"""Scripts that ``dtdispatch watch`` runs in tests."""

from __future__ import annotations

from collections.abc import Callable

# Status, standard output and standard error of a watched script.
Watch = Callable[..., tuple[int, str, str]]

MESH = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
"""


def line_in(code: str, text: str) -> int:
    """Return the number of the line of a script that starts with a text."""
    return next(n for n, line in enumerate(code.splitlines(), 1) if line.strip().startswith(text))
