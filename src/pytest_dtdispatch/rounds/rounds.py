"""Rounds: clear and miss, warm-up, hits; each call timed with next to nothing around it. Without torch."""

from __future__ import annotations

import gc
import linecache
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.environment import is_traced
from pytest_dtdispatch.core.measurement import (
    MIN_WAITED,
    TIME,
    Figures,
    Profile,
    Refused,
    Samples,
    State,
    Unit,
)
from pytest_dtdispatch.rounds.core_waits import core_waits
from pytest_dtdispatch.rounds.plan import NOTES, REMARKS, Plan, Propagation, Schedule
from pytest_dtdispatch.rounds.sampler import Meter
from pytest_dtdispatch.rounds.signals import Signals

if TYPE_CHECKING:
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"
NOT_COUNTED = "the meter did not count"
OFF_CORE = "not on a core for more than a tenth of the time, waiting or sleeping: {}"
MOST_IN_A_PART = 10_000

# A cache's counters: hits first, misses second, and whatever else its owner appends.
Reader = Callable[[], Sequence[Any]]
# Of each call its sample, and the counters right before and right after it.
TimedCalls = list[tuple[int, Sequence[Any], Sequence[Any]]]


class ProvedCall(NamedTuple):
    """Sample of one call, and how far the counters moved during it."""

    sample: int
    hits: int
    misses: int


def moved(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int]:
    """How far hits and misses moved, between two readings of one cache or of several."""
    if isinstance(before[0], int):
        return after[0] - before[0], after[1] - before[1]
    each = [moved(old, new) for old, new in zip(before, after, strict=True)]
    return sum(hits for hits, _ in each), sum(misses for _, misses in each)


def proved(calls: TimedCalls) -> list[ProvedCall]:
    """Look how far the counters moved during each of the calls."""
    return [ProvedCall(sample, *moved(before, after)) for sample, before, after in calls]


class SampleRecorder:
    """Samples of one subject by state, in the order they were taken, and why others were refused.

    Example:
        >>> recorder = SampleRecorder()
        >>> recorder.record(State.CALL, 7)
        >>> recorder.record(State.CALL, 9, "it compiled")
        >>> recorder.recorded(State.CALL), str(*recorder.refused(State.CALL))
        ([7], 'it compiled (1x)')
    """

    def __init__(self, unit: Unit = TIME) -> None:
        self.unit = unit
        self._recorded: defaultdict[State, list[int]] = defaultdict(list)
        self._refused: Counter[tuple[State, str]] = Counter()
        self._off_core_ns, self._wall_ns = Counter[State](), Counter[State]()
        self._speeds = defaultdict[State, list[int]](list)
        self.counts_waits = True

    def record(self, state: State, sample: int, why_not: str = "") -> None:
        """Record a sample, or where there is a reason against it, refuse it."""
        if why_not or not self.unit.holds(sample):
            self._refused[state, why_not or NOT_COUNTED] += 1
        else:
            self._recorded[state].append(sample)

    def record_speed(self, state: State, speed_ns: int) -> None:
        """Add a reading of the core's speed beside a call of a state."""
        self._speeds[state].append(speed_ns)

    def record_block(self, state: State, off_core_ns: int, wall_ns: int, *speeds_ns: int) -> None:
        """Add the time of a block of calls, its time off the core, and the core's speed around it.

        Samples of blocks that waited are not refused. The quietest block leaves them out: without half of
        these blocks 91 of 108 figures of hits differed by at most 1 % beside a load of 15, and scattered over
        processes by 13.1 % in place of 13.6 %. In blocks of 10 calls the first takes twice as long, and of
        misses each block waited.
        """
        self._off_core_ns[state] += off_core_ns
        self._wall_ns[state] += wall_ns
        self._speeds[state] += speeds_ns

    def speed_ns(self, state: State) -> int:
        """Return the mean of the readings of the core's speed beside a state's calls; 0 without readings."""
        return round(fmean(self._speeds[state] or [0]))

    def off_core(self, state: State) -> float:
        """Return the share of the time of all blocks that the thread was not on a core."""
        return min(self._off_core_ns[state] / max(self._wall_ns[state], 1), 1.0)

    def recorded(self, state: State) -> Sequence[int]:
        """Return what was recorded of a state so far; later samples are added to it."""
        return self._recorded[state]

    def refused(self, state: State) -> tuple[Refused, ...]:
        """Count what was taken of a state and not recorded."""
        return tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state)


def parts(calls: int) -> list[int]:
    """Split calls that are timed one after the other: what is read of one takes 400 bytes until it is proved.

    Example:
        >>> parts(25_000)
        [10000, 10000, 5000]
    """
    return [min(MOST_IN_A_PART, calls - first) for first in range(0, calls, MOST_IN_A_PART)]


def nothing_to_do() -> None:
    """Stand in for a device to wait for, on a CPU, or for garbage that nobody wants collected."""


@contextmanager
def gc_paused() -> Iterator[Callable[[], object]]:
    """Keep garbage collection out of a timed block, and collect the block's own garbage after it.

    Only the young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield nothing_to_do
        return
    collect_young = partial(gc.collect, 1)
    gc.disable()
    try:
        yield collect_young
    finally:
        gc.enable()
        collect_young()


def _keep_sources() -> None:
    """Keep Python from asking the disk for the files of this package that are on the stack.

    Propagation reads the stack, and looks whether each file on it has changed: what stands between the
    program and its op would make a quick miss up to 3 % longer.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if str(frame.f_globals.get("__name__")).startswith(f"{__package__.partition('.')[0]}."):
            linecache.getlines(file)
            entry = linecache.cache.get(file, ())
            if len(entry) == 4 and entry[1] is not None:
                linecache.cache[file] = (entry[0], None, *entry[2:])  # as of a source that is no file
        frame = frame.f_back


WARMUP_LOCALS, REHEARSAL_CALLS = 2, 3
UNREAD = Meter(int, int)  # to read callgrind takes as long as 10 to 50 calls

T = TypeVar("T")
Prepare = Callable[[], "tuple[Any, ...]"]
# Asks for rows to be timed, by arguments of :func:`time_row`, is sent what that gave, and returns something.
Blocks = Generator["tuple[Subject, Meter, Prepare, Reader, int]", TimedCalls, T]


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        fn: the callable.
        prepare: called before each call, untimed; returns the positional arguments.
        kwargs: keyword arguments.
        prepare_propagates: whether ``prepare`` may itself ask the caches.
        release: is given each result before it is dropped, untimed, where results are not just dropped.
    """

    fn: Callable[..., Any]
    prepare: Prepare
    kwargs: dict[str, Any] = field(default_factory=dict)
    prepare_propagates: bool = False
    release: Callable[[Any], object] | None = None


def _time_row(subject: Subject, meter: Meter, prepare: Prepare, read: Reader, calls: int) -> TimedCalls:
    """Time calls of a subject one after the other, each prepared as is said here.

    Nothing but the call stands between two readings, and next to nothing between two calls: what
    runs there makes the next call slower. What the counters said is looked at when all are done.
    """
    fn, kwargs, release = subject.fn, subject.kwargs, subject.release
    begin_call, end_call = meter
    timed = []
    may_move = prepare is not subject.prepare or subject.prepare_propagates or release  # the counters
    before = read()
    for _ in range(calls):
        args = prepare()
        if may_move:
            before = read()
        start = begin_call()
        result = fn(*args, **kwargs)
        end = end_call()
        after = read()
        if release is not None:
            release(result)
        del result  # its release is not part of the call
        timed.append((end - start, before, after))
        before = after
    return timed


# CPython keeps frames in chunks of 16 KiB. Where a chunk ends, every call maps a new one and frees it on
# return, and a hit there takes two to three times as long as one a few frames above or below. This function
# asks for a frame of 32 KiB: it gets a chunk of its own, with as much room again for what it calls.
time_row: Callable[[Subject, Meter, Prepare, Reader, int], TimedCalls] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


def samples_of(
    recorder: SampleRecorder, profile: Callable[[State], Profile | None] = lambda state: None
) -> tuple[Samples, ...]:
    """Return what was tried, state by state; with a profile of each state that was recorded."""
    samples = []
    for state in State:
        recorded, refused = tuple(recorder.recorded(state)), recorder.refused(state)
        if recorded or refused:
            shown = profile(state) if recorded else None
            waited = recorder.off_core(state) * recorder.counts_waits
            speed = recorder.speed_ns(state)
            of_block = Samples(state, recorded, refused, recorder.unit, shown, waited=waited, speed_ns=speed)
            samples.append(of_block)
    return tuple(samples)


class Rounds:
    """Take rounds of one subject, and read each call by the sampler of the plan.

    Attributes:
        figures: what they gave, once they were run.
    """

    def __init__(
        self,
        subject: Subject,
        caches: ShardingCaches,
        plan: Plan,
        local: Subject | None = None,
        synchronize: Callable[[], None] = nothing_to_do,
        signals: Signals | None = None,
    ) -> None:
        self._subject = subject
        self._caches = caches
        self._local, self._synchronize, self._signals = local, synchronize, signals or Signals()
        self._sampler, self._meter = plan.sampler, plan.sampler.meter
        self._schedule, self._recorder = Schedule(plan, local is not None), SampleRecorder(plan.sampler.unit)
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # until it is known which cache answers: all of them
        # Nanoseconds of the last one: off its core, wall time, the core's speed before and after it.
        self._block = 0, 0, 0, 0
        self._read_speed = plan.speed.read if plan.sampler.unit.is_time else int
        self._asks_no_cache = False  # though it propagates
        self.figures = Figures()

    def take(self) -> Figures:
        """Run the rounds, and return what they gave."""
        self.run(0.0)
        return self.figures

    def run(self, element: float) -> float:
        """Run the rounds; return the element of a tensor, of which torch calls this."""
        # Blocks are timed here and not where they are planned: a propagation walks the Python stack, and each
        # frame that stands between the program and its op makes a miss 0.3 % slower.
        _keep_sources()
        raw: Any = None
        with core_waits() as waits, closing(self._rows()) as rows:
            self._recorder.counts_waits = waits.is_counted
            speed_ns = self._read_speed()
            while True:
                try:
                    row = rows.send(raw)
                except StopIteration as end:
                    self.figures = end.value
                    return element
                off_core_ns, began_ns = waits.read(), time.perf_counter_ns()
                try:
                    self._signals.let_in()
                    raw = time_row(*row)
                finally:
                    self._signals.is_open = False
                times = waits.read() - off_core_ns, time.perf_counter_ns() - began_ns
                speed_before_ns, speed_ns = speed_ns, self._read_speed()
                self._block = *times, speed_before_ns, speed_ns

    def _rows(self) -> Blocks[Figures]:
        self._sampler.refresh()
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
        slept = [str(state) for state in State if self._recorder.off_core(state) > MIN_WAITED]
        off_core = [OFF_CORE.format(", ".join(slept))] * (bool(slept) and not self._recorder.counts_waits)
        notes = (*NOTES.get(propagation, ()), *self._schedule.notes(done), *off_core)
        remarks = (*self._sampler.remarks(), *REMARKS.get(propagation, ()))
        return Figures(done, samples_of(self._recorder, self._profile), notes, remarks, is_traced())

    def _profile(self, state: State) -> Profile | None:
        """Profile one call more, if that was asked for."""
        if (profiler := self._sampler.profiler) is None or state in (State.COLD, State.LOCAL):
            return None

        def cleared() -> tuple[Any, ...]:
            args = self._subject.prepare()
            self._caches.clear()
            return args

        with gc_paused():
            prepare = cleared if state is State.MISS else self._subject.prepare
            return profiler(self._subject.fn, prepare, self._subject.kwargs)

    def _rehearse(self) -> Blocks[Propagation]:
        """Discard a first round, and learn from it which cache answers."""
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
            [first] = proved((yield subject, self._meter, miss, self._read_all, 1))
            schedule.rehearsed_miss(began)
            queried_at_first = first.hits or first.misses or uncached[0]
            for _ in range(REHEARSAL_CALLS):
                began = schedule.clock()
                raw = yield subject, self._meter, hit, self._read_all, 1
                [last] = proved(raw)
                if not (schedule.has_time_to_rehearse(began) or last.misses or uncached[0]):
                    break  # at the first that is a hit
        schedule.rehearsed(first.sample, last.sample)
        if not (queried_at_first or last.hits or last.misses or uncached[0]):
            return Propagation.NONE
        if last.misses or uncached[0]:
            self._recorder.record(State.HIT, last.sample, PROPAGATED_AGAIN)
            self._asks_no_cache = not last.misses
            return Propagation.NEVER_CACHED
        if not subject.prepare_propagates:
            each = zip(self._readers, *raw[0][1:], strict=True)
            answering = [reader for reader, before, after in each if after[0] > before[0]]
            self._hit_reader = answering[-1] if answering else None
        return Propagation.CACHED

    def _some_rounds(self, propagation: Propagation, count: int) -> Blocks[int]:
        """Take so many rounds, or fewer that are enough; give how many."""
        if propagation is Propagation.NONE:
            taken = self._schedule.at_first(count, len(self._recorder.recorded(State.CALL)))
        else:
            if self._schedule.plan.cold:
                yield from self._after_clearing(State.COLD, count)
            taken = yield from self._after_clearing(State.MISS, count)
        with gc_paused():
            if propagation is Propagation.CACHED:
                yield from self._steady_rounds(State.HIT, taken, count)
            elif propagation is Propagation.NONE:
                taken = yield from self._steady_rounds(State.CALL, taken, count)
            if self._local is not None:
                yield from self._calls(self._local, self._meter, WARMUP_LOCALS)
                for part in parts(taken * self._schedule.effort.repeat):
                    for call in (yield from self._calls(self._local, self._meter, part)):
                        self._recorder.record(State.LOCAL, call.sample)
                    self._recorder.record_block(State.LOCAL, *self._block)
        return taken

    def _steady_rounds(self, state: State, taken: int, most: int) -> Blocks[int]:
        """Take the calls of so many rounds in the steady state, and more where they are not enough."""
        effort, pace, recorded = self._schedule.effort, self._schedule.pace, self._recorder.recorded(state)
        if pace is None:
            yield from self._calls(self._subject, self._meter, effort.warmup)
            yield from self._steady_calls(state, taken * effort.repeat)
        else:
            for block in range(pace.blocks):
                if block:
                    self._sampler.refresh()
                yield from self._calls(self._subject, UNREAD, pace.warmup)
                yield from self._steady_calls(state, pace.repeat)
        while self._schedule.fewest is not None and taken < most and not self._schedule.is_enough(recorded):
            yield from self._steady_calls(state, effort.repeat)
            taken += 1
        return taken

    def _after_clearing(self, state: State, count: int) -> Blocks[int]:
        """Time calls each of which finds the caches cleared, and the garbage of the one before collected."""
        subject, schedule, caches = self._subject, self._schedule, self._caches
        taken, recorded = 0, self._recorder.recorded(state)
        is_clear: list[bool] = []
        with gc_paused() as collect, self._counting_uncached():

            def prepare() -> tuple[Any, ...]:
                args = subject.prepare()
                collect()
                self._recorder.record_speed(state, self._read_speed())
                caches.clear()
                if state is State.COLD:
                    caches.clear_cold()
                is_clear.append(state is State.MISS or not caches.cold_entries())
                return args

            while taken < count and not (taken and schedule.is_enough(recorded)):
                more = schedule.at_first(count - taken, len(recorded))
                warmup = 0 if taken else schedule.warmup_misses(more)
                calls = proved((yield subject, self._meter, prepare, self._read_all, warmup + more))
                self._recorder.record_block(state, *self._block)
                for call, was_clear in zip(calls[warmup:], is_clear[warmup:], strict=True):
                    why_not = "" if call.misses else NOT_PROPAGATED
                    self._recorder.record(state, call.sample, why_not if was_clear else NOT_COLD)
                is_clear.clear()
                taken += more
        return taken

    @contextmanager
    def _counting_uncached(self) -> Iterator[None]:
        """Count propagations as misses if no cache counts them."""
        if not self._asks_no_cache:
            yield
            return
        counted = self._readers
        with self._caches.counting_uncached() as uncached:
            self._readers = (*counted, lambda: (0, uncached[0]))
            yield
        self._readers = counted

    def _steady_calls(self, state: State, count: int) -> Blocks[None]:
        """Time a block of hits, or of calls that ask no propagator.

        The counters of the cache that answers are read around every call. The others would cost a
        hit 2 % if they were read as often: they are read around the block, and can only refuse it whole.
        """
        for part in parts(count):
            before = self._read_all()
            calls = yield from self._calls(self._subject, self._meter, part)
            self._recorder.record_block(state, *self._block)
            misses = moved(before, self._read_all())[1]
            others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
            for call in calls:
                if state is State.CALL:
                    why_not = A_COUNTER_MOVED if call.hits or call.misses else ""
                elif others_missed or call.misses:
                    why_not = PROPAGATED_AGAIN
                else:
                    why_not = "" if call.hits else NO_COUNTER_MOVED
                self._recorder.record(state, call.sample, why_not)

    def _calls(self, subject: Subject, meter: Meter, count: int) -> Blocks[list[ProvedCall]]:
        return proved((yield subject, meter, subject.prepare, self._hit_reader or self._read_all, count))

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]
