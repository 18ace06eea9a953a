"""Rounds of misses on cleared caches, warm-up and hits, with samples proved by cache counters.

Does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import MIN_WAITED, Figures, Profile, State
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
REPEATED = "calls during which another thread took the core, or another machine slowed it, were repeated"
PATIENCE_S = 0.3  # for which the rounds of a row wait until the core is at full speed
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
        self._schedule = Schedule(plan, local is not None)
        self._recorder = SampleRecorder(plan.sampler.unit, self._schedule.is_slow)
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # of the cache with the hits; None before the rehearsal
        self._block = 0, 0  # nanoseconds of the last block: off its core, and wall time
        # The core's speed: the last reading, and the maximum of those before and after the last block.
        self._speed_ns = self._block_speed_ns = 0
        self._read_speed = plan.speed.read if plan.sampler.unit.is_time else int
        self._patience_s = min(PATIENCE_S, plan.speed.waits_left_s)
        self._has_repeated = False  # whether any call was preempted
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
                before_ns, self._speed_ns = self._speed_ns, self._read_speed()
                self._block_speed_ns = max(before_ns, self._speed_ns)

    def _requests(self) -> Requests[Figures]:
        self._sampler.refresh()
        with gc_paused():
            propagation = yield from self._rehearse()
        self._schedule.settle(propagation)
        done = 0
        while count := self._schedule.next_rounds(done):
            self._synchronize()
            more = yield from self._some_rounds(propagation, count)
            done += more
            if more < count:  # the samples are precise
                break
        slept = [str(state) for state in State if self._recorder.off_core(state) > MIN_WAITED]
        off_core = [OFF_CORE.format(", ".join(slept))] * (bool(slept) and not self._recorder.counts_waits)
        notes = (*NOTES.get(propagation, ()), *self._schedule.notes(done), *off_core)
        repeated = [REPEATED] * self._has_repeated
        remarks = (*self._sampler.remarks(), *REMARKS.get(propagation, ()), *repeated)
        samples, has_few = self._recorder.samples(self._profile), self._schedule.has_few_misses(done)
        return Figures(done, samples, notes, remarks, tracers(), has_few)

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
        if not (queried_at_first or last.hits or last.misses or uncached[0]):
            return Propagation.NONE
        if last.misses or uncached[0]:
            self._recorder.record(State.HIT, last.sample, PROPAGATED_AGAIN)
            self._bypasses_caches = not last.misses
            return Propagation.NEVER_CACHED
        if not subject.prepare_propagates:
            each = zip(self._readers, *timed[0][1:], strict=True)
            answering = [reader for reader, before, after in each if after[0] > before[0]]
            self._hit_reader = answering[-1] if answering else None
        return Propagation.CACHED

    def _some_rounds(self, propagation: Propagation, count: int) -> Requests[int]:
        """Run up to ``count`` rounds, fewer if their samples are precise; return their number."""
        if propagation is Propagation.NONE:
            done = self._schedule.at_first(count, len(self._recorder.recorded(State.CALL)))
        else:
            if self._schedule.plan.cold:
                yield from self._after_clearing(State.COLD, count)
            done = yield from self._after_clearing(State.MISS, count)
        with gc_paused():
            if propagation is Propagation.CACHED:
                yield from self._steady_rounds(State.HIT, done, count)
            elif propagation is Propagation.NONE:
                done = yield from self._steady_rounds(State.CALL, done, count)
            if self._local is not None:
                yield from self._calls(self._local, self._meter, WARMUP_LOCALS)
                warmup = self._schedule.part_warmup
                for part in self._schedule.parts(done * self._schedule.effort.repeat):
                    self._speed_ns = self._read_full_speed(State.LOCAL)
                    calls = yield from self._calls(self._local, self._meter, warmup + part)
                    for call in calls[warmup:]:
                        self._recorder.record(State.LOCAL, call.sample, speed_ns=self._block_speed_ns)
                    self._recorder.record_block(State.LOCAL, *self._block)
        return done

    def _steady_rounds(self, state: State, done: int, maximum: int) -> Requests[int]:
        """Time the steady calls of ``done`` rounds, and of more rounds until they are precise."""
        effort, pace, schedule = self._schedule.effort, self._schedule.pace, self._schedule
        if pace is None:
            yield from self._calls(self._subject, self._meter, effort.warmup)
            yield from self._steady_calls(state, done * effort.repeat)
        else:
            for block in range(pace.blocks):
                if block:
                    self._sampler.refresh()
                yield from self._calls(self._subject, UNREAD, pace.warmup)
                yield from self._steady_calls(state, pace.repeat)
        while (
            schedule.fewest is not None
            and done < maximum
            and not schedule.is_enough(self._recorder.recorded(state))
        ):
            yield from self._steady_calls(state, effort.repeat)
            done += 1
        return done

    def _after_clearing(self, state: State, count: int) -> Requests[int]:
        """Time calls on cleared caches, after collecting garbage of earlier calls; return their number.

        A call during which another thread took the core is repeated, as its sample contains the time of that
        thread: with four busy loops on two cores, half of the misses of 1.5 ms took 2 to 6 ms. So is a short
        call next to a reading of a slow core, while there is time to wait for a fast one.
        """
        subject, schedule, caches = self._subject, self._schedule, self._caches
        done = repeated = 0
        is_clear: list[bool] = []
        # Preemptions and speed of the core: after the previous call, and before each call.
        read_preemptions, readings = self._sampler.preemptions, list[tuple[int, int]]()
        with gc_paused() as collect, self._counting_uncached():

            def prepare() -> tuple[Any, ...]:
                readings.append((read_preemptions(), self._read_speed()))
                args = subject.prepare()
                collect()
                is_warmup = len(is_clear) < warmup
                speed_ns = self._read_speed() if is_warmup else self._read_full_speed(state)
                # Read between clearing and the call, as the caches are, it makes quick misses 1 % longer.
                readings.append((read_preemptions(), speed_ns))
                caches.clear()
                if state is State.COLD:
                    caches.clear_cold()
                is_clear.append(state is State.MISS or not caches.cold_entries())
                return args

            while done < count and not (done and schedule.is_enough(self._recorder.recorded(state))):
                more = schedule.at_first(count - done, len(self._recorder.recorded(state)))
                warmup = 0 if done or repeated else schedule.warmup_misses(more)
                request = TimingRequest(subject, self._meter, prepare, self._read_all, warmup + more)
                timed = proved_calls((yield request))
                readings.append((read_preemptions(), self._speed_ns))
                self._recorder.record_block(state, *self._block)
                calls = zip(timed, is_clear, readings[1::2], readings[2::2], strict=True)
                for call, was_clear, before, after in islice(calls, warmup, None):
                    speed_ns = max(before[1], after[1])
                    is_slowed = self._patience_s > 0 and schedule.is_slow(state, speed_ns)
                    if (after[0] != before[0] or is_slowed) and schedule.may_repeat(repeated, count):
                        repeated += 1
                        continue
                    self._recorder.preempted[state] += after[0] != before[0]
                    reason = None if call.misses else NOT_PROPAGATED
                    self._recorder.record(state, call.sample, reason if was_clear else NOT_COLD, speed_ns)
                    done += 1
                is_clear.clear()
                readings.clear()
        self._has_repeated |= repeated > 0
        return done

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

    def _steady_calls(self, state: State, count: int) -> Requests[None]:
        """Time a block of hits, or of calls that never query the propagator.

        The counters of the cache with the hits are read around every call, all others around the block: a
        miss of another cache refuses the whole block.
        """
        warmup = self._schedule.part_warmup
        for part in self._schedule.parts(count):
            self._speed_ns = self._read_full_speed(state)
            before, preemptions = self._read_all(), self._sampler.preemptions()
            calls = yield from self._calls(self._subject, self._meter, warmup + part)
            self._recorder.record_block(state, *self._block)
            self._recorder.preempted[state] += min(self._sampler.preemptions() - preemptions, part)
            misses = increase(before, self._read_all())[1]
            others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
            for number, call in enumerate(calls):
                if state is State.CALL:
                    reason = A_COUNTER_MOVED if call.hits or call.misses else None
                elif others_missed or call.misses:
                    reason = PROPAGATED_AGAIN
                else:
                    reason = None if call.hits else NO_COUNTER_MOVED
                if number >= warmup or reason:
                    self._recorder.record(state, call.sample, reason, self._block_speed_ns)

    def _calls(self, subject: Subject, meter: Meter, count: int) -> Requests[list[ProvedCall]]:
        read = self._hit_reader or self._read_all
        return proved_calls((yield TimingRequest(subject, meter, subject.prepare, read, count)))

    def _read_full_speed(self, state: State) -> int:
        """Return the core's speed; read it until the core is at full speed while the patience lasts."""
        speed, speed_ns = self._schedule.plan.speed, self._read_speed()
        while self._patience_s > 0 and self._schedule.is_slow(state, speed_ns):
            began_ns = time.perf_counter_ns()
            speed_ns = self._read_speed()
            waited_s = (time.perf_counter_ns() - began_ns) / 1e9
            self._patience_s -= waited_s
            speed.waits_left_s -= waited_s
        return speed_ns

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]
