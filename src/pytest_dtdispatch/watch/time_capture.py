"""Timing of single op calls without pytest."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.replay.capture import DispatchCapture
from pytest_dtdispatch.replay.repeat import run_op
from pytest_dtdispatch.report.rows import timed_document
from pytest_dtdispatch.rounds.plan import WARMUP_HITS, Plan
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.groups import has_real_group
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.signatures import signature_of
from pytest_dtdispatch.watch.text import rendered

__tracebackhide__ = True  # a failing test shows its own line


class Timing(NamedTuple):
    """Latencies of one op call in microseconds; NaN if a state was not proved."""

    dispatch_with_cache_miss: float
    dispatch_with_cache_hit: float


class TimeCaptureMode(DispatchCapture):
    """Mode that times every DTensor op call of a region: one proved miss, and the median of proved hits.

    It works without pytest, and clears the caches itself. An op that never queries the sharding propagator
    has no miss; its latency is reported as a hit. Timed calls run local ops in one thread.

    ``print(mode)`` writes a table with a line for each signature: calls, miss, hit, the scatter of both, and
    a mark if a state is not proved.

    Args:
        repeat_count: number of recorded hits per call.
        ops: globs of op names; every op if empty.

    Attributes:
        op_to_time: list of one :class:`Timing` per call, by op overload, such as ``add.Tensor``, with its
            namespace unless that is ``aten``.
        time_list: samples of the last op in seconds, its miss first.

    Raises:
        MeasurementError: on entry, if a capture is open in this thread, or another thread is measuring.
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
        return rendered(timed_document("TimeCaptureMode", self._timed), sys.stdout)

    __repr__ = __str__  # notebooks display it

    def on_op(self, call: OpCall) -> Any:
        """Run the call, and append one timing."""
        signature = signature_of(call)
        # A hit of 8 us is 3 % slower until the code that reads the counters is warm too, after about 200
        # calls. Ranks must discard as many hits as each other.
        warmup = WARMUP_HITS if has_real_group() else 200
        plan = Plan(1, self.repeat_count, max_time_s=math.inf, warmup=warmup)
        result, ran = run_op(call)
        figures = ran.measure(self._caches, plan, inspects=signature not in self._timed)
        self._timed.setdefault(signature, []).append(figures)
        ns = {samples.state: samples.ns for samples in figures.samples if samples.ns}
        misses, hits = ns.get(State.MISS, ()), ns.get(State.HIT) or ns.get(State.CALL, ())
        self.time_list = [sample / 1e9 for sample in (*misses, *hits)]
        self.op_to_time.setdefault(op_name(call.func), []).append(
            Timing(_median_us(misses), _median_us(hits))
        )
        return result


def _median_us(ns: Sequence[int]) -> float:
    return round(statistics.median(ns) / 1e3, 2) if ns else float("nan")
