"""Measurement of variants: call each for the program, then repeat blocks of calls alternately."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.comparing.equality import call_variants
from pytest_dtdispatch.comparing.model import (
    MIN_ROUNDS,
    CallCounts,
    Compared,
    ComparedVariant,
    Variants,
    ratio_after,
)
from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import LONG_CALL_NS, Contains, Figures, Measurement, State
from pytest_dtdispatch.core.results import Advice, row_name
from pytest_dtdispatch.core.signatures import device_of
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.replay.repeat import (
    RanCallable,
    repeat_under,
    repetitions,
    run_call,
    synchronizer,
    threads_note,
)
from pytest_dtdispatch.rounds.core_waits import CoreWaits, core_waits
from pytest_dtdispatch.rounds.plan import Deadline, Plan, Stop, take
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.rounds.timing import (
    Prepare,
    Series,
    TimedCalls,
    gc_paused,
    samples_of,
    time_row,
)
from pytest_dtdispatch.stats.intervals import LOOKS
from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import group_backend, wait_for

LONG_NS = 10_000_000  # a call that is this long may be a block
REHEARSAL_CALLS = 3
MAX_ROUNDS = 200  # longer blocks are as precise as more rounds


def calls_of_block(call_ns: int, fill_ns: int = 0, limit_ns: float = 1e9) -> int:
    """Return the number of calls of this length in a round.

    A block takes about 3 ms: short, so that a slow machine slows down both of two blocks. It takes up to
    three times as long as the call that fills the caches, if the time limit allows 25 rounds of it, so that
    most calls are samples.

    Args:
        call_ns: duration of a call.
        fill_ns: duration of the call that fills the caches before each block.
        limit_ns: time limit of all blocks of a variant.

    Example:
        >>> calls_of_block(12_000), calls_of_block(1_300_000), calls_of_block(60_000_000)
        (416, 3, 1)
        >>> calls_of_block(50_000_000, 100_000_000, 10e9)
        6
    """
    worth_ns = min(3 * fill_ns, limit_ns / 25 - fill_ns)
    block_ns = max(3_000_000, limit_ns / MAX_ROUNDS - fill_ns, worth_ns)
    return max(int(block_ns // max(call_ns, 1)), 1 if call_ns >= LONG_NS else 3)


def trimmed_mean(values: Sequence[int]) -> int:
    """Return the mean without the lowest and the highest tenth of the values, rounded.

    Example:
        >>> trimmed_mean([1, *[7] * 8, 99]), trimmed_mean([6, 8])
        (7, 7)
    """
    cut = len(values) // 10
    return round(statistics.fmean(sorted(values)[cut : len(values) - cut]))


class Rehearsal(NamedTuple):
    """Durations of a variant before the first round.

    Args:
        fill_ns: duration of the call that fills the caches.
        call_ns: least duration of a hit.
        is_on_core: whether the thread works all the time, without sleep and without work in other threads.
    """

    fill_ns: int
    call_ns: int
    is_on_core: bool


class Turns:
    """Measurement of rounds with one block of calls for each variant.

    Before each block, the sharding caches are cleared, and the variant fills them as if it ran alone. A hit
    is up to a fifth faster for the tensor that created the cache entry than for an equal tensor: with shared
    caches, the first of two equal variants would be faster.

    Args:
        ran: variants to measure, by label.
        caches: sharding caches.
        plan: time limit and sampler.

    Attributes:
        counted: counted calls of each variant; empty if the measurement failed.
        spent_s: seconds per variant that all rounds took; 0 if the measurement failed.
    """

    _signals: Signals  # of the repetitions, set by measure()

    def __init__(self, ran: Mapping[str, RanCallable], caches: ShardingCaches, plan: Plan) -> None:
        self.counted: dict[str, list[StepCounts]] = {}
        self.spent_s = 0.0
        self._ran = ran
        self._subjects = {label: one.subject for label, one in ran.items()}
        self._series: dict[str, Series] = {}  # with the trimmed mean of each block
        self._at = ""  # label of the running variant
        self._caches = caches
        self._plan = plan
        self._meter = plan.sampler.meter
        self._synchronize = synchronizer()

    def measure(self) -> dict[str, Figures]:
        """Measure and count all variants; return their figures by label."""
        every, notes = [*self._ran.values()], tuple[str, ...]()
        if self._plan.one_thread and any(one.is_compiled for one in every):
            # All variants run with the same number of threads: torch recompiles if it changes.
            self._plan = replace(self._plan, one_thread=False)
            threads = torch.get_num_threads()
            notes = (threads_note(threads),) if threads > 1 else ()
        is_alone = self._plan.agreement is None
        with repetitions(every, self._plan.one_thread, is_alone=is_alone) as self._signals:
            self._run()
            self.counted = {label: self._count(label) for label in self._subjects}
        if every[0].error is not None:
            self.counted, self.spent_s = {}, 0.0
            why = f"{self._at}: {every[0].error}"
            return dict.fromkeys(self._ran, Figures(notes=(why,)))
        figures = {}
        for label, series in self._series.items():
            sample = f"the trimmed mean of {series.calls} calls" if series.calls > 1 else "one call"
            remarks = (f"each sample is {sample}",)
            figures[label] = Figures(len(series.values), samples_of([series]), notes, remarks, tracers())
        return figures

    def _run(self) -> None:
        """Measure rounds until all ratios to the first variant are decided, or to the time limit."""
        plan, unit, limit_ns = self._plan, self._plan.sampler.unit, self._plan.max_time_s * 1e9
        with core_waits() as waits:
            deadline = Deadline(plan.max_time_s * len(self._subjects))
            rehearsed = {label: self._rehearse(label, waits) for label in self._subjects}
            is_long = all(each.is_on_core and each.call_ns >= LONG_CALL_NS for each in rehearsed.values())
            is_one_thread = plan.one_thread and all(each.is_one_thread for each in self._subjects.values())
            if is_long and is_one_thread and plan.agreement is None:  # one meter, also of CPU time, for all
                self._meter = self._meter._replace(cpu=plan.sampler.cpu)
            round_ns = 0
            for label, (fill_ns, call_ns, _) in rehearsed.items():
                calls, subject = calls_of_block(call_ns, fill_ns, limit_ns), self._subjects[label]
                # The first short hits after a miss are slower.
                warmup = min(calls // 3 + 1, 20) if call_ns < LONG_NS else 0
                self._series[label] = Series(State.CALL, subject, self._meter, unit, warmup, calls)
                round_ns += fill_ns + (warmup + calls) * call_ns
            stop = Stop(deadline, sys.maxsize, MIN_ROUNDS)
            in_time = max(MIN_ROUNDS, int(min(MAX_ROUNDS, deadline.limit_ns / max(round_ns, 1))))
            planned = [number for each in self._series.values() for number in (each.calls, each.warmup)]
            agreed = stop.settle(plan.agreement, f"the rounds of {[*self._series]}", in_time, *planned)
            for series, calls, warmup in zip(self._series.values(), agreed[::2], agreed[1::2], strict=True):
                series.calls, series.warmup = calls, warmup
            quarters = 0
            for labels in take([*self._series], stop, rotates=True):
                for label in labels:
                    show_progress("comparing: {}", label)
                    self._turn(label, waits)
                self.spent_s = (deadline.limit_ns - deadline.left_ns) / 1e9 / len(self._series)
                done = int(LOOKS * self.spent_s / plan.max_time_s)
                if plan.agreement is None and quarters < done < LOOKS:
                    quarters = done
                    if self._is_decided():
                        break

    def _turn(self, label: str, waits: CoreWaits) -> None:
        """Fill the caches, and measure a block of calls."""
        series = self._series[label]
        with gc_paused() as collect:
            self._fill(label)
            collect()
            self._synchronize()
            off_core_ns, began_ns = waits.counted(), time.perf_counter_ns()
            timed = self._calls(label, series.warmup + series.calls)[series.warmup :]
            wall_ns = time.perf_counter_ns() - began_ns
            series.record_block(waits.counted() - off_core_ns, wall_ns)
        cpu = [cpu_ns for _, cpu_ns, _, _ in timed if cpu_ns is not None]
        sample = trimmed_mean([sample for sample, _, _, _ in timed])
        series.record(sample, cpu_ns=trimmed_mean(cpu) if cpu else None)

    def _is_decided(self) -> bool:
        """Return whether no ratio to the first variant needs more rounds."""
        first, *others = (each.samples() for each in self._series.values())
        share = self.spent_s / self._plan.max_time_s
        ratios = [ratio_after(share, first.cpu or first.values, each.cpu or each.values) for each in others]
        return all(ratio is not None and ratio.is_decided for ratio in ratios)

    def _rehearse(self, label: str, waits: CoreWaits) -> Rehearsal:
        """Time the call that fills the caches, and a few hits."""
        began = time.perf_counter_ns()
        self._fill(label)
        fill_ns, calls = time.perf_counter_ns() - began, list[int]()
        cpu_ns, clock_ns = time.thread_time_ns(), waits.clock()
        for _ in range(REHEARSAL_CALLS):
            began = time.perf_counter_ns()
            self._calls(label, 1)
            calls.append(time.perf_counter_ns() - began)
            if calls[-1] >= LONG_NS and self._plan.agreement is None:  # ranks must call equally often
                break
        cpu_ns, clock_ns = time.thread_time_ns() - cpu_ns, waits.clock() - clock_ns
        return Rehearsal(fill_ns, min(calls), cpu_ns >= 0.9 * clock_ns)

    def _fill(self, label: str) -> None:
        """Clear the caches, and run the call that fills them."""
        subject = self._subjects[label]

        def cleared() -> tuple[Any, ...]:
            args = subject.prepare()
            self._caches.clear()
            return args

        self._calls(label, 1, cleared)

    def _calls(self, label: str, calls: int, prepare: Prepare | None = None) -> TimedCalls:
        """Time consecutive calls; no counter is read between them."""
        self._at, subject = label, self._subjects[label]
        try:
            self._signals.let_in()
            return time_row(subject, self._meter, prepare or subject.prepare, tuple, calls)
        finally:
            self._signals.is_open = False

    def _count(self, label: str) -> list[StepCounts]:
        """Count three calls on caches that only this variant filled; record the ops of the first."""
        series = self._series[label]
        self._fill(label)
        self._calls(label, max(REHEARSAL_CALLS, series.warmup + series.calls))
        subject, counted = series.subject, []
        with StepCounter() as counter:
            for is_recorded in (True, False, False):
                args = subject.prepare()
                counter.lap()  # the preparation is not part of the call
                notes = CallNotes(counter) if is_recorded else nullcontext()
                result = repeat_under(notes, subject, args, self._signals)
                counted.append(counter.lap())
                if subject.release:
                    subject.release(result)
        return counted


def run_and_measure_variants(variants: Variants, caches: ShardingCaches, plan: Plan) -> Compared:
    """Call each variant for the program and compare their results, then measure them alternately."""
    __tracebackhide__ = True
    ran: dict[str, RanCallable] = {}

    def call(label: str, fn: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        result, ran[label] = run_call(fn, agreement=plan.agreement)
        wait_for(result)
        return result

    call_variants(variants, call)
    for one in ran.values():
        one.replay.settle_again()
    figures: dict[str, Figures] = {}
    again: dict[str, RanCallable] = {}
    for label, one in ran.items():
        reason = one.skip_reason(plan)
        if reason:
            figures[label] = Figures(notes=(f"{label}: {reason}",))
        else:
            again[label] = one
    turns = Turns(again, caches, plan)
    if again:
        figures |= turns.measure()
    max_time_s = plan.max_time_s if plan.agreement is None else 0.0
    compared, name = list[ComparedVariant](), variants.name
    for label in variants.functions:
        own, mesh = row_name(name, label), ran[label].mesh
        backend = group_backend(device_of(mesh))
        row = Measurement(own, own, name, mesh, Contains.COMPARED, 1, figures[label], backend)
        counts, advice = None, tuple[Advice, ...]()
        if label in turns.counted:
            recorded, *others = turns.counted[label]
            last = others[-1]
            events = (last.redistributions, last.collective_runs, last.wraps, last.reads)
            counts = CallCounts(last.misses, *map(len, events))
            advice = advise(others, recorded)
        compared.append(ComparedVariant(own, label, name, row, counts, advice, max_time_s, turns.spent_s))
    return Compared(name, tuple(variants.functions), tuple(compared))
