"""Run one op for the program, once, and measure it, and what it runs on its local shards."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.measuring.op_call import OpCall, local_call_of
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeating import Repetitions, synchronizer
from pytest_dtdispatch.measuring.replay import OpReplay
from pytest_dtdispatch.measuring.rounds import Rounds
from pytest_dtdispatch.measuring.timing import Subject
from pytest_dtdispatch.torchapi.modes import with_own_warnings, without_outer_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches


def run_and_measure_op(call: OpCall, caches: ShardingCaches, plan: Plan) -> tuple[Any, Figures]:
    """Make an op call as the program asked for it, then repeat it without the program noticing.

    The program's call comes first and with every mode of the program open; what it raises, it raises
    here. The repetitions see no mode, and leave contents, random state and results as that call left them.
    """
    __tracebackhide__ = True  # what the program's call raises is the program's
    once = call.once_because()
    if once:
        return call.run(), Figures(notes=(once,))
    with without_outer_modes():
        replay = OpReplay(call)
    with replay.watching():
        try:
            result = call.run()
        except BaseException:
            del replay  # a traceback that lives on must not hold what was saved
            raise
    with without_outer_modes():
        once = replay.settle()
    if once:
        return result, Figures(notes=(once,))

    def once_more() -> Any:
        replay.rewind()
        caches.clear()
        return call.run()

    with Repetitions(replay, None if plan.agreement else once_more) as repetitions:
        signals = repetitions.signals
        local, why_no_local = with_own_warnings(lambda: local_call_of(call, replay.rewind, signals))
        local_subject = _subject(local, replay) if local else None
        rounds = Rounds(_subject(call, replay), caches, plan, local_subject, synchronizer(), signals)
        taken = with_own_warnings(rounds.take)
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
