"""Watching of a training loop step by step, from inside the program."""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from pytest_dtdispatch.advice import advise, with_advice
from pytest_dtdispatch.budget.collector import Pause, PauseMeter
from pytest_dtdispatch.budget.measure import BudgetMeasurement, steps_needed
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.budget.table import document as budget_document
from pytest_dtdispatch.core.checks import check_count
from pytest_dtdispatch.core.environment import read_world, tracers
from pytest_dtdispatch.core.parsing import read_argument
from pytest_dtdispatch.core.text import escape_controls, plural, shown
from pytest_dtdispatch.errors import DtDispatchError, LimitExceeded, MeasurementError
from pytest_dtdispatch.replay.guard import refuse_inside
from pytest_dtdispatch.report.document import View
from pytest_dtdispatch.steps.counter import LoopCounter
from pytest_dtdispatch.steps.growth import SPECS, live_objects
from pytest_dtdispatch.torchapi.groups import is_first_of_group, rank_of_group
from pytest_dtdispatch.torchapi.profiling import refuse_another_profiler
from pytest_dtdispatch.watch.model import (
    Limits,
    LoopStep,
    LoopSteps,
    Most,
    Total,
    Violation,
    read_step_limits,
)
from pytest_dtdispatch.watch.text import (
    Say,
    calls_text,
    disturbed_line,
    document,
    paused_line,
    rendered,
    say,
    transfers_text,
    violation_text,
)


class Growth:
    """Detector of growing numbers of live objects in a steady loop.

    A number grows if its minimum since a check exceeds the minimum before it, twice in a row; temporary
    objects do not cause that. Garbage is collected only if the number is higher.

    Args:
        since: number of the step in which the loop became steady.
        live: function that counts live objects, including garbage.

    Attributes:
        next_check: number of the step of the next check.
    """

    def __init__(self, since: int, live: Callable[[], Counter[str]]) -> None:
        self.next_check = since + 8  # each later check is twice as far away
        self._since = since
        self._live = live
        self._base = self._last = live()
        self._minimum: Counter[str] | None = None  # since the last check
        self._grew_before = False

    def check(self, step: int) -> str:
        """Return a text about growing objects; empty if there are none, and between checks."""
        live = self._live()
        minimum = self._minimum = live if self._minimum is None else live & self._minimum
        if step < self.next_check:
            return ""
        self.next_check = self._since + 2 * (step - self._since)
        if minimum - self._last:
            gc.collect()
            live = self._live()
            minimum &= live
        grew, again = bool(minimum - self._last), self._grew_before
        self._last, self._minimum, self._grew_before = minimum, None, grew
        return self._text(live) if grew and again else ""

    def so_far(self, step: int, has_misses: bool) -> str:
        """Return a text for the summary about objects that grew in at least every second step.

        Specs alone are no growth if calls missed: caches store the specs of each miss.
        """
        gc.collect()
        live = self._live()
        grown = live - self._base
        most = max((count for name, count in grown.items() if name != SPECS or not has_misses), default=0)
        return self._text(live) if 2 * most >= step - self._since else ""

    def _text(self, live: Counter[str]) -> str:
        grown = ", ".join(f"+{count:,} {name}" for name, count in (live - self._base).items())
        return f"live objects grow: {grown} since step {self._since}"


class BudgetRequest(NamedTuple):
    """A request for the budget of the next steps.

    Args:
        steps: number of counted steps of each level.
        after: number of completed steps at the time of the request.
        at_ns: time of the request, by ``time.perf_counter_ns``.
    """

    steps: int
    after: int
    at_ns: int

    @property
    def first(self) -> int:
        """Number of the first step of the budget: the step after the running one."""
        return self.after + 2

    def too_few(self, completed: int, now_ns: int) -> str:
        """Return a message that the loop ended too early, with the number of steps that a budget needs.

        Example:
            >>> BudgetRequest(20, 2, 0).too_few(12, 300_000_000)
            'the loop ended after 12 steps, and one takes about 127'
            >>> BudgetRequest(1, 2, 0).too_few(60, 60_000_000_000)
            'the loop ended after 60 steps, and one takes about 61'
        """
        step_ns = (now_ns - self.at_ns) / (completed - self.after) if completed > self.after else math.inf
        needed = max(self.first - 1 + steps_needed(self.steps, step_ns), completed + 1)
        return f"the loop ended after {plural(completed, 'step')}, and one takes about {needed:,}"


class StepWatch:
    """Watch of a loop that prints a line for each step which misses or adds entries to the sharding caches.

    It is open until :meth:`close`, or until the end of a ``with`` block. Use it in one thread. It clears and
    repeats nothing.

    Args:
        print: function that prints a line. By default the first rank writes to standard error, and other
            ranks write nothing but their violation.
        max: limits on each step after the warm-up, such as ``misses=0,cache_growth=4``, or a dict. The first
            step over a limit is printed as one block.
        warmup: number of steps of the warm-up. By default it ends with the first step without a miss, after
            at most ten.
        stop: whether that step then ends the program: :meth:`step` raises a ``SystemExit`` with status 1.

    Attributes:
        steps: steps so far.
        violation: the first step over a limit; None without one.
        budgets: complete budgets.
        is_warm: whether the warm-up is over.
        ops_after: calls by op after the last step, once closed and if all calls were recorded.

    Raises:
        DtDispatchError: another measurement is running, in any thread.

    Example:
        >>> with StepWatch(print, warmup=0) as watch:
        ...     for batch in range(2):
        ...         watch.step()
        dtdispatch: step 1: steady: 0 calls, 0 misses
        >>> watch.steps.misses
        0
    """

    def __init__(
        self,
        print: Say | None = None,  # noqa: A002 (public name)
        max: Most = None,  # noqa: A002 (public name)
        warmup: int | None = None,
        stop: bool = False,
    ) -> None:
        if not (print is None or callable(print)):
            raise MeasurementError(f"StepWatch(print={shown(print)}): pass a function of a string")
        if warmup is not None:
            check_count("warmup", warmup, 0, "StepWatch")
        if stop and not max:
            raise MeasurementError("StepWatch(stop=True) has no limits: pass max, such as misses=0")
        most = {} if max is None else read_argument("StepWatch: max", max, read_step_limits, MeasurementError)
        self._limits = Limits(most, warmup, stop)
        self._is_ending = False
        self.violation: Violation | None = None
        self.steps = LoopSteps()
        self.steps.tracers |= dict.fromkeys(tracers())
        self.budgets: list[Budget] = []
        self.ops_after: Counter[str] = Counter()
        self._request: BudgetRequest | None = None
        self._budget: BudgetMeasurement | None = None
        self._print = print
        self.is_warm = False
        self._thread = threading.current_thread()
        self._growth: Growth | None = None
        self._next_transfers = 0
        refuse_inside("StepWatch()")
        self._counter, self._collector = LoopCounter(), PauseMeter()
        hooks = ExitStack()
        hooks.enter_context(self._counter)
        hooks.enter_context(self._collector)
        self._finish = weakref.finalize(self, hooks.close)
        self._counter.record_transfers()
        self._counter.begin_notes()
        self._began_ns = time.perf_counter_ns()

    def __enter__(self) -> StepWatch:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def step(self) -> None:
        """End a step: call it at the end of each iteration of the loop.

        Raises:
            LimitExceeded: with ``stop=True``, the step is the first over a limit.
            MeasurementError: the watch is closed, or belongs to another thread.
        """
        ended_ns, pauses = time.perf_counter_ns(), tuple(self._collector.pauses)
        self._check("step()")
        is_quiet = self._growth and not self._request
        calls = self._counter.quiet_lap() if is_quiet else None
        if calls is None:
            self._end_step(ended_ns, pauses)
        else:
            took_ns = ended_ns - self._began_ns
            self.steps.steady.add_calls(calls, took_ns)
            if pauses:
                self._note_pauses(took_ns, pauses)
            if len(self.steps) % 8 == 0:
                self._plan_next(len(self.steps))
        self._collector.pauses.clear()  # those outside of steps too
        self._began_ns = time.perf_counter_ns()
        if self._is_ending:
            self._is_ending = False  # the program may catch it, and continue
            raise LimitExceeded(1)

    def _end_step(self, ended_ns: int, pauses: Sequence[Pause]) -> None:
        if self._budget is not None:
            self._budget.end_step()
        has_transfers = self._counter.records_transfers
        took_ns = None if has_transfers or self._request else ended_ns - self._began_ns
        step = LoopStep(len(self.steps) + 1, self._counter.lap(), took_ns, has_transfers, pauses)
        self.steps.record(step)
        counts = step.counts
        if self._limits.warmup is not None:
            is_warmup = step.number <= self._limits.warmup
        else:
            is_before_ops = not self.steps.calls and not counts.calls and not counts.events
            is_warmup = not self.is_warm and step.number <= 10 and (counts.misses > 0 or is_before_ops)
        if is_warmup:
            self.steps.warmup.add(step)
            if step.number >= 3:  # the first three record every op
                self._counter.end_notes()
            if counts.misses:
                calls = f"{counts.misses:,} of {counts.calls:,} calls missed"
                self._write(f"step {step.number}: warm-up: {calls}")
        else:
            self._watch(step)
        if self._request is not None:
            self._begin_budget_step(self._request)

    def _note_pauses(self, took_ns: int, pauses: Sequence[Pause]) -> None:
        """Print a step that stands out because of the collector: the first, the second, the fourth, ..."""
        if self.steps.is_paused(took_ns, pauses):
            self.steps.paused += 1
            if self.steps.paused.bit_count() == 1:
                self._write(paused_line(len(self.steps), took_ns, pauses, self.steps.steady))

    def budget(self, steps: int = 20) -> None:
        """Measure the budget of the next steps: the breakdown of their wall time.

        Some steps are traced line by line. Then undisturbed and profiled steps alternate. A step is the code
        between two calls of :meth:`step`. After enough steps, the result is printed, and stored in
        ``budgets``.

        Args:
            steps: number of undisturbed steps, and of each other kind. With 20, the budget takes 124 steps,
                or more if they are shorter than 20 ms.

        Raises:
            DtDispatchError: a budget is already being measured, or a profiler of torch is running.
        """
        self._check("budget()")
        if self._request is not None:
            raise MeasurementError("budget(): a budget is being measured; it is printed after enough steps")
        check_count("steps", steps, 1, "budget")
        refuse_another_profiler("a budget")
        self._counter.skip_transfers()
        self._counter.end_notes()
        self._request = BudgetRequest(steps, len(self.steps), time.perf_counter_ns())

    def __str__(self) -> str:
        """Return a table of the steps so far."""
        has_misses = self.steps.disturbed.misses > 0
        notes = [self._growth.so_far(len(self.steps), has_misses)] if self._growth else []
        paused = self.steps.paused
        if paused:
            notes.append(f"{plural(paused, 'step')} stood out because the garbage collector paused them")
        if self.violation is not None:
            exceeded = ", ".join(verdict.criterion for verdict in self.violation.verdicts)
            notes.append(f"step {self.violation.step} was the first over its limits: {exceeded}")
        notes += [f"after the last step: {calls_text(self.steps.after)}"] if self.steps.after.calls else []
        by_steps = [advise(steps, self.steps.with_ops) for steps in self.steps.for_advice if not self.budgets]
        found = sorted(dict.fromkeys(chain.from_iterable(by_steps)), key=attrgetter("order"))
        notes += [line for advice in found for line in advice.lines]
        return rendered(document("StepWatch", self.steps, notes), sys.stderr)

    def close(self) -> None:
        """Remove all hooks; the counts stay."""
        if self._request is not None:
            too_few = self._request.too_few(len(self.steps), time.perf_counter_ns())
            with suppress(DtDispatchError):  # the incomplete budget is discarded anyway
                self._end_budget()
            self._write(f"no budget: {too_few}")
        if self._finish.alive and self._limits.most and not self.is_warm:
            after = f"no step came after the warm-up ({plural(len(self.steps), 'step')})"
            self._write(f"max judged nothing: {after}")
        if self._finish.alive and threading.current_thread() is self._thread:
            self.ops_after = self._counter.noted_ops()
            self.steps.after = self._counter.lap()
        self._finish()

    def _begin_budget_step(self, request: BudgetRequest) -> None:
        """Begin the next step of a budget, or print the budget if it is complete."""
        try:
            if self._budget is None:
                self._budget = BudgetMeasurement(request.steps, f"steps from {request.first:,} on")
            if self._budget.begin_step():
                return
            name = f"steps {request.first:,} to {len(self.steps):,}"
            budget = replace(with_advice(self._budget.result()), name=name)
            self.budgets.append(budget)
            self._say(rendered(budget_document({"StepWatch": [budget]}, View(verbose=True)), sys.stderr))
        except DtDispatchError as error:
            self._write(f"no budget: {error}")
        self._end_budget()

    def _end_budget(self) -> None:
        budget, self._budget, self._request = self._budget, None, None
        if budget is not None:
            budget.__exit__(None, None, None)

    def _check(self, method: str) -> None:
        if not self._finish.alive:
            raise MeasurementError(f"{method} of a closed StepWatch: create a new one")
        thread = threading.current_thread()
        if thread is not self._thread:
            raise MeasurementError(
                f"{method} in thread {thread.name!r}: this StepWatch counts thread {self._thread.name!r}, "
                "so call it there"
            )

    def _watch(self, step: LoopStep) -> None:
        self.steps.add(step)
        if not step.is_steady:
            self._report(step)
        elif step.took_ns is not None and step.pauses:
            self._note_pauses(step.took_ns, step.pauses)
        self.is_warm = True
        self._counter.end_notes()
        if step.is_steady and self._growth is None:
            self._write(f"step {step.number}: steady: {transfers_text(step.counts)}, 0 misses")
            self._growth = Growth(step.number, live_objects)
            self._next_transfers = self._growth.next_check
        self._plan_next(step.number)

    def _report(self, step: LoopStep) -> None:
        """Print a disturbed step: the first over a limit, and the first, second, fourth, ... of a cause."""
        is_due = self.steps.is_due(step)
        exceeded = self._limits.violation(step) if self.violation is None else None
        if exceeded is not None:
            self.violation, self._is_ending = exceeded, self._limits.stops
            text = violation_text(exceeded, rank_of_group(), self._is_ending)
            (say if self._print is None else self._print)(text)  # on each rank: ranks may differ
        elif is_due:
            self._write(disturbed_line(step, self.steps))
            self.steps.unlisted = Total()

    def _plan_next(self, number: int) -> None:
        """Choose whether the next step records transfers; check for tracers and growing live objects."""
        counter, growth = self._counter, self._growth
        self.steps.tracers |= dict.fromkeys(tracers())
        if counter.records_transfers and len(self.steps.recorded) == 2:  # two show what recurs
            counter.skip_transfers()
        elif growth and number >= self._next_transfers and self._request is None:
            self._next_transfers = 4 * number
            counter.record_transfers()
        if growth and self._request is None:  # a budget references specs
            grown = growth.check(number)
            if grown:
                self._write(f"step {number}: {grown}")

    @property
    def is_first_rank(self) -> bool:
        """Whether this is the first rank of the process group, even if it has ended, or of the launcher."""
        of_group = (is_first_of_group(), self._counter.is_first_rank)
        found = (is_first for is_first in of_group if is_first is not None)
        return next(found, read_world(os.environ).is_first)

    def _write(self, line: str) -> None:
        self._say(f"dtdispatch: {escape_controls(line)}")

    def _say(self, text: str) -> None:
        if self._print is not None:
            self._print(text)
        elif self.is_first_rank:
            say(text)
