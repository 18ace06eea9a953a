"""Nodes of the autograd graph, and the autograd engine."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch


@functools.cache  # the first call must precede patching: all patched functions share one code object
def engine_code() -> Any:
    """Return the code of the function that runs the engine; the next frame of the stack is its caller."""
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
    return number if number < 2**63 else None  # larger for nodes that accumulate gradients


# Nodes that a cross entropy may have between it and its logits: each op computes element by element.
ELEMENTWISE = {
    f"{name}Backward0"
    for name in (
        "Alias", "Clone", "Div", "Mul", "Permute", "ReshapeAlias", "Slice", "Squeeze", "Tanh", "ToCopy",
        "Transpose", "Unsqueeze", "UnsafeView", "View",
    )
} | {"_ToTorchTensorBackward"}  # fmt: skip


def origins_of_logits(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes that created the logits of each cross entropy near the roots of a backward."""
    nodes = [getattr(each, "grad_fn", None) or getattr(each, "node", None) for each in outputs]
    consumers: defaultdict[Any, set[bool]] = defaultdict(set)  # whether each is the loss, by log-softmax
    for node in nodes:  # grows
        if node is None or len(nodes) > 64:  # the loss is near the root
            continue
        inputs = [each for each, _ in node.next_functions if each is not None]
        for each in inputs:
            if each.name() == "LogSoftmaxBackward0":
                # The loss of an image has its classes in the second dimension, and another node.
                consumers[each].add(node.name().startswith("NllLossBackward"))
            else:
                nodes.append(each)
    # With label smoothing, a sum uses the log-probabilities too, which `loss_parallel` does not support.
    yield from (_first_other(softmax) for softmax, is_loss in consumers.items() if is_loss == {True})


def _first_other(node: Any) -> Any:
    """Return the first node behind a node that is not elementwise."""
    while True:
        inputs = [each for each, _ in node.next_functions if each is not None]
        if len(inputs) != 1:
            return node
        node = inputs[0]
        if node.name() not in ELEMENTWISE:
            return node
