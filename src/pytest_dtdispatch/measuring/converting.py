"""Conversions of DTensors that a region asks for: seen in the thread of its capture, and repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples
from pytest_dtdispatch.measuring.below import LocalOps
from pytest_dtdispatch.measuring.conversion_call import ConversionCall
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeating import OpReplay, Repetitions, synchronizer
from pytest_dtdispatch.measuring.rounds import Rounds, Subject
from pytest_dtdispatch.measuring.state import Versions, in_turn
from pytest_dtdispatch.torchapi.compiler import is_tracing
from pytest_dtdispatch.torchapi.conversions import Converter, conversion_hooks
from pytest_dtdispatch.torchapi.dispatcher import collective_of
from pytest_dtdispatch.torchapi.ops import open_modes, with_own_warnings, without_outer_modes
from pytest_dtdispatch.torchapi.plan_caches import PlanCaches
from pytest_dtdispatch.torchapi.tensors import release_of, wait_for

NOT_COUNTED = "not measured: this torch does not count what its plans of redistribution are asked for"


class ConversionWatch:
    """Hand over each conversion that the thread of a capture asks for, and none that is part of another.

    What an op converts inside is part of that op: there the capture is not open, nor in a repetition.
    """

    def __init__(self, capture: Any, take: Callable[[ConversionCall], Any]) -> None:
        self._capture = capture
        self._take = take
        self._here = threading.local()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hand them over for a while."""
        with ExitStack() as hooks:
            for hook in conversion_hooks(self):
                hooks.enter_context(hook)
            yield

    def on_conversion(
        self, converter: Converter, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Be told of a conversion by torch, and make it."""
        __tracebackhide__ = True
        if getattr(self._here, "is_inside", False):
            return function(*args, **kwargs)
        call = ConversionCall(converter, function, args, kwargs)
        if call.tensor is None or is_tracing() or all(one is not self._capture for one in open_modes()):
            return function(*args, **kwargs)
        self._here.is_inside = True
        try:
            return self._take(call)
        finally:
            self._here.is_inside = False


class ConversionReplay(OpReplay):
    """What a program could notice of a conversion that is made again: above autograd, also versions."""

    def __init__(self, call: ConversionCall) -> None:
        super().__init__(call)
        self._versions = Versions()
        if call.tensor is not None:
            self._versions.note(call.tensor)

    def settle(self) -> str:
        """Note what the program's call left behind; say why it cannot be repeated, where it cannot."""
        self._versions.settle()
        return super().settle()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        in_turn(super().restore, self._versions.restore)


class RanConversion:
    """A conversion that the program has made, and that can be repeated to measure it.

    Attributes:
        result: of the program's own call.
        took_ns: how long that took.
    """

    def __init__(self, call: ConversionCall) -> None:
        __tracebackhide__ = True
        self._call = call
        with without_outer_modes():
            self._replay = ConversionReplay(call)
        with self._replay.masks.watching():
            began = time.perf_counter_ns()
            self.result = call.run()
            self.took_ns = time.perf_counter_ns() - began

    def measure(self, caches: PlanCaches, plan: Plan) -> Figures:
        """Repeat it, and leave behind what the program's own call left behind."""
        __tracebackhide__ = True
        replay, call = self._replay, self._call
        with without_outer_modes():
            once = replay.settle()
        if once or not caches.readers():
            return Figures(notes=(once or NOT_COUNTED,))

        def prepare() -> tuple[Any, ...]:
            replay.rewind()
            return call.again()

        subject = Subject(call.function, prepare, call.kwargs)

        def once_more() -> Any:
            caches.clear()
            return call.function(*prepare(), **call.kwargs)

        again = None if plan.agreement else once_more
        with Repetitions(replay.restore, replay.masks, again, plan.one_thread) as repetitions:
            signals = repetitions.signals
            ran = with_own_warnings(lambda: _collectives_below(subject, signals))
            if ran:  # else what is waited for would be a collective of the program's own
                subject = replace(subject, release=release_of(self.result))
            rounds = Rounds(subject, caches, plan, None, synchronizer(), signals)
            figures = with_own_warnings(rounds.take)
            repetitions.figures = _in_terms_of_plans(figures, f"runs {', '.join(ran) or 'no collective'}")
        return repetitions.figures


def _collectives_below(subject: Subject, signals: Signals) -> list[str]:
    """Repeat a conversion, and name the collectives that it runs, in their order."""
    args = subject.prepare()
    with LocalOps() as below:
        try:
            signals.let_in()
            result = subject.fn(*args, **subject.kwargs)
        finally:
            signals.is_open = False
    ran = [kind for call in below.calls if (kind := collective_of(call.func))]
    if ran:
        wait_for(result)
    return ran


def _in_terms_of_plans(figures: Figures, ran: str) -> Figures:
    """Say of plans what is said of propagation where ops are measured."""

    def told(refused: Refused) -> Refused:
        return replace(refused, reason=refused.reason.replace("propagation", "planning"))

    def of_plans(samples: Samples) -> Samples:
        return replace(samples, refused=tuple(map(told, samples.refused)))

    notes = tuple(note.replace("propagation", "planning") for note in figures.notes)
    remarks = (ran, *(each.replace("the sharding propagator", "for a plan") for each in figures.remarks))
    return replace(figures, samples=tuple(map(of_plans, figures.samples)), notes=notes, remarks=remarks)
