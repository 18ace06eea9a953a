"""Run one op for the program, once, and measure it, and what it runs on its local shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.measuring.caches import ShardingCaches
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.modes import UnnoticedMode
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeating import Repetitions, synchronizer
from pytest_dtdispatch.measuring.replay import OpCall, OpReplay
from pytest_dtdispatch.measuring.rounds import Rounds
from pytest_dtdispatch.measuring.timing import Subject
from pytest_dtdispatch.torchapi import names as torchapi


def run_and_measure_op(call: OpCall, caches: ShardingCaches, plan: Plan) -> tuple[Any, Figures]:
    """Make an op call as the program asked for it, then repeat it without the program noticing.

    The program's call comes first and with every mode of the program open; what it raises, it raises
    here. The repetitions see no mode, and leave contents, random state and results as that call left them.
    """
    __tracebackhide__ = True  # what the program's call raises is the program's
    once = call.once_because()
    if once:
        return call.run(), Figures(notes=(once,))
    with torchapi.without_outer_modes():
        replay = OpReplay(call)
    with replay.watching():
        try:
            result = call.run()
        except BaseException:
            del replay  # a traceback that lives on must not hold what was saved
            raise
    with torchapi.without_outer_modes():
        once = replay.settle()
    if once:
        return result, Figures(notes=(once,))

    def once_more() -> Any:
        replay.rewind()
        caches.clear()
        return call.run()

    with Repetitions(replay, None if plan.agreement else once_more) as repetitions:
        signals = repetitions.signals
        local, why_no_local = torchapi.with_own_warnings(lambda: local_call_of(call, replay.rewind, signals))
        local_subject = _subject(local, replay) if local else None
        rounds = Rounds(_subject(call, replay), caches, plan, local_subject, synchronizer(), signals)
        taken = torchapi.with_own_warnings(rounds.take)
        repetitions.figures = taken.figures(*(() if local else (f"no local row: {why_no_local}",)))
    return result, repetitions.figures


def _subject(call: OpCall, replay: OpReplay) -> Subject:
    args = call.args
    if not replay.rewinds:
        return Subject(call.func, lambda: args, call.kwargs)

    def rewound() -> tuple[Any, ...]:
        replay.rewind()
        return args

    return Subject(call.func, rewound, call.kwargs)


def has_dtensor(leaves: list[Any]) -> bool:
    """Tell whether there is a DTensor among the arguments of a call."""
    return any(isinstance(leaf, DTensor) for leaf in leaves)


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
        ops = ", ".join(dict.fromkeys(torchapi.op_name(c.func) for c in below.calls)) or "none"
        return None, f"runs {len(below.calls)} ops on local shards ({ops})"
    [local] = below.calls
    if local.func is not call.func:
        return None, f"runs {torchapi.op_name(local.func)} on local shards"
    if not _same_tensors(call, local):
        return None, "runs on other tensors than its local shards"
    return local, ""


def _same_tensors(call: OpCall, local: OpCall) -> bool:
    shards = [torchapi.local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)
    same = len(shards) == len(used) and all(a is b for a, b in zip(shards, used, strict=True))
    return plain and same
