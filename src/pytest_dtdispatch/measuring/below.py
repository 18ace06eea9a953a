"""What an op call comes down to: the op on local shards, redistributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.metrics import repeated
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode, placements_text, tensor_text
from pytest_dtdispatch.torchapi.dispatcher import noticing_redistributions
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.tensors import local_of, tensor_traits


class LocalOps(UnnoticedMode):
    """Record the ops that DTensor ops come down to: those on plain tensors, collectives among them.

    Declining DTensor ops makes DTensor dispatch them itself, below this mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        call = OpCall(func, args, kwargs or {})
        self.calls.append(call)
        return call.run()


class Below(NamedTuple):
    """What a steady call comes down to.

    Args:
        local: the op on the local shards; None where it is not that op alone.
        why_no_local: why there is none; empty where there is one.
        redistributed: each redistribution that it implies: ``f32[8,16]S0R -> RR``.
    """

    local: OpCall | None
    why_no_local: str
    redistributed: tuple[str, ...]


def below(call: OpCall, rewind: Callable[[], None], signals: Signals) -> Below:
    """Find what a steady call comes down to: an op on the local shards, and redistributions.

    The call is made once more, on a hit, and what it runs below is recorded: nothing is guessed from rules.
    On a miss it would not do: propagation runs ops on fake tensors, and they would be recorded too.
    """
    rewind()
    redistributed: list[str] = []

    def note(source: Any, target: Any) -> None:
        traits = tensor_traits(source)
        text = tensor_text(traits) if traits else placements_text(source.placements)
        redistributed.append(f"{text} -> {placements_text(target.placements)}")

    with LocalOps() as ops, noticing_redistributions(note):
        try:
            signals.let_in()
            call.run()
        finally:
            signals.is_open = False
    return Below(*_local_among(call, ops.calls), tuple(repeated(redistributed)))


def _local_among(call: OpCall, ran: Sequence[OpCall]) -> tuple[OpCall | None, str]:
    """Choose the op on the local shards from all that a call ran below, or say why there is none."""
    collectives = [c for c in ran if getattr(c.func, "namespace", "").startswith(("c10d", "_c10d"))]
    if collectives:
        return None, f"redistributes ({', '.join(dict.fromkeys(c.func.__name__ for c in collectives))})"
    if len(ran) != 1:
        ops = ", ".join(dict.fromkeys(op_name(c.func) for c in ran)) or "none"
        return None, f"runs {len(ran)} ops on local shards ({ops})"
    [local] = ran
    if local.func is not call.func:
        return None, f"runs {op_name(local.func)} on local shards"
    if not _same_tensors(call, local):
        return None, "runs on other tensors than its local shards"
    return local, ""


def _same_tensors(call: OpCall, local: OpCall) -> bool:
    shards = [local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    is_same = all(shard is tensor for shard, tensor in zip_longest(shards, used))
    return is_same and all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)
