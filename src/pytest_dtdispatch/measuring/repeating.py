"""Measure an op by repeating it, and leave everything as the program's own call left it."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import clear_frames
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.op_call import OpCall, local_call_of
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.replay import CallReplay, OpReplay
from pytest_dtdispatch.measuring.rounds import Rounds
from pytest_dtdispatch.measuring.timing import Subject, nothing_to_do
from pytest_dtdispatch.torchapi.ops import (
    close_modes_opened_since,
    open_modes,
    with_own_warnings,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

REGISTRY = "__warningregistry__"


class Repetitions:
    """Repeat a call in a ``with`` block, without the program noticing.

    What a repetition raises becomes a note in place of figures, as the program's own call succeeded. What
    comes from elsewhere while one runs, the program sees as if its own call had raised it: what a signal
    handler raises, or another thread sets for this one to raise.

    It is no function that is given what to repeat, as each frame between the program and its op makes a miss
    longer: propagation walks the stack.

    Attributes:
        figures: what was measured; set it in the block.
        signals: let them in while the call runs.
    """

    def __init__(self, replay: OpReplay | CallReplay, once_more: Callable[[], Any] | None) -> None:
        self.figures = Figures()
        self.signals = Signals()
        self._replay = replay
        self._once_more = once_more
        self._entered = ExitStack()

    def __enter__(self) -> Repetitions:
        with ExitStack() as entered:
            entered.enter_context(self.signals)
            entered.enter_context(nothing_warned())
            entered.enter_context(without_outer_modes())
            entered.callback(self._replay.restore)
            entered.enter_context(self._replay.repeating())
            entered.callback(close_modes_opened_since, open_modes())
            self._entered = entered.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        __tracebackhide__ = True
        self.signals.is_open = False
        with self._entered:
            if not isinstance(error, Exception) or isinstance(error, RanksError):
                return False
            if self._once_more and is_from_elsewhere(error, self._once_more):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep it, and with it what was repeated
            self.figures = Figures(notes=(f"repeating it raised {first_line(error)}",))
        return True


def is_from_elsewhere(error: Exception, once_more: Callable[[], Any]) -> bool:
    """Tell what another thread made this one raise: it says nothing, and does not come again."""
    if error.args:
        return False
    try:
        once_more()
    except Exception as again:
        return type(again) is not type(error)
    return True


@contextmanager
def nothing_warned() -> Iterator[None]:
    """Ignore every warning of this thread, and leave what Python knows of warnings as it was.

    The program's own call has given them already.

    ``warnings.catch_warnings`` would not do: leaving it makes Python forget which warnings it has shown.
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list; others may hold it
    ours = ("ignore", _OfThisThread(), Warning, None, 0)
    seen = [(registry, dict(registry)) for registry in _registries()]
    filters.insert(0, ours)
    version = _version()
    try:
        yield
    finally:
        now = _version()
        _put_back(seen, version, now)
        if ours in filters:
            filters.remove(ours)


class _OfThisThread:
    """Matches each message in one thread, and none in another."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, _message: str) -> bool:
        return threading.get_ident() == self._thread


def _registries() -> Iterator[dict[Any, Any]]:
    """Every module's record of the warnings that were shown from it."""
    for module in list(sys.modules.values()):
        registry = getattr(module, "__dict__", {}).get(REGISTRY)
        if isinstance(registry, dict):
            yield registry


def _version() -> int:
    """Number of times that filters were changed; a record with another number is void."""
    registry: dict[Any, Any] = {}
    warnings.warn_explicit("", Warning, "", 0, registry=registry)
    return int(registry["version"])


def _put_back(seen: list[tuple[dict[Any, Any], dict[Any, Any]]], version: int, now: int) -> None:
    for registry, before in seen:
        if registry != before or version != now:
            registry.clear()
            registry.update(before)
            if before.get("version") == version:
                registry["version"] = now


def synchronizer() -> Any:
    """Return what waits for the device, where this process uses one."""
    return torch.cuda.synchronize if torch.cuda.is_initialized() else nothing_to_do


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
