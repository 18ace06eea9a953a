"""Captures: DTensor ops of a region are measured as they come by."""

from __future__ import annotations

import math
import statistics
import sys
import threading
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from logging import DEBUG
from multiprocessing.process import BaseProcess
from shutil import get_terminal_size
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.errors import MeasurementError, warn
from pytest_dtdispatch.replay.call import ConversionCall, OpCall, UnnoticedMode, has_dtensor, signature_of
from pytest_dtdispatch.replay.guard import MeasurementLock, refuse_elsewhere
from pytest_dtdispatch.replay.repeat import Found, run_conversion, run_op
from pytest_dtdispatch.report.rows import timed_document
from pytest_dtdispatch.report.terminal import page_width, plain_text
from pytest_dtdispatch.rounds.plan import QUICK_WARMUP, Plan
from pytest_dtdispatch.torchapi.compiler import is_tracing
from pytest_dtdispatch.torchapi.groups import has_real_group, innermost_in_local_mode
from pytest_dtdispatch.torchapi.observe import Converter, observe_conversions, observe_propagations
from pytest_dtdispatch.torchapi.ops import (
    hidden_from_debug_mode,
    is_mode_of_program,
    op_name,
    open_modes,
    unnoticed,
)
from pytest_dtdispatch.torchapi.patches import calling, patched
from pytest_dtdispatch.torchapi.propagator import PlanCaches, ShardingCaches, dispatch_loggers
from pytest_dtdispatch.torchapi.tensors import is_local_mode_open, share_masks, wraps_dtensors

if TYPE_CHECKING:
    from typing_extensions import Self

__tracebackhide__ = True  # a test that fails here shows its own line


class UnseenOps:
    """Notice DTensor ops that an open capture does not see.

    Of a thread of the program's own propagations are noticed, so that a hit costs what it costs: a new thread
    begins with empty caches, and its first ops propagate. Threads that torch runs for the thread with the
    capture, as autograd does, have its modes, and are not meant.

    A mode that was opened inside the capture may decline DTensor ops and let their plain-tensor ops through:
    a debug mode does. The proof is that a plain-tensor op comes through it after a propagation that no op of
    the capture made.
    """

    def __init__(self, capture: object, caches: ShardingCaches) -> None:
        self._capture = capture
        self._caches = caches
        self._home = threading.get_ident()
        self._propagated: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
        self._counted: dict[int, list[tuple[int, int]]] = {}  # counters are per thread
        self._hiding: set[str] = set()

    def note(self) -> None:
        """Note the counters of this thread: an op that the capture saw has ended."""
        self._counted[threading.get_ident()] = self._counters()

    def look(self) -> None:
        """Look for a mode that hides the DTensor op to which the plain-tensor op at hand belongs."""
        if self._counted.get(threading.get_ident(), now := self._counters()) == now:
            return
        if (mode := next(filter(is_mode_of_program, _dispatching()), None)) is not None:
            self._hiding.add(type(mode).__name__)

    def found(self) -> Unseen:
        """Return how many threads ran ops, at least how many ops, and which modes hid some."""
        ops = sum(max(propagated.values()) for propagated in self._propagated.values())
        return Unseen(len(self._propagated), ops, modes=tuple(sorted(self._hiding)))

    def warn(self) -> None:
        """Warn of what was noticed."""
        found = self.found()
        messages = [
            f"{mode} was opened inside the capture and hides DTensor ops from it: "
            f"open a capture inside {mode}, by TimeCaptureMode or dtdispatch.capture()"
            for mode in found.modes
        ]
        if found.threads:
            names = ", ".join(repr(name) for _, name in self._propagated)
            messages.append(
                f"DTensor ops ran in threads without a capture ({names}; at least {found.ops} ops): "
                "they were not measured; open the capture in the thread that runs them"
            )
        for message in messages:
            warn(message, stacklevel=4, is_reported=True)

    def _counters(self) -> list[tuple[int, int]]:
        return [(read[0], read[1]) for read in (reader() for reader in self._caches.readers())]

    def note_propagation(self, looked_up: str) -> None:
        """Note a propagation in another thread than the one that the capture is opened in."""
        ident = threading.get_ident()
        # In this thread too the capture may be open, or be handling an op of it right now.
        if ident != self._home and all(one is not self._capture for one in (*open_modes(), *_dispatching())):
            self._propagated[ident, threading.current_thread().name][looked_up] += 1


def watching_processes(on_start: Callable[[Callable[[Any], Any], Any], Any]) -> AbstractContextManager[None]:
    """Hand over what starts a process that is to run a function of the program, and the process."""
    return patched(BaseProcess, "start", calling(on_start))


def _dispatching() -> Iterator[Any]:
    """Return what is handling an op in this thread right now, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__":
            yield frame.f_locals.get("self")
        frame = frame.f_back


class DispatchCapture(UnnoticedMode):
    """A dispatch mode that is asked for every op, and hands those on DTensors to :meth:`on_op`.

    It starts below autograd, where torch asks dispatch modes.
    """

    def __init__(self, ops: Sequence[str] = (), results: TestResults | None = None) -> None:
        super().__init__()
        self._ops = tuple(ops)
        self._results = TestResults() if results is None else results
        self._caches = ShardingCaches()
        self._masks: dict[tuple[Any, ...], list[Any]] = {}
        self._measuring = MeasurementLock("a capture is open")

    def __enter__(self) -> Self:
        refuse_elsewhere()
        if any(isinstance(mode, DispatchCapture) for mode in open_modes()):
            raise MeasurementError(
                "a capture is open already: captures cannot be nested, close the outer one first"
            )
        return super().__enter__()

    def _open(self) -> None:
        warn_of_debug_logging()  # here a signal cannot leave the lock of logging behind
        self._measuring.__enter__()
        self._unseen = UnseenOps(self, self._caches)
        self._measuring.contexts.enter_context(observe_propagations(self._unseen.note_propagation))
        self._measuring.contexts.enter_context(innermost_in_local_mode(self))
        self._measuring.contexts.enter_context(hidden_from_debug_mode(UnnoticedMode))
        super()._open()
        self._unseen.note()

    def _close(self) -> list[str]:
        try:
            return super()._close() if self._measuring.is_of_this_thread() else []
        finally:
            self._measuring.__exit__()

    def _closed(self, left_open: list[str], has_raised: bool) -> None:
        self._results.unseen += self._unseen.found()
        if has_raised:
            return
        if not self._measuring.is_of_this_thread():
            raise MeasurementError(
                f"the capture was opened in thread {self._measuring.thread.name!r}: close it there"
            )
        self._unseen.warn()
        if left_open:
            raise MeasurementError(f"{', '.join(left_open)} was opened inside the capture and never closed")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OpCall(func, args, kwargs or {})
        leaves = call.leaves()
        if types != (DTensor,) and any(map(wraps_dtensors, leaves)):
            return NotImplemented  # its own dispatch comes down to ops on the DTensors inside, seen here
        on_dtensors = has_dtensor(leaves)
        if not on_dtensors:
            self._unseen.look()
        try:
            result = self.on_op(call) if on_dtensors and self._is_selected(op_name(func)) else call.run()
        finally:
            self._unseen.note()
        share_masks(self._masks, call, result)
        return result

    def _is_selected(self, name: str) -> bool:
        if not self._ops or any(fnmatchcase(name, op) for op in self._ops):
            return True
        self._results.passed_over.add(name)
        self._results.calls_passed_over += 1
        return False

    @abstractmethod
    def on_op(self, call: OpCall) -> Any:
        """Make the call for the program, once, and return its result."""


def warn_of_debug_logging() -> None:
    """Warn when a logger of the dispatcher is at DEBUG, where torch formats every op it dispatches."""
    at_debug = [logger.name for logger in dispatch_loggers() if logger.isEnabledFor(DEBUG)]
    if at_debug:
        warn(
            f"logger {at_debug[0]} is at DEBUG, which makes every hit several times slower: "
            "set it to INFO to measure what users have",
            stacklevel=6,
        )


class Timing(NamedTuple):
    """Latencies of one op call in microseconds; NaN if a state was not proved."""

    dispatch_with_cache_miss: float
    dispatch_with_cache_hit: float


class TimeCaptureMode(DispatchCapture):
    """Time every DTensor op of a region, call by call: one proved miss, and the median of proved hits.

    It works without pytest, and clears the caches itself. An op that never asks the sharding propagator has
    no miss; its latency is shown as a hit. Timed calls run local ops in one thread.

    ``print(mode)`` writes a table with a line for each signature: calls, miss, hit, the scatter of both, and
    a mark if something is not proved.

    Args:
        repeat_count: hits recorded for each call.
        ops: globs of op names; every op if empty.

    Attributes:
        op_to_time: by op overload, such as ``add.Tensor``, one :class:`Timing` for each call.
        time_list: samples of the last op in seconds, its miss first.

    Raises:
        MeasurementError: on entry, if a capture is open in this thread, or another thread measures.
        UnsupportedTorchError: this torch has no caches that can be cleared and counted.

    Example:
        >>> with TimeCaptureMode() as mode:              # doctest: +SKIP
        ...     a + a
        >>> mode.op_to_time["add.Tensor"][-1]            # doctest: +SKIP
        Timing(dispatch_with_cache_miss=1211.04, dispatch_with_cache_hit=6.92)
    """

    def __init__(self, repeat_count: int = 10, ops: Sequence[str] = ()) -> None:
        super().__init__(ops)
        if repeat_count < 1:
            raise MeasurementError(
                f"repeat_count={repeat_count}: at least 1 hit must be recorded for each call"
            )
        self.repeat_count = repeat_count
        self.op_to_time: dict[str, list[Timing]] = {}
        self.time_list: list[float] = []
        self._timed: dict[Signature, list[Figures]] = {}

    def __str__(self) -> str:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        document = timed_document("TimeCaptureMode", self._timed)
        return plain_text(document, page_width(is_terminal, get_terminal_size().columns))

    __repr__ = __str__  # which notebooks show

    def on_op(self, call: OpCall) -> Any:
        """Make the call, and append one timing."""
        signature = signature_of(call.func, call.args, call.kwargs)
        # What is asked for is taken; ranks of a real group discard equally many hits.
        quick_warmup = 0 if has_real_group() else QUICK_WARMUP
        plan = Plan(1, self.repeat_count, max_time_s=math.inf, quick_warmup=quick_warmup)
        result, ran = run_op(call)
        if signature in self._timed:  # what it comes down to, and what that takes, its first call told
            found = Found(ran.subject)  # no cycle: the garbage collector is to find nothing
            ran.look = lambda signals: found
        figures = ran.measure(self._caches, plan)
        self._timed.setdefault(signature, []).append(figures)
        ns = {samples.state: samples.ns for samples in figures.samples if samples.ns}
        misses, hits = ns.get(State.MISS, ()), ns.get(State.HIT) or ns.get(State.CALL, ())
        self.time_list = [sample / 1e9 for sample in (*misses, *hits)]
        self.op_to_time.setdefault(call.func.__name__, []).append(
            Timing(_median_us(misses), _median_us(hits))
        )
        return result


class SignatureCapture(DispatchCapture):
    """Measure every signature of ops and conversions at its first call, and count its further calls.

    Args:
        results: where measurements are kept; several captures of one test share it.
        plan: how much is measured of each signature.
        ops: globs of op names; every op where empty.
    """

    def __init__(self, results: TestResults, plan: Plan, ops: Sequence[str] = ()) -> None:
        super().__init__(ops, results)
        self._plan = plan
        self._plans = PlanCaches()
        self._converting = threading.local()

    def _open(self) -> None:
        super()._open()
        self._measuring.contexts.enter_context(observe_conversions(self))  # which are no ops

    def on_op(self, call: OpCall) -> Any:
        """Make the call, and measure it where its signature is new."""
        signature = signature_of(call.func, call.args, call.kwargs)
        if self._results.count(signature):
            return call.run()
        self._begin(signature)
        result, ran = run_op(call)
        figures = ran.measure(self._caches, self._plan, str(signature), signature.place[1:])
        self._results.enter(signature, figures)
        return result

    def on_conversion(
        self, converter: Converter, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Take a conversion that the thread of the capture asks for, and none that is part of another.

        What an op converts inside is part of that op: there the capture is not open, nor in a repetition.
        """
        if getattr(self._converting, "is_inside", False):
            return function(*args, **kwargs)
        call = ConversionCall(converter, function, args, kwargs)
        if call.tensor is None or is_tracing() or all(one is not self for one in open_modes()):
            return function(*args, **kwargs)
        self._converting.is_inside = True
        try:
            return self._on_conversion(call)
        finally:
            self._converting.is_inside = False

    def _on_conversion(self, call: ConversionCall) -> Any:
        """Make a conversion, and measure it where its signature is new."""
        result, ran = run_conversion(call)
        self._unseen.note()
        if not self._is_selected(call.name):
            return result
        with unnoticed():
            signature = call.signature(result)
        if self._results.count(signature):
            return result
        self._begin(signature)
        ran.replay.settle()
        figures = ran.measure(self._plans, self._plan, str(signature), signature.place[1:])
        self._results.enter(signature, figures)
        self._unseen.note()
        return result

    def _begin(self, signature: Signature) -> None:
        """Show what is measured next, and meet the other ranks at it."""
        if self._plan.agreement is not None:
            self._plan.agreement.sync(signature.full)
        self._results.is_simulated |= is_local_mode_open()
        show_progress("measuring {}", signature)


def _median_us(ns: Sequence[int]) -> float:
    return round(statistics.median(ns) / 1e3, 2) if ns else float("nan")
