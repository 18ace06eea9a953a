"""Capture: every DTensor op of a region is measured as it comes by."""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from logging import DEBUG
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.errors import CaptureError, DtDispatchWarning
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode, has_dtensor, signature_of
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.preconditions import Measuring, refuse_elsewhere
from pytest_dtdispatch.measuring.repeating import run_and_measure_op
from pytest_dtdispatch.measuring.unseen import HidingModes, OtherThreads
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.html_text import html_text
from pytest_dtdispatch.report.terminal import page_width, plain_text
from pytest_dtdispatch.report.timings import document
from pytest_dtdispatch.torchapi.ops import op_name, open_modes
from pytest_dtdispatch.torchapi.process_groups import innermost_in_local_mode, is_local_mode_open
from pytest_dtdispatch.torchapi.propagator import ShardingCaches, dispatch_loggers
from pytest_dtdispatch.torchapi.tensors import wraps_dtensors

if TYPE_CHECKING:
    from typing_extensions import Self


class DispatchCapture(UnnoticedMode):
    """A dispatch mode that is asked for every op, and hands those on DTensors to :meth:`on_op`.

    It starts below autograd, where torch asks dispatch modes.
    """

    def __init__(self, ops: Sequence[str] = ()) -> None:
        super().__init__()
        self._ops = tuple(ops)
        self._passed_over: set[str] = set()
        self._caches = ShardingCaches()
        self._hiding = HidingModes(self._caches)
        self._others = OtherThreads(self)
        self._measuring = Measuring("a capture is open")

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        refuse_elsewhere()
        if any(isinstance(mode, DispatchCapture) for mode in open_modes()):
            raise CaptureError(
                "a capture is open already: captures cannot be nested, close the outer one first"
            )
        try:
            with Signals():
                warn_of_debug_logging()
                self._measuring.__enter__()
                self._measuring.held.enter_context(self._others.watched())
                self._measuring.held.enter_context(innermost_in_local_mode(self))
                super().__enter__()
                self._hiding.note()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        try:
            with Signals():
                left_open = self._leave()
        except BaseException:  # it may have come before signals were held back
            self._leave()
            raise
        self.on_unseen(Unseen(*self._others.found(), modes=self._hiding.found()))
        if exception[0] is not None:
            return
        if not self._measuring.is_of_this_thread():
            raise CaptureError(
                f"the capture was opened in thread {self._measuring.thread.name!r}: close it there"
            )
        self._others.warn()
        self._hiding.warn()
        if left_open:
            raise CaptureError(f"{', '.join(left_open)} was opened inside the capture and never closed")

    def _leave(self) -> list[str]:
        try:
            return self._close() if self._measuring.is_of_this_thread() else []
        finally:
            self._measuring.__exit__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        leaves = call.leaves()
        if types != (DTensor,) and any(map(wraps_dtensors, leaves)):
            return NotImplemented  # its own dispatch comes down to ops on the DTensors inside, seen here
        on_dtensors = has_dtensor(leaves)
        if not on_dtensors:
            self._hiding.look()
        try:
            if on_dtensors and (not self._ops or self._is_asked_for(op_name(func))):
                return self.on_op(call)
            return call.run()
        finally:
            self._hiding.note()

    def _is_asked_for(self, name: str) -> bool:
        if any(fnmatchcase(name, op) for op in self._ops):
            return True
        self._passed_over.add(name)
        return False

    def on_unseen(self, unseen: Unseen) -> None:
        """Take what ran while it was open, and was not seen."""

    @abstractmethod
    def on_op(self, call: OpCall) -> Any:
        """Make the call for the program, once, and return its result."""


class Timing(NamedTuple):
    """Latencies of one op call in microseconds; not-a-number where a state was not proved."""

    dispatch_with_cache_miss: float
    dispatch_with_cache_hit: float


class TimeCaptureMode(DispatchCapture):
    """Time every DTensor op of a region, call by call: one proved miss, and the median of proved hits.

    Usable without pytest. The caches are cleared by the mode itself. An op that never asks the sharding
    propagator has no miss; its latency stands where the hit does. What is timed runs local ops in one thread.

    ``print(mode)`` writes a table, a line for each signature: calls, miss, hit, how far both scatter, and a
    mark where something is not proved. Jupyter shows it as HTML.

    Args:
        repeat_count: hits recorded for each call.
        ops: globs of op names; every op where empty.

    Attributes:
        op_to_time: for each op overload, ``add.Tensor``, one :class:`Timing` for each call.
        time_list: seconds of the last op's samples, its misses first.

    Raises:
        CaptureError: on entry, when a capture is open in this thread already, or another thread measures.
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
            raise CaptureError(f"repeat_count={repeat_count}: at least 1 hit must be recorded for each call")
        self.repeat_count = repeat_count
        self.op_to_time: dict[str, list[Timing]] = {}
        self.time_list: list[float] = []
        self._timed: dict[Signature, list[Figures]] = {}

    def __str__(self) -> str:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        return plain_text(self._document(), page_width(is_terminal, get_terminal_size().columns))

    def _repr_html_(self) -> str:
        return html_text(self._document())

    def _document(self) -> Document:
        return document("TimeCaptureMode", self._timed)

    def on_op(self, call: OpCall) -> Any:
        """Make the call, and append one timing."""
        __tracebackhide__ = True
        signature = signature_of(call.func, call.args, call.kwargs)
        plan = Plan(rounds=1, repeat=self.repeat_count, max_time_s=math.inf)  # what is asked for is taken
        result, figures = run_and_measure_op(call, self._caches, plan)
        self._timed.setdefault(signature, []).append(figures)
        ns = {samples.state: samples.ns for samples in figures.samples if samples.ns}
        misses, hits = ns.get(State.MISS, ()), ns.get(State.HIT) or ns.get(State.CALL, ())
        self.time_list = [sample / 1e9 for sample in (*misses, *hits)]
        self.op_to_time.setdefault(call.func.__name__, []).append(
            Timing(_median_us(misses), _median_us(hits))
        )
        return result


class SignatureCapture(DispatchCapture):
    """Measure every signature of a region at its first call, and count its further calls.

    Args:
        results: where measurements are kept; several captures of one test share it.
        plan: how much is measured of each signature.
        ops: globs of op names; every op where empty.
        measured: is told of each signature how many seconds it took to measure it.
    """

    def __init__(
        self,
        results: TestResults,
        plan: Plan,
        ops: Sequence[str] = (),
        measured: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        super().__init__(ops)
        self._passed_over = results.passed_over
        self._measured = measured
        self._results = results
        self._plan = plan

    def on_unseen(self, unseen: Unseen) -> None:
        """Keep what was not seen in the results of the test."""
        self._results.unseen += unseen

    def on_op(self, call: OpCall) -> Any:
        """Make the call, and measure it where its signature is new."""
        __tracebackhide__ = True
        signature = signature_of(call.func, call.args, call.kwargs)
        if self._results.count(signature):
            return call.run()
        if self._plan.agreement is not None:
            self._plan.agreement.come_to(signature.full)
        began = time.perf_counter()
        result, figures = run_and_measure_op(call, self._caches, self._plan)
        self._results.enter(signature, figures)
        self._results.is_simulated |= is_local_mode_open()
        self._measured(time.perf_counter() - began)
        return result


def warn_of_debug_logging() -> None:
    """Warn when a logger of the dispatcher is at DEBUG, where torch formats every op it dispatches."""
    at_debug = [logger.name for logger in dispatch_loggers() if logger.isEnabledFor(DEBUG)]
    if at_debug:
        warnings.warn(
            f"logger {at_debug[0]} is at DEBUG, which makes every hit several times slower: "
            "set it to INFO to measure what users have",
            DtDispatchWarning,
            stacklevel=4,
        )


def _median_us(ns: Sequence[int]) -> float:
    return round(statistics.median(ns) / 1e3, 2) if ns else float("nan")
