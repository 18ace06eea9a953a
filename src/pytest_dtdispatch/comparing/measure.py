"""Measurement of variants: call each for the program, then repeat blocks of calls alternately."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.comparing.equality import call_variants
from pytest_dtdispatch.comparing.model import CallCounts, Compared, ComparedVariant, Variants
from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, State
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
from pytest_dtdispatch.replay.replay import NotRepeatable
from pytest_dtdispatch.rounds.core_waits import core_waits
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.series import Deadline, Series, Stop, samples_of, take
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.rounds.timing import Prepare, Subject, gc_paused, time_row
from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import group_backend, wait_for

# With 15 rounds the interval excludes one at each end: a single disturbed round decides nothing.
MIN_ROUNDS = 15
LONG_NS = 10_000_000  # a call that is this long is a block
REHEARSAL_CALLS = 3


def calls_of_block(call_ns: int) -> int:
    """Return the number of calls of this length in a round.

    Example:
        >>> calls_of_block(12_000), calls_of_block(1_300_000), calls_of_block(60_000_000)
        (100, 3, 1)
    """
    block_ns = 3_000_000  # short, so that a slow machine slows down both of two blocks
    return 1 if call_ns >= LONG_NS else min(max(block_ns // max(call_ns, 1), 3), 100)


def warmup_of_block(calls: int) -> int:
    """Return the number of warm-up calls of a block: the first hits after a miss are slower."""
    return min(calls // 3 + 1, 20) if calls > 1 else 0


class Turns:
    """Measurement of rounds with one block of calls for each variant.

    Before each block, the sharding caches are cleared, and the variant fills them as if it ran alone. A hit
    is up to a fifth faster for the tensor that created the cache entry than for an equal tensor: with shared
    caches, the first of two equal variants would be faster.

    Attributes:
        series: block of calls of each variant, with the median of each block.
        at: label of the running variant.
    """

    def __init__(
        self, subjects: Mapping[str, Subject], caches: ShardingCaches, plan: Plan, signals: Signals
    ) -> None:
        self.series: dict[str, Series] = {}
        self.at = ""
        self._subjects = subjects
        self._caches = caches
        self._plan = plan
        self._signals = signals
        self._synchronize = synchronizer()

    def run(self) -> None:
        """Measure as many rounds as the time limit allows."""
        plan, round_ns = self._plan, 0
        deadline = Deadline(plan.max_time_s * len(self._subjects))
        for label, subject in self._subjects.items():
            fill_ns, call_ns = self._rehearse(label)
            calls = calls_of_block(call_ns)
            warmup = warmup_of_block(calls)
            meter, unit = plan.sampler.meter, plan.sampler.unit
            self.series[label] = Series(State.CALL, subject, meter, unit, warmup, calls)
            round_ns += fill_ns + (warmup + calls) * call_ns
        stop = Stop(deadline, max(MIN_ROUNDS, round(2.5 * plan.rounds)), MIN_ROUNDS)  # 100 by default
        in_time = max(MIN_ROUNDS, int(min(stop.most, deadline.limit_ns / max(round_ns, 1))))
        planned = [series.calls for series in self.series.values()]
        agreed = stop.settle(plan.agreement, f"the rounds of {[*self.series]}", in_time, *planned)
        for series, calls in zip(self.series.values(), agreed, strict=True):
            series.calls, series.warmup = calls, warmup_of_block(calls)
        with core_waits() as waits:
            for labels in take([*self.series], stop, rotates=True):
                for label in labels:
                    show_progress("comparing: {}", label)
                    series = self.series[label]
                    with gc_paused() as collect:
                        self._fill(label)
                        collect()
                        self._synchronize()
                        off_core_ns, began_ns = waits.counted(), time.perf_counter_ns()
                        samples = self._calls(label, series.warmup + series.calls)
                        wall_ns = time.perf_counter_ns() - began_ns
                        series.record_block(waits.counted() - off_core_ns, wall_ns)
                    series.record(round(statistics.median(samples[series.warmup :])))

    def _rehearse(self, label: str) -> tuple[int, int]:
        """Time the call that fills the caches, and a few hits; return its time and the shortest hit."""
        began = time.perf_counter_ns()
        self._fill(label)
        fill_ns, call_ns = time.perf_counter_ns() - began, sys.maxsize
        for _ in range(REHEARSAL_CALLS):
            began = time.perf_counter_ns()
            self._calls(label, 1)
            call_ns = min(call_ns, time.perf_counter_ns() - began)
            if call_ns >= LONG_NS and self._plan.agreement is None:  # ranks must call equally often
                break
        return fill_ns, call_ns

    def _fill(self, label: str) -> None:
        """Clear the caches, and run the call that fills them."""
        subject = self._subjects[label]

        def cleared() -> tuple[Any, ...]:
            args = subject.prepare()
            self._caches.clear()
            return args

        self._calls(label, 1, cleared)

    def _calls(self, label: str, calls: int, prepare: Prepare | None = None) -> list[int]:
        """Time consecutive calls; no counter is read between them."""
        self.at, subject = label, self._subjects[label]
        try:
            self._signals.let_in()
            timed = time_row(subject, self._plan.sampler.meter, prepare or subject.prepare, tuple, calls)
        finally:
            self._signals.is_open = False
        return [sample for sample, _, _, _ in timed]

    def count(self, label: str) -> list[StepCounts]:
        """Count three calls on caches that only this variant filled; record the ops of the first."""
        series = self.series[label]
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
    ran: dict[str, RanCallable | NotRepeatable] = {}

    def call(label: str, fn: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        result, ran[label] = run_call(fn, agreement=plan.agreement)
        wait_for(result)
        return result

    call_variants(variants, call)
    ran = {label: one.settled_again() for label, one in ran.items()}
    figures, counted = _measured(ran, caches, plan)
    compared: list[ComparedVariant] = []
    for label in variants.functions:
        own = row_name(variants.name, label)
        mesh = ran[label].mesh
        backend = group_backend(device_of(mesh))
        row = Measurement(own, own, variants.name, mesh, Contains.COMPARED, 1, figures[label], backend)
        counts, advice = None, tuple[Advice, ...]()
        if label in counted:
            recorded, *others = counted[label]
            last = others[-1]
            events = (last.redistributions, last.collective_runs, last.wraps, last.reads)
            counts = CallCounts(last.misses, *map(len, events))
            advice = advise(others, recorded)
        compared.append(ComparedVariant(own, label, variants.name, row, counts, advice))
    return Compared(variants.name, tuple(variants.functions), tuple(compared))


def _measured(
    ran: Mapping[str, RanCallable | NotRepeatable], caches: ShardingCaches, plan: Plan
) -> tuple[dict[str, Figures], dict[str, list[StepCounts]]]:
    """Measure the variants that can be repeated; note for the others why they cannot."""
    figures: dict[str, Figures] = {}
    again: dict[str, RanCallable] = {}
    for label, one in ran.items():
        reason = one.skip_reason(plan)
        if reason:
            figures[label] = Figures(notes=(f"{label}: {reason}",))
        elif isinstance(one, RanCallable):
            again[label] = one
    if not again:
        return figures, {}
    # All variants run with the same number of threads: torch recompiles if it changes.
    compiled, threads = any(one.is_compiled for one in again.values()), torch.get_num_threads()
    notes = (threads_note(threads),) if compiled and plan.one_thread and threads > 1 else ()
    counted: dict[str, list[StepCounts]] = {}
    subjects = {label: one.subject for label, one in again.items()}
    one_thread, is_alone = plan.one_thread and not compiled, plan.agreement is None
    with repetitions([*again.values()], one_thread, is_alone=is_alone) as outcome:
        turns = Turns(subjects, caches, plan, outcome.signals)
        turns.run()
        for label in subjects:
            counted[label] = turns.count(label)
    if outcome.figures.notes:
        why = f"{turns.at}: {outcome.figures.notes[0]}"
        return figures | dict.fromkeys(again, Figures(notes=(why,))), {}
    for label, series in turns.series.items():
        sample = f"the median of {series.calls} calls" if series.calls > 1 else "one call"
        remarks = (f"each sample is {sample}",)
        figures[label] = Figures(len(series.values), samples_of([series]), notes, remarks, tracers())
    return figures, counted
