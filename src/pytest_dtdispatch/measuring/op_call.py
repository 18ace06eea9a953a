"""An op with its arguments, and the op on the local shards that it comes down to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.torchapi.modes import UnnoticedMode
from pytest_dtdispatch.torchapi.op_schemas import (
    arguments_of,
    is_op,
    leaves_of,
    op_name,
    returns_nothing,
    tree_leaves,
)
from pytest_dtdispatch.torchapi.tensors import local_of


class OpCall(NamedTuple):
    """An op with the arguments that a program called it with."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Make the call."""
        __tracebackhide__ = True
        return self.func(*self.args, **self.kwargs)

    def leaves(self) -> list[Any]:
        """Every argument, lists of tensors flattened."""
        return leaves_of(self.args, self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """Tensors that the op's schema says it writes to."""
        arguments = arguments_of(self.func, self.args, self.kwargs)
        values = [argument.value for argument in arguments if argument.is_written]
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]

    def once_because(self) -> str | None:
        """Say why the call cannot be repeated, judged by its schema and tags; nothing where it can."""
        if not is_op(self.func):
            return "a higher-order operator runs once"
        if torch.Tag.inplace_view in self.func.tags:
            return "runs once: it changes a tensor's shape in place"
        if returns_nothing(self.func) and not self.written():
            return "runs once: its effect is outside its tensors"
        return None


class LocalOps(UnnoticedMode):
    """Record the ops that DTensor ops come down to: those on plain tensors, collectives among them.

    Declining DTensor ops makes DTensor dispatch them itself, below this mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OpCall] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        call = OpCall(func, args, kwargs or {})
        self.calls.append(call)
        return call.run()


def local_call_of(call: OpCall, rewind: Callable[[], None], signals: Signals) -> tuple[OpCall | None, str]:
    """Find the op on the local shards that a steady call comes down to.

    The call is made once more, on a hit, and what it runs below is recorded: nothing is guessed from rules.
    On a miss it would not do: propagation runs ops on fake tensors, and they would be recorded too.
    """
    rewind()
    with LocalOps() as below:
        try:
            signals.let_in()
            call.run()
        finally:
            signals.is_open = False
    collectives = [c for c in below.calls if getattr(c.func, "namespace", "").startswith(("c10d", "_c10d"))]
    if collectives:
        return None, f"redistributes ({', '.join(dict.fromkeys(c.func.__name__ for c in collectives))})"
    if len(below.calls) != 1:
        ops = ", ".join(dict.fromkeys(op_name(c.func) for c in below.calls)) or "none"
        return None, f"runs {len(below.calls)} ops on local shards ({ops})"
    [local] = below.calls
    if local.func is not call.func:
        return None, f"runs {op_name(local.func)} on local shards"
    if not _same_tensors(call, local):
        return None, "runs on other tensors than its local shards"
    return local, ""


def _same_tensors(call: OpCall, local: OpCall) -> bool:
    shards = [local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)
    same = len(shards) == len(used) and all(a is b for a, b in zip(shards, used, strict=True))
    return plain and same
