"""Rounds: clear and miss, warm-up, hits; and what the counters prove of each sample. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_dtdispatch.core.measurement import Figures, Samples, State
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.plan import Plan, Propagation, Schedule
from pytest_dtdispatch.measuring.sampler import Meter
from pytest_dtdispatch.measuring.timing import (
    NO_COUNTER_MOVED,
    NOT_PROPAGATED,
    PROPAGATED_AGAIN,
    Caches,
    CallBlock,
    ProvedCall,
    Reader,
    SampleRecorder,
    Subject,
    gc_paused,
    moved,
    nothing_to_do,
    time_row,
)

WARMUP_LOCALS = 2
REHEARSAL_CALLS = 3
UNREAD = Meter(int, int)  # to read callgrind takes as long as 10 to 50 calls

T = TypeVar("T")
# Asks for rows to be timed, is sent what that gave, and returns something at its end.
Blocks = Generator[CallBlock, "list[tuple[int, Sequence[Any], Sequence[Any]]] | None", T]


@dataclass(frozen=True)
class Taken:
    """What the rounds gave."""

    propagation: Propagation
    rounds: int
    samples: tuple[Samples, ...] = ()
    remarks: tuple[str, ...] = ()

    def figures(self, *remarks: str) -> Figures:
        """Say beside the samples how their subject uses the sharding propagator, where that is unusual."""
        notes: tuple[str, ...] = ()
        remarks = (*remarks, *self.remarks)
        if self.propagation is Propagation.NEVER_CACHED:
            notes = ("never hits: propagation runs on every call",)
        if self.propagation is Propagation.NONE:
            remarks = (*remarks, "unpropagated: it never asks the sharding propagator, so it has no miss")
        return Figures(self.rounds, self.samples, notes, remarks)


class Rounds:
    """Take rounds of one subject, and read each call by the sampler of the plan."""

    def __init__(
        self,
        subject: Subject,
        caches: Caches,
        plan: Plan,
        local: Subject | None = None,
        synchronize: Callable[[], None] = nothing_to_do,
        signals: Signals | None = None,
    ) -> None:
        self._subject = subject
        self._caches = caches
        self._local = local
        self._synchronize = synchronize
        self._signals = signals or Signals()
        self._sampler = plan.sampler
        self._meter = plan.sampler.meter
        self._schedule = Schedule(plan, has_local=local is not None)
        self._recorder = SampleRecorder(plan.sampler.unit)
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # until it is known which cache answers: all of them
        self._why_no_miss = NOT_PROPAGATED

    def take(self) -> Taken:
        """Run the rounds."""
        # Blocks are timed here and not where they are planned: a propagation walks the Python stack, and each
        # frame that stands between the program and its op makes a miss 0.3 % slower.
        raw = None
        with closing(self._rows()) as rows:
            while True:
                try:
                    row = rows.send(raw)
                except StopIteration as end:
                    taken: Taken = end.value
                    return taken
                try:
                    self._signals.let_in()
                    raw = time_row(row)
                finally:
                    self._signals.is_open = False

    def _rows(self) -> Blocks[Taken]:
        self._sampler.refresh()
        self._schedule.begin()
        with gc_paused():
            propagation = yield from self._rehearse()
        self._schedule.settle(propagation)
        done = 0
        while count := self._schedule.next_rounds(done):
            self._synchronize()
            taken = yield from self._some_rounds(propagation, count)
            done += taken
            if taken < count:  # they are enough
                break
        return Taken(propagation, done, self._profiled(), self._sampler.remarks())

    def _profiled(self) -> tuple[Samples, ...]:
        """Give the samples, each state that was recorded with a profile of one call more, if asked for."""
        samples, profiler, subject = self._recorder.samples(), self._sampler.profiler, self._subject
        if profiler is None:
            return samples

        def cleared() -> tuple[Any, ...]:
            args = subject.prepare()
            self._clear()
            return args

        prepares = {State.MISS: cleared, State.HIT: subject.prepare, State.CALL: subject.prepare}
        with gc_paused():
            return tuple(
                replace(one, profile=profiler(subject.fn, prepares[one.state], subject.kwargs))
                if one.values and one.state in prepares
                else one
                for one in samples
            )

    def _rehearse(self) -> Blocks[Propagation]:
        """Discard a first round, and learn from it which cache answers."""
        subject, caches = self._subject, self._caches
        before: list[int] = []
        with caches.counting_uncached() as uncached:

            def miss() -> tuple[Any, ...]:
                args = subject.prepare()
                caches.clear()
                uncached[0] = 0
                return args

            def hit() -> tuple[Any, ...]:
                args = subject.prepare()
                uncached[0] = 0
                before[:] = [reader()[0] for reader in self._readers]
                return args

            began = self._schedule.clock()
            [first] = yield from self._read(subject.row(self._meter, miss, self._read_all, 1))
            self._schedule.rehearsed_miss(began)
            asked_at_first = first.hits or first.misses or uncached[0]
            row = subject.row(self._meter, hit, self._read_all, 1)
            last = yield from self._rehearse_hits(row, uncached)
            after = [reader()[0] for reader in self._readers]
        self._schedule.rehearsed(first.sample, last.sample)
        if not (asked_at_first or last.hits or last.misses or uncached[0]):
            return Propagation.NONE
        if last.misses or uncached[0]:
            self._recorder.refuse(State.HIT, PROPAGATED_AGAIN)
            if not last.misses:  # it propagates, and asks no cache that could count it
                self._why_no_miss = NO_COUNTER_MOVED
            return Propagation.NEVER_CACHED
        if not subject.prepare_propagates:
            for reader, old, new in zip(self._readers, before, after, strict=True):
                if new > old:
                    self._hit_reader = reader
        return Propagation.CACHED

    def _rehearse_hits(self, row: CallBlock, uncached: Sequence[int]) -> Blocks[ProvedCall]:
        """Make a few hits; where there is no time for them, end at the first that is one."""
        for _ in range(REHEARSAL_CALLS):
            began = self._schedule.clock()
            [last] = yield from self._read(row)
            if not (self._schedule.has_time_to_rehearse(began) or last.misses or uncached[0]):
                break
        return last

    def _some_rounds(self, propagation: Propagation, count: int) -> Blocks[int]:
        """Take so many rounds, or fewer that are enough; give how many."""
        if propagation is Propagation.NONE:
            taken = self._schedule.at_first(count, len(self._recorder.recorded(State.CALL)))
        else:
            taken = yield from self._propagating_calls(count)
        with gc_paused():
            if propagation is Propagation.CACHED:
                yield from self._steady_rounds(State.HIT, self._hits, taken, count)
            elif propagation is Propagation.NONE:
                taken = yield from self._steady_rounds(State.CALL, self._unpropagated_calls, taken, count)
            yield from self._locals(taken)
        return taken

    def _steady_rounds(
        self, state: State, take: Callable[[int], Blocks[None]], taken: int, most: int
    ) -> Blocks[int]:
        """Take the calls of so many rounds in the steady state, and more where they are not enough."""
        effort, pace = self._schedule.effort, self._schedule.pace
        if pace is None:
            yield from self._calls(self._subject, self._meter, effort.warmup)
            yield from take(taken * effort.repeat)
        else:
            for block in range(pace.blocks):
                if block:
                    self._sampler.refresh()
                yield from self._calls(self._subject, UNREAD, pace.warmup)
                yield from take(pace.repeat)
        while self._schedule.within is not None and taken < most and not self._is_enough(state):
            yield from take(effort.repeat)
            taken += 1
        return taken

    def _is_enough(self, state: State) -> bool:
        return self._schedule.is_enough(self._recorder.recorded(state))

    def _propagating_calls(self, count: int) -> Blocks[int]:
        if self._schedule.plan.cold:
            yield from self._after_clearing(State.COLD, self._clear_all, count)
        return (yield from self._after_clearing(State.MISS, self._clear, count))

    def _after_clearing(self, state: State, clear: Callable[[], bool], count: int) -> Blocks[int]:
        """Time calls each of which finds the caches cleared, and the garbage of the one before collected."""
        subject, schedule = self._subject, self._schedule
        taken = 0
        is_clear: list[bool] = []
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = subject.prepare()
                collect()
                is_clear.append(clear())
                return args

            while taken < count and not (taken and self._is_enough(state)):
                more = schedule.at_first(count - taken, len(self._recorder.recorded(state)))
                warmup = 0 if taken else schedule.warmup_misses(more)
                row = subject.row(self._meter, prepare, self._read_all, warmup + more)
                calls = yield from self._read(row)
                for call, was_clear in zip(calls[warmup:], is_clear[warmup:], strict=True):
                    self._recorder.record(state, call.sample, call.why_no_miss(was_clear, self._why_no_miss))
                is_clear.clear()
                taken += more
        return taken

    def _clear(self) -> bool:
        self._caches.clear()
        return True

    def _clear_all(self) -> bool:
        self._caches.clear()
        self._caches.clear_cold()
        return not self._caches.cold_entries()

    def _hits(self, count: int) -> Blocks[None]:
        """Time a block of hits.

        The counters of the cache that answers are read around every call. The others would cost a
        hit 2 % if they were read as often: they are read around the block, and can only refuse it whole.
        """
        before = self._read_all()
        calls = yield from self._calls(self._subject, self._meter, count)
        misses = moved(before, self._read_all())[1]
        others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
        for call in calls:
            self._recorder.record(State.HIT, call.sample, call.why_no_hit(others_missed))

    def _unpropagated_calls(self, count: int) -> Blocks[None]:
        for call in (yield from self._calls(self._subject, self._meter, count)):
            self._recorder.record(State.CALL, call.sample, call.why_not_unpropagated())

    def _locals(self, rounds: int) -> Blocks[None]:
        if self._local is None:
            return
        meter, count = self._sampler.local_meter, rounds * self._schedule.effort.repeat
        yield from self._calls(self._local, meter, WARMUP_LOCALS)
        for call in (yield from self._calls(self._local, meter, count)):
            self._recorder.record(State.LOCAL, call.sample)

    def _calls(self, subject: Subject, meter: Meter, count: int) -> Blocks[list[ProvedCall]]:
        read = self._hit_reader or self._read_all
        return (yield from self._read(subject.row(meter, subject.prepare, read, count)))

    def _read(self, row: CallBlock) -> Blocks[list[ProvedCall]]:
        raw = yield row
        return [ProvedCall(sample, *moved(before, after)) for sample, before, after in raw or ()]

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]
