"""Captures: DTensor ops of a region are measured as they come by."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from shutil import get_terminal_size
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.core.progress import tell
from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.measuring.conversion_call import ConversionCall
from pytest_dtdispatch.measuring.converting import ConversionWatch, RanConversion
from pytest_dtdispatch.measuring.dispatch_capture import DispatchCapture
from pytest_dtdispatch.measuring.op_call import ClockedCall, OpCall, signature_of
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeating import run_and_measure_op
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.html_text import html_text
from pytest_dtdispatch.report.terminal import page_width, plain_text
from pytest_dtdispatch.report.timings import document
from pytest_dtdispatch.torchapi.plan_caches import PlanCaches
from pytest_dtdispatch.torchapi.process_groups import is_local_mode_open


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
    """Measure every signature of ops and conversions at its first call, and count its further calls.

    Args:
        results: where measurements are kept; several captures of one test share it.
        plan: how much is measured of each signature.
        ops: globs of op names; every op where empty.
    """

    def __init__(
        self,
        results: TestResults,
        plan: Plan,
        ops: Sequence[str] = (),
    ) -> None:
        super().__init__(ops)
        self._passed_over = results.passed_over
        self._results = results
        self._plan = plan
        self._plans = PlanCaches(self._caches)

    def watching_more(self) -> AbstractContextManager[Any]:
        """Watch conversions, which are no ops."""
        return ConversionWatch(self, self._on_conversion).watched()

    def on_unseen(self, unseen: Unseen) -> None:
        """Keep what was not seen in the results of the test."""
        self._results.unseen += unseen

    def on_op(self, call: OpCall) -> Any:
        """Make the call, and measure it where its signature is new."""
        __tracebackhide__ = True
        signature = signature_of(call.func, call.args, call.kwargs)
        clocked = ClockedCall(*call)
        if self._results.count(signature):
            if self._results.explains(signature):
                return call.run()
            result = clocked.run()
            self._results.note_in_place(signature, clocked.took_ns)
            return result
        if self._plan.agreement is not None:
            self._plan.agreement.come_to(signature.full)
        tell("measuring {}", signature)
        result, figures = run_and_measure_op(clocked, self._caches, self._plan)
        self._enter(signature, figures, clocked.took_ns)
        return result

    def on_passed_over(self, call: OpCall) -> Any:
        """Make a call that was not asked for, and count it."""
        __tracebackhide__ = True
        self._results.calls_passed_over += 1
        return call.run()

    def _on_conversion(self, call: ConversionCall) -> Any:
        """Make a conversion, and measure it where its signature is new."""
        __tracebackhide__ = True
        ran = RanConversion(call)
        self._hiding.note()
        if self._ops and not self._is_asked_for(call.name):
            self._results.calls_passed_over += 1
            return ran.result
        signature = call.signature(ran.result)
        if self._results.count(signature):
            if not self._results.explains(signature):
                self._results.note_in_place(signature, ran.took_ns)
            return ran.result
        if self._plan.agreement is not None:
            self._plan.agreement.come_to(signature.full)
        tell("measuring {}", signature)
        self._enter(signature, ran.measure(self._plans, self._plan), ran.took_ns)
        self._hiding.note()
        return ran.result

    def _enter(self, signature: Signature, figures: Figures, took_ns: int) -> None:
        """Keep what was measured of a new signature."""
        self._results.enter(signature, figures)
        if not self._results.explains(signature):
            self._results.note_in_place(signature, took_ns)
        self._results.is_simulated |= is_local_mode_open()


def _median_us(ns: Sequence[int]) -> float:
    return round(statistics.median(ns) / 1e3, 2) if ns else float("nan")
