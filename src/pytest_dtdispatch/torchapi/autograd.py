"""Nodes of autograd's graph, and the engine that runs them."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache  # called first before the function is patched: all patched functions share one code
def engine_code() -> Any:
    """Return the code of the function that runs the engine; its caller is the next frame of the stack."""
    return torch.autograd.graph._engine_run_backward.__code__


def is_in_backward() -> bool:
    """Return whether the engine runs in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def next_node_number() -> int:
    """Return the number of the next node that this thread creates."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def running_node() -> Any:
    """Return the node that the engine runs in this thread, or None."""
    return torch._C._current_autograd_node() if is_in_backward() else None


def number_of(node: Any) -> int | None:
    """Return the number of a node, unique in the thread that created it; None if it has none."""
    number = int(node._sequence_nr())
    return number if number < 2**63 else None  # the number of nodes that accumulate gradients
