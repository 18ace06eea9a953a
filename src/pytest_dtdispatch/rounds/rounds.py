"""Passes of misses on cleared caches, warm-up and hits, with samples proved by cache counters.

Does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import LONG_CALL_NS, MIN_WAITED, Figures, Profile, State
from pytest_dtdispatch.rounds.core_waits import core_waits
from pytest_dtdispatch.rounds.plan import NOTES, REMARKS, Plan, Propagation, Schedule
from pytest_dtdispatch.rounds.recorder import ProvedCall, SampleRecorder, increase, proved_calls
from pytest_dtdispatch.rounds.sampler import Meter
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.rounds.timing import (
    Reader,
    Subject,
    TimedCalls,
    TimingRequest,
    gc_paused,
    keep_sources,
    no_op,
    time_row,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"
OFF_CORE = "not on a core for more than a tenth of the time, waiting or sleeping: {}"
WARMUP_LOCALS, REHEARSAL_CALLS = 2, 3
UNREAD = Meter(int, int)  # for warm-up calls, as reading callgrind takes as long as 10 to 50 calls

T = TypeVar("T")
Requests = Generator[TimingRequest, TimedCalls, T]  # receives the timed calls of each request


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
        self._subject = subject
        self._caches = caches
        self._local, self._synchronize, self._signals = local, synchronize, signals or Signals()
        self._sampler, self._meter = plan.sampler, plan.sampler.meter
        self._miss_meter = self._steady_meter = self._meter  # which also read CPU time if calls are long
        self._plan = plan
        self._schedule: Schedule  # set by run()
        self._recorder = SampleRecorder(plan.sampler.unit)
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # of the cache with the hits; None before the rehearsal
        self._block = 0, 0  # nanoseconds of the last block: off its core, and wall time
        self._bypasses_caches = False  # each call propagates, and no cache counts it
        self.figures = Figures()

    def take(self) -> Figures:
        """Run the rounds, and return their figures."""
        self.run()
        return self.figures

    def run(self) -> None:
        """Set the figures. Requests are timed in this frame, without frames of the rounds on the stack."""
        keep_sources()
        timed: Any = None
        with core_waits() as waits, closing(self._requests()) as requests:
            self._recorder.counts_waits = waits.is_counted
            is_wall_clock = self._sampler.clock is time.perf_counter_ns
            clock = waits.clock if is_wall_clock else None  # other programs must not change the plan
            self._schedule = Schedule(self._plan, self._local is not None, clock)
            while True:
                try:
                    request = requests.send(timed)
                except StopIteration as end:
                    self.figures = end.value
                    return
                off_core_ns, began_ns = waits.read(), time.perf_counter_ns()
                try:
                    self._signals.let_in()
                    timed = time_row(*request)
                finally:
                    self._signals.is_open = False
                self._block = waits.read() - off_core_ns, time.perf_counter_ns() - began_ns

    def _requests(self) -> Requests[Figures]:
        self._sampler.refresh()
        with gc_paused():
            propagation = yield from self._rehearse()
        self._schedule.settle(propagation)
        if self._schedule.has_first_pass:
            yield from self._first_pass(propagation)
        done = 0
        while self._schedule.has_time(done):
            self._synchronize()
            yield from self._pass(propagation)
            self._recorder.end_pass()
            done += 1
        notes = (*NOTES.get(propagation, ()), *self._schedule.notes(done), *self._off_core_notes())
        remarks = (*self._sampler.remarks(), *REMARKS.get(propagation, ()))
        rounds = done * self._schedule.effort.misses
        return Figures(rounds, self._recorder.samples(self._profile), notes, remarks, tracers())

    def _first_pass(self, propagation: Propagation) -> Requests[None]:
        """Run and discard a pass, as first calls are slower; its least samples tell which calls are long."""
        recorder, self._recorder = self._recorder, SampleRecorder(self._sampler.unit)
        yield from self._pass(propagation)
        discarded, self._recorder = self._recorder, recorder
        self._miss_meter = self._meter_of(discarded.recorded(State.MISS))
        steady = discarded.recorded(State.HIT) or discarded.recorded(State.CALL)
        self._steady_meter = self._meter_of(steady)

    def _off_core_notes(self) -> tuple[str, ...]:
        """Return a note on states that were off the core, if the system does not count waits for it."""
        if self._recorder.counts_waits:
            return ()
        states = [str(state) for state in State if self._recorder.off_core(state) > MIN_WAITED]
        return (OFF_CORE.format(", ".join(states)),) if states else ()

    def _meter_of(self, samples: Sequence[int]) -> Meter:
        """Return the meter of calls that take as long as the least of these samples.

        A call longer than a scheduler's slice has no undisturbed wall time.
        """
        plan = self._plan
        reads_cpu = plan.one_thread and plan.agreement is None and self._subject.is_one_thread
        if reads_cpu and min(samples, default=0) >= LONG_CALL_NS:
            return self._meter._replace(cpu=self._sampler.cpu)
        return self._meter

    def _profile(self, state: State) -> Profile | None:
        """Profile another call; return None if the sampler has no profiler."""
        if (profiler := self._sampler.profiler) is None or state in (State.COLD, State.LOCAL):
            return None

        def cleared() -> tuple[Any, ...]:
            args = self._subject.prepare()
            self._caches.clear()
            return args

        with gc_paused():
            prepare = cleared if state is State.MISS else self._subject.prepare
            return profiler(self._subject.fn, prepare, self._subject.kwargs)

    def _rehearse(self) -> Requests[Propagation]:
        """Run and discard a first round, and determine the cache with the hits."""
        subject, caches, schedule = self._subject, self._caches, self._schedule
        with caches.counting_uncached() as uncached:

            def hit() -> tuple[Any, ...]:
                args = subject.prepare()
                uncached[0] = 0
                return args

            def miss() -> tuple[Any, ...]:
                args = hit()
                caches.clear()
                return args

            began = schedule.clock()
            [first] = proved_calls((yield TimingRequest(subject, self._meter, miss, self._read_all, 1)))
            schedule.rehearsed_miss(began)
            queried_at_first = first.hits or first.misses or uncached[0]
            for _ in range(REHEARSAL_CALLS):
                began = schedule.clock()
                timed = yield TimingRequest(subject, self._meter, hit, self._read_all, 1)
                [last] = proved_calls(timed)
                if not (schedule.has_time_to_rehearse(began) or last.misses or uncached[0]):
                    break  # at the first hit
        schedule.rehearsed(first.sample, last.sample)
        self._miss_meter, self._steady_meter = self._meter_of([first.sample]), self._meter_of([last.sample])
        if not (queried_at_first or last.hits or last.misses or uncached[0]):
            return Propagation.NONE
        if last.misses or uncached[0]:
            self._recorder.record(State.HIT, last.sample, PROPAGATED_AGAIN)
            self._bypasses_caches = not last.misses
            return Propagation.NEVER_CACHED
        if not subject.prepare_propagates:
            each = zip(self._readers, *timed[0][2:], strict=True)
            answering = [reader for reader, before, after in each if after[0] > before[0]]
            self._hit_reader = answering[-1] if answering else None
        return Propagation.CACHED

    def _pass(self, propagation: Propagation) -> Requests[None]:
        """Run one pass: consecutive misses, then hits, then calls on local tensors."""
        effort = self._schedule.effort
        if propagation is not Propagation.NONE:
            if self._schedule.plan.cold:
                yield from self._after_clearing(State.COLD, effort.misses)
            yield from self._after_clearing(State.MISS, effort.misses)
        with gc_paused():
            if propagation is not Propagation.NEVER_CACHED:
                steady = State.HIT if propagation is Propagation.CACHED else State.CALL
                yield from self._steady_calls(steady)
            if self._local is not None:
                calls = yield from self._calls(self._local, self._steady_meter, WARMUP_LOCALS + effort.hits)
                for call in calls[WARMUP_LOCALS:]:
                    self._recorder.record(State.LOCAL, call.sample, None, call.cpu_ns)
                self._recorder.record_block(State.LOCAL, *self._block)

    def _steady_calls(self, state: State) -> Requests[None]:
        """Time the hits of a pass, or calls that never query the propagator, after a warm-up."""
        effort, pace = self._schedule.effort, self._schedule.pace
        if pace is None:
            yield from self._calls(self._subject, self._steady_meter, effort.warmup)
            yield from self._block_of_calls(state, effort.hits)
            return
        for block in range(pace.blocks):
            if block:
                self._sampler.refresh()
            yield from self._calls(self._subject, UNREAD, pace.warmup)
            yield from self._block_of_calls(state, pace.repeat)

    def _after_clearing(self, state: State, count: int) -> Requests[None]:
        """Time calls on cleared caches, after collecting garbage of earlier calls."""
        subject, caches, warmup = self._subject, self._caches, self._schedule.warmup_misses()
        is_clear: list[bool] = []
        with gc_paused() as collect, self._counting_uncached():

            def prepare() -> tuple[Any, ...]:
                args = subject.prepare()
                collect()
                caches.clear()
                if state is State.COLD:
                    caches.clear_cold()
                is_clear.append(state is State.MISS or not caches.cold_entries())
                return args

            request = TimingRequest(subject, self._miss_meter, prepare, self._read_all, warmup + count)
            timed = proved_calls((yield request))
        self._recorder.record_block(state, *self._block)
        for call, was_clear in islice(zip(timed, is_clear, strict=True), warmup, None):
            reason = None if call.misses else NOT_PROPAGATED
            self._recorder.record(state, call.sample, reason if was_clear else NOT_COLD, call.cpu_ns)

    @contextmanager
    def _counting_uncached(self) -> Iterator[None]:
        """Count propagations as misses if no cache counts them."""
        if not self._bypasses_caches:
            yield
            return
        counted = self._readers
        with self._caches.counting_uncached() as uncached:
            self._readers = (*counted, lambda: (0, uncached[0]))
            yield
        self._readers = counted

    def _block_of_calls(self, state: State, count: int) -> Requests[None]:
        """Time consecutive hits, or calls that never query the propagator.

        The counters of the cache with the hits are read around every call, all others around the block: a
        miss of another cache refuses the whole block.
        """
        before = self._read_all()
        calls = yield from self._calls(self._subject, self._steady_meter, count)
        self._recorder.record_block(state, *self._block)
        misses = increase(before, self._read_all())[1]
        others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
        for call in calls:
            if state is State.CALL:
                reason = A_COUNTER_MOVED if call.hits or call.misses else None
            elif others_missed or call.misses:
                reason = PROPAGATED_AGAIN
            else:
                reason = None if call.hits else NO_COUNTER_MOVED
            self._recorder.record(state, call.sample, reason, call.cpu_ns)

    def _calls(self, subject: Subject, meter: Meter, count: int) -> Requests[list[ProvedCall]]:
        read = self._hit_reader or self._read_all
        return proved_calls((yield TimingRequest(subject, meter, subject.prepare, read, count)))

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]
