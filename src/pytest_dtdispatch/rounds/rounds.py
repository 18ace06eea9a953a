"""Passes of misses on cleared caches, warm-up and hits, with samples proved by cache counters.

Does not import torch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import (
    LONG_CALL_NS,
    MIN_PASSES,
    MIN_WAITED,
    Figures,
    Profile,
    State,
)
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.rounds.core_waits import CoreWaits, core_waits
from pytest_dtdispatch.rounds.plan import WARMUP_HITS, Deadline, Effort, Plan, Stop, agreed, fitted, take
from pytest_dtdispatch.rounds.sampler import Meter, Pace, Profiler
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.rounds.timing import (
    Reader,
    Series,
    Subject,
    TimedCalls,
    TimingRequest,
    gc_paused,
    keep_sources,
    no_op,
    samples_of,
    time_row,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

PROPAGATED_AGAIN = "propagation ran again"


class Propagation(Enum):
    """Use of the sharding propagator by a subject, determined in its rehearsal."""

    CACHED = "cached"
    NEVER_CACHED = "never cached"
    NONE = "none"


class Rehearsal(NamedTuple):
    """Result of a discarded first miss and hits.

    Args:
        propagation: use of the sharding propagator.
        miss: sample of the first call.
        hit: sample of the last call.
        miss_ns: duration of the first call with all work around it; 0 if the subject has no misses.
        hit_ns: shortest duration of a later call with all work around it; 0 if it has no hits.
    """

    propagation: Propagation
    miss: int
    hit: int
    miss_ns: int
    hit_ns: int

    @property
    def longest_ns(self) -> int:
        """Duration of the longest call that passes make."""
        return max(self.miss_ns, self.hit_ns)


class TimedBlock(NamedTuple):
    """Calls of a timing request, and nanoseconds of all of them: off the core, and wall time."""

    calls: TimedCalls
    off_core_ns: int
    wall_ns: int


class ProvedCall(NamedTuple):
    """Sample of a call, its CPU time if it was read, and the increase of the counters of hits and misses."""

    sample: int
    cpu_ns: int | None
    hits: int
    misses: int


def increase(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int]:
    """Return the increase of hits and misses between two readings of one cache or of several."""
    if isinstance(before[0], int):
        return after[0] - before[0], after[1] - before[1]
    each = [increase(old, new) for old, new in zip(before, after, strict=True)]
    return sum(hits for hits, _ in each), sum(misses for _, misses in each)


def proved_calls(calls: TimedCalls) -> list[ProvedCall]:
    """Return each sample with the increase of the counters during its call."""
    return [ProvedCall(sample, cpu_ns, *increase(before, after)) for sample, cpu_ns, before, after in calls]


T = TypeVar("T")
Requests = Generator[TimingRequest, TimedBlock, T]  # receives the timed calls of each request


class Rounds:
    """Rounds of one subject, measured by the sampler of a plan.

    Attributes:
        figures: figures of all rounds; empty before :meth:`run`.
    """

    def __init__(
        self,
        subject: Subject,
        caches: ShardingCaches,
        plan: Plan,
        local: Subject | None = None,
        synchronize: Callable[[], None] = no_op,
        signals: Signals | None = None,
    ) -> None:
        self.figures = Figures()
        self._subject, self._local = subject, local
        self._caches = caches
        self._plan = plan
        self._synchronize = synchronize
        self._signals = signals or Signals()
        self._meter = plan.sampler.meter
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # of the cache with the hits; None before the rehearsal
        self._bypasses_caches = False  # each call propagates, and no cache counts it

    def run(self) -> None:
        """Set the figures. Requests are timed in this frame, without frames of the rounds on the stack."""
        keep_sources()
        timed: Any = None
        with core_waits() as waits, closing(self._requests(waits)) as requests:
            while True:
                try:
                    request = requests.send(timed)
                except StopIteration as end:
                    self.figures = end.value
                    return
                off_core_ns, began_ns = waits.read(), time.perf_counter_ns()
                try:
                    self._signals.let_in()
                    calls = time_row(*request)
                finally:
                    self._signals.is_open = False
                timed = TimedBlock(calls, waits.read() - off_core_ns, time.perf_counter_ns() - began_ns)

    def _requests(self, waits: CoreWaits) -> Requests[Figures]:
        plan, sampler = self._plan, self._plan.sampler
        # With a time limit, the number of calls and so the minimum of a count would depend on the time.
        limit_s = math.inf if sampler.is_exact else plan.max_time_s
        # Other programs must not change the plan.
        clock = waits.clock if sampler.clock is time.perf_counter_ns else sampler.clock
        deadline = Deadline(limit_s, clock)
        sampler.refresh()
        with gc_paused():
            rehearsal = yield from self._rehearse(deadline)
        pace = sampler.pace(rehearsal.miss, rehearsal.hit, plan.rounds, plan.repeat)
        effort, stop = self._settled(rehearsal, deadline, pace)
        series = self._series(rehearsal, effort, pace)
        if pace is None and effort.passes >= MIN_PASSES:
            # Discard the first pass, as first calls are slower; its least samples tell which calls are long.
            yield from self._pass(series)
            values = {one.state: one.values for one in series}
            miss_meter = self._meter_of(values.get(State.MISS, ()))
            steady_meter = self._meter_of(values.get(State.HIT, ()) or values.get(State.CALL, ()))
            meters = {State.COLD: miss_meter, State.MISS: miss_meter}
            series = [replace(one, meter=meters.get(one.state, steady_meter)) for one in series]
        for each in take(series, stop):
            self._synchronize()
            yield from self._pass(each)
            for one in each:
                one.end_pass()
        notes, remarks = list[str](), [*sampler.remarks()]
        if rehearsal.propagation is Propagation.NEVER_CACHED:
            notes.append("never hits: torch does not cache this op, and each call propagates")
            series.append(Series(State.HIT, self._subject, self._meter, sampler.unit))
            series[-1].record(rehearsal.hit, PROPAGATED_AGAIN)
        if rehearsal.propagation is Propagation.NONE:
            remarks.append("unpropagated: it never queries the sharding propagator, so it has no miss")
        if pace is None and stop.done < min(plan.rounds, MIN_PASSES):
            took_s, here = rehearsal.longest_ns / 1e9, ""
            if took_s > limit_s:  # otherwise on another rank
                here = f" ({took_s:.1f} s here)"
            notes.append(f"few passes: one call takes longer than the time limit of {limit_s:g} s{here}")
        series = [one for state in State for one in series if one.state is state]
        off_core = [one.state for one in series if one.off_core > MIN_WAITED]
        if off_core and not waits.is_counted:
            states = ", ".join(off_core)
            notes.append(f"not on a core for more than a tenth of the time, waiting or sleeping: {states}")
        for one in series:
            if sampler.profiler and one.values and one.state not in (State.COLD, State.LOCAL):
                one.profile = self._profile(sampler.profiler, one.state)
        samples = samples_of(series, waits.is_counted)
        return Figures(stop.done * effort.misses, samples, tuple(notes), tuple(remarks), tracers())

    def _rehearse(self, deadline: Deadline) -> Requests[Rehearsal]:
        """Run and discard a first round, and determine the cache with the hits."""
        subject, caches, clock = self._subject, self._caches, deadline.clock
        with caches.counting_uncached() as uncached:

            def hit() -> tuple[Any, ...]:
                args = subject.prepare()
                uncached[0] = 0
                return args

            def miss() -> tuple[Any, ...]:
                args = hit()
                caches.clear()
                return args

            began = clock()
            timed = yield TimingRequest(subject, self._meter, miss, self._read_all, 1)
            [first] = proved_calls(timed.calls)
            miss_ns, hit_ns = max(clock() - began, 1), sys.maxsize
            show_long_row(self._plan, deadline, miss_ns)
            queried_at_first = first.hits or first.misses or uncached[0]
            for _ in range(3):
                began = clock()
                timed = yield TimingRequest(subject, self._meter, hit, self._read_all, 1)
                [last] = proved_calls(timed.calls)
                hit_ns = min(clock() - began, hit_ns)
                # Ranks must make the same number of calls, regardless of their duration.
                is_slow = self._plan.agreement is None and MIN_PASSES * (miss_ns + hit_ns) > deadline.limit_ns
                if is_slow and not (last.misses or uncached[0]):
                    break  # at the first hit
        propagation = Propagation.CACHED
        if not (queried_at_first or last.hits or last.misses or uncached[0]):
            propagation, miss_ns = Propagation.NONE, 0
        elif last.misses or uncached[0]:
            propagation, hit_ns = Propagation.NEVER_CACHED, 0
            self._bypasses_caches = not last.misses
        elif not subject.prepare_propagates:
            [(_, _, before, after)] = timed.calls
            for reader, old, new in zip(self._readers, before, after, strict=True):
                if new[0] > old[0]:
                    self._hit_reader = reader
        return Rehearsal(propagation, first.sample, last.sample, miss_ns, hit_ns)

    def _settled(self, rehearsal: Rehearsal, deadline: Deadline, pace: Pace | None) -> tuple[Effort, Stop]:
        """Return the numbers of calls that fit the time limit, agreed by all ranks, and when passes end."""
        plan = self._plan
        miss_ns, hit_ns = rehearsal.miss_ns, rehearsal.hit_ns
        if plan.cold:
            miss_ns *= 2
        if self._local is not None:
            hit_ns *= 2
        effort = Effort(1, plan.rounds, plan.rounds * plan.repeat, plan.warmup)
        if pace is None:
            quick = min(plan.warmup, 2_000_000 // max(rehearsal.hit_ns, 1))  # all of them take at most 2 ms
            warmup = max(quick, min(plan.warmup, WARMUP_HITS))
            effort = fitted(plan.effort._replace(warmup=warmup), miss_ns, hit_ns, deadline.left_ns)
            if rehearsal.longest_ns > deadline.limit_ns:
                effort = effort._replace(passes=1)
        stop = Stop(deadline, effort.passes, MIN_PASSES, effort.ns(miss_ns, hit_ns))
        calls = stop.settle(
            plan.agreement, f"the calls (propagation: {rehearsal.propagation.value})", *effort
        )
        return Effort(stop.most, *calls), stop

    def _series(self, rehearsal: Rehearsal, effort: Effort, pace: Pace | None) -> list[Series]:
        """Return the series of a pass: consecutive misses, then hits, then calls on local tensors."""
        plan, subject = self._plan, self._subject
        miss_meter, steady_meter = self._meter_of([rehearsal.miss]), self._meter_of([rehearsal.hit])
        warmup_misses, blocks, warmup, hits = Pace(0, 1, effort.warmup, effort.hits)
        warmup_meter = None
        if pace is not None:
            warmup_misses, blocks, warmup, hits = agreed(plan.agreement, "the pace", *pace)
            # It reads nothing: reading callgrind takes as long as 10 to 50 calls.
            warmup_meter = Meter(int, int)
        unit, series = plan.sampler.unit, list[Series]()
        if rehearsal.propagation is not Propagation.NONE:
            for state in (State.COLD, State.MISS) if plan.cold else (State.MISS,):
                series.append(Series(state, subject, miss_meter, unit, warmup_misses, effort.misses))
        if rehearsal.propagation is not Propagation.NEVER_CACHED:
            state = State.HIT if rehearsal.propagation is Propagation.CACHED else State.CALL
            series.append(Series(state, subject, steady_meter, unit, warmup, hits, blocks, warmup_meter))
        if self._local is not None:
            series.append(Series(State.LOCAL, self._local, steady_meter, unit, 2, effort.hits))
        return series

    def _meter_of(self, samples: Sequence[int]) -> Meter:
        """Return the meter of calls that take as long as the least of these samples.

        A call longer than a scheduler's slice has no undisturbed wall time.
        """
        plan = self._plan
        reads_cpu = plan.one_thread and plan.agreement is None and self._subject.is_one_thread
        if reads_cpu and min(samples, default=0) >= LONG_CALL_NS:
            return self._meter._replace(cpu=plan.sampler.cpu)
        return self._meter

    def _pass(self, series: Sequence[Series]) -> Requests[None]:
        cleared = [each for each in series if each.state in (State.COLD, State.MISS)]
        for each in cleared:
            yield from self._calls_after_clearing(each)
        with gc_paused():
            for each in series[len(cleared) :]:
                for block in range(each.blocks):
                    if block:
                        self._plan.sampler.refresh()
                    yield from self._steady_calls(each)

    def _calls_after_clearing(self, series: Series) -> Requests[None]:
        """Time calls on cleared caches, after collecting garbage of earlier calls."""
        subject, caches, is_cold = series.subject, self._caches, series.state is State.COLD
        were_clear: list[bool] = []
        counting = caches.counting_uncached() if self._bypasses_caches else nullcontext([0])
        with gc_paused() as collect, counting as uncached:

            def prepare() -> tuple[Any, ...]:
                args = subject.prepare()
                collect()
                caches.clear()
                if is_cold:
                    caches.clear_cold()
                were_clear.append(not (is_cold and caches.cold_entries()))
                return args

            def read_uncached() -> Sequence[Any]:
                return [*self._read_all(), (0, uncached[0])]

            read = read_uncached if self._bypasses_caches else self._read_all
            calls = series.warmup + series.calls
            timed = yield TimingRequest(subject, series.meter, prepare, read, calls)
            proved = proved_calls(timed.calls)
        series.record_block(timed.off_core_ns, timed.wall_ns)
        for call, was_clear in [*zip(proved, were_clear, strict=True)][series.warmup :]:
            reason = None if call.misses else "propagation did not run"
            reason = reason if was_clear else "a cache was not empty"
            series.record(call.sample, reason, call.cpu_ns)

    def _steady_calls(self, series: Series) -> Requests[None]:
        """Time consecutive hits, or calls that never query the propagator, after a warm-up.

        The counters of the cache with the hits are read around every call, all others around the block: a
        miss of another cache refuses the whole block.
        """
        subject, read = series.subject, self._hit_reader or self._read_all
        warmup_meter = series.warmup_meter or series.meter
        yield TimingRequest(subject, warmup_meter, subject.prepare, read, series.warmup)
        before = self._read_all()
        timed = yield TimingRequest(subject, series.meter, subject.prepare, read, series.calls)
        series.record_block(timed.off_core_ns, timed.wall_ns)
        calls, misses = proved_calls(timed.calls), increase(before, self._read_all())[1]
        others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
        for call in calls:
            reason = None
            if series.state is State.CALL and (call.hits or call.misses):
                reason = "a cache counter moved"
            elif series.state is State.HIT and (others_missed or call.misses):
                reason = PROPAGATED_AGAIN
            elif series.state is State.HIT and not call.hits:
                reason = "no cache counter moved"
            series.record(call.sample, reason, call.cpu_ns)

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]

    def _profile(self, profiler: Profiler, state: State) -> Profile:
        """Profile another call."""

        def prepare() -> tuple[Any, ...]:
            args = self._subject.prepare()
            if state is State.MISS:
                self._caches.clear()
            return args

        with gc_paused():
            return profiler(self._subject.fn, prepare, self._subject.kwargs)


def show_long_row(plan: Plan, deadline: Deadline, miss_ns: int) -> None:
    """Show the duration of a row that takes at least 2 s."""
    in_time = min(deadline.limit_ns / miss_ns, plan.rounds)
    misses = 1 if in_time < 1 else max(int(in_time), min(plan.rounds, MIN_PASSES))
    left_s = misses * (1 + plan.cold) * miss_ns / 1e9
    if left_s >= 2:
        show_progress("a miss takes {:.1f} s: its row takes about {:.0f} s more", miss_ns / 1e9, left_s)
