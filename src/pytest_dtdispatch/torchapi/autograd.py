"""Autograd's engine: whether it runs, which node of the graph it is at, and when it begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from pytest_dtdispatch.torchapi.shared_hook import held_by_name

RUN = "_engine_run_backward"
UNNUMBERED = 2**63  # nodes that accumulate gradients have the greatest number that there is


def engine_code() -> Any:
    """Return the code of the function that runs the engine; below it on the stack is what called it."""
    return getattr(torch.autograd.graph, RUN).__code__


def is_in_backward() -> bool:
    """Tell whether the engine runs in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def next_node_number() -> int:
    """Return the number that the next node gets which this thread makes."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def running_node() -> Any:
    """Return the node that the engine is at in this thread; None where it is at none."""
    return torch._C._current_autograd_node() if is_in_backward() else None


def number_of(node: Any) -> int | None:
    """Return the number of a node, counted by the thread that made it; None of one without a number."""
    number = int(node._sequence_nr())
    return number if number < UNNUMBERED else None


def parameter_of(node: Any) -> Any:
    """Return the leaf whose gradient a node accumulates; None of any other node."""
    return getattr(node, "variable", None)


@contextmanager
def watching_backward(watcher: Any) -> Iterator[None]:
    """Tell a watcher of each run of the engine, which it makes: ``watcher.on_backward(run, *args)``."""
    run = getattr(torch.autograd.graph, RUN)
    watched = partial(watcher.on_backward, run)

    def backward(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return watched(*args, **kwargs)

    with ExitStack() as hooks:
        for hook in held_by_name(RUN, run, backward):
            hooks.enter_context(hook)
        yield
