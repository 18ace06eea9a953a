"""Series of calls, and their timing with minimal overhead. Does not import torch.

Parts of the measured path look indirect. Without each of them, figures exceed the limits of
``benchmarks/fidelity.py``, which are 3 % for a hit and 5 % for a miss:

* Propagation walks the Python stack: each frame between the program and its op makes a miss 0.3 % longer.
  Therefore a generator yields a :class:`TimingRequest` for each block, and the function at the bottom of the
  stack times it. Rounds in plain functions make misses 1.6 % longer, and 3 of 8 ops exceed their limit. Below
  autograd, torch itself calls that function, and repetitions are a ``with`` block, not a function.
* Propagation also checks whether each file on the stack has changed. :func:`keep_sources` avoids this for
  files of this package: 1.1 % of a miss, and 3 % of a quick one.
* CPython allocates frames in chunks of 16 KiB. At the end of a chunk, every call maps a new chunk and frees
  it on return, so that a hit takes two to three times as long as a few frames above or below.
  :func:`time_row` requests a frame of 32 KiB: it gets a separate chunk, with as much space for the frames
  that it calls.
* Only the call is between two readings of the clock. Between two calls, only the counters of the cache with
  the hits are read: reading all caches makes a hit 2 % longer. Counters are evaluated after the block.
"""

from __future__ import annotations

import gc
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import TIME, Profile, Refused, Samples, State, Unit
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.rounds.sampler import Meter

Prepare = Callable[[], "tuple[Any, ...]"]
# A cache's counters: hits first, misses second, then any others.
Reader = Callable[[], Sequence[Any]]
# For each call its sample, its CPU time if it was read, and the counters right before and right after it.
TimedCalls = list[tuple[int, "int | None", Sequence[Any], Sequence[Any]]]


@dataclass(frozen=True)
class Subject:
    """A call that is timed repeatedly.

    Args:
        fn: the callable.
        prepare: untimed function that is called before each call, and returns the positional arguments.
        kwargs: keyword arguments.
        prepare_propagates: whether ``prepare`` may query the caches itself.
        release: untimed function that is called with each result before it is deleted; None for none.
        is_one_thread: whether all of its work runs in the calling thread.
    """

    fn: Callable[..., Any]
    prepare: Prepare
    kwargs: dict[str, Any] = field(default_factory=dict)
    prepare_propagates: bool = False
    release: Callable[[Any], object] | None = None
    is_one_thread: bool = True


@dataclass
class Series:
    """Calls of one subject in one state, as each pass makes them, and their samples in the order of calls.

    Args:
        state: state of the recorded calls.
        subject: the call.
        meter: meter that is read right before and right after each call.
        unit: unit of the samples.
        warmup: number of discarded calls before the recorded ones.
        calls: number of recorded calls.
        blocks: number of times that a pass makes all of these calls.
        warmup_meter: meter of discarded calls; None for that of the others.

    Attributes:
        values: recorded samples.
        refused: numbers of refused samples, by reason.
        profile: instructions of a call by function, if requested.

    Example:
        >>> series = Series(State.CALL, Subject(int, tuple), Meter(int, int))
        >>> series.record(7)
        >>> series.record(9, "it compiled")
        >>> series.values, dict(series.refused)
        ([7], {'it compiled': 1})
    """

    state: State
    subject: Subject
    meter: Meter
    unit: Unit = TIME
    warmup: int = 0
    calls: int = 1
    blocks: int = 1
    warmup_meter: Meter | None = None
    values: list[int] = field(default_factory=list, init=False)
    refused: Counter[str] = field(default_factory=Counter, init=False)
    profile: Profile | None = field(default=None, init=False)
    _cpu: list[int] = field(default_factory=list, init=False)  # of the same calls, if it was read
    _lengths: list[int] = field(default_factory=list, init=False)  # of passes
    _off_core_ns: int = field(default=0, init=False)
    _wall_ns: int = field(default=0, init=False)

    def record(self, sample: int, reason: str | None = None, cpu_ns: int | None = None) -> None:
        """Record a sample, or refuse it if there is a reason."""
        if type(sample) is not int:
            raise MeasurementError(f"a sample of {self.unit.name} is {shown(sample)}: it must be an int")
        if reason or not self.unit.holds(sample):
            self.refused[reason or "the meter did not count"] += 1
        else:
            self.values.append(sample)
            if cpu_ns is not None:
                self._cpu.append(cpu_ns)

    def record_block(self, off_core_ns: int, wall_ns: int) -> None:
        """Record the wall time of a block of calls, and its time off the core."""
        self._off_core_ns += off_core_ns
        self._wall_ns += wall_ns

    def end_pass(self) -> None:
        """End a pass: samples that follow belong to the next one."""
        self._lengths.append(len(self.values) - sum(self._lengths))

    @property
    def off_core(self) -> float:
        """Share of the time of all blocks in which the thread was not on a core."""
        return min(self._off_core_ns / max(self._wall_ns, 1), 1.0)

    def samples(self, counts_waits: bool = True) -> Samples:
        """Return recorded and refused samples.

        Args:
            counts_waits: whether time off the core is waiting for one.
        """
        return Samples(
            self.state,
            tuple(self.values),
            tuple(Refused(reason, count) for reason, count in self.refused.items()),
            self.unit,
            self.profile,
            waited=self.off_core if counts_waits else 0.0,
            lengths=tuple(length for length in self._lengths if length),
            cpu=tuple(self._cpu),
        )


def samples_of(every: Iterable[Series], counts_waits: bool = True) -> tuple[Samples, ...]:
    """Return the samples of all series that have recorded or refused ones."""
    return tuple(series.samples(counts_waits) for series in every if series.values or series.refused)


class TimingRequest(NamedTuple):
    """Consecutive timed calls: the arguments of :func:`time_row`.

    Args:
        subject: timed call.
        meter: meter that is read right before and right after each call.
        prepare: function that is called before each call instead of ``subject.prepare``.
        read: function that reads the counters.
        calls: number of calls.
    """

    subject: Subject
    meter: Meter
    prepare: Prepare
    read: Reader
    calls: int


def _time_row(subject: Subject, meter: Meter, prepare: Prepare, read: Reader, calls: int) -> TimedCalls:
    fn, kwargs, release = subject.fn, subject.kwargs, subject.release
    begin_call, end_call, cpu = meter
    timed, cpu_ns = [], None
    may_count = prepare is not subject.prepare or subject.prepare_propagates or release
    before = read()
    for _ in range(calls):
        args = prepare()
        if may_count:
            before = read()
        if cpu is None:
            start = begin_call()
            result = fn(*args, **kwargs)
            end = end_call()
        else:
            cpu_ns = cpu()
            start = begin_call()
            result = fn(*args, **kwargs)
            end = end_call()
            cpu_ns = cpu() - cpu_ns
        after = read()
        if release is not None:
            release(result)
        del result  # deallocation is not part of the call
        timed.append((end - start, cpu_ns, before, after))
        before = after
    return timed


time_row: Callable[[Subject, Meter, Prepare, Reader, int], TimedCalls] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


def keep_sources() -> None:
    """Prevent file checks by ``linecache`` for this file, and for files of this package on the stack."""
    frame: FrameType | None = sys._getframe()  # time_row is in this file
    while frame is not None:
        file = frame.f_code.co_filename
        if str(frame.f_globals.get("__name__")).startswith(f"{__package__.partition('.')[0]}."):
            linecache.getlines(file)
            entry = linecache.cache.get(file, ())
            if len(entry) == 4 and entry[1] is not None:
                linecache.cache[file] = (entry[0], None, *entry[2:])  # like a source without a file
        frame = frame.f_back


def no_op() -> None:
    """Do nothing."""


@contextmanager
def gc_paused() -> Iterator[Callable[[], object]]:
    """Disable garbage collection in a timed block, and collect the garbage of the block after it.

    Only young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield no_op
        return
    collect_young = partial(gc.collect, 1)
    gc.disable()
    try:
        yield collect_young
    finally:
        gc.enable()
        collect_young()
