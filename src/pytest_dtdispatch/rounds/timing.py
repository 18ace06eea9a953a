"""Time calls one after the other, with next to nothing around each of them. Without torch.

The measured path has parts that look like detours. Each is worth more than the bounds of
``benchmarks/fidelity.py`` allow, which are 3 % for a hit and 5 % for a miss:

* Propagation walks the Python stack: each frame between the program and its op makes a miss 0.3 % longer.
  So a generator yields a :class:`TimingRequest` for each block, and the function at the bottom of the stack
  times it. Rounds in plain functions make misses 1.6 % longer, and 3 of 8 ops exceed their bound. Below
  autograd torch itself calls that function, and repetitions are a ``with`` block, not a function.
* Propagation also checks whether each file on the stack has changed. :func:`keep_sources` avoids that for our
  files: 1.1 % of a miss, and 3 % of a quick one.
* CPython keeps frames in chunks of 16 KiB. At the end of a chunk every call maps a new one and frees it on
  return, and a hit takes two to three times as long as one a few frames above or below. :func:`time_row`
  requests a frame of 32 KiB: it gets a chunk of its own, with as much room for the frames that it calls.
* Only the call is between two readings of the clock, and only counters are read between two calls, of the
  cache that answers: reading all caches makes a hit 2 % longer. Counters are evaluated after the block.
"""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from pytest_dtdispatch.rounds.sampler import Meter

Prepare = Callable[[], "tuple[Any, ...]"]
# A cache's counters: hits first, misses second, then any others.
Reader = Callable[[], Sequence[Any]]
# For each call its sample, and the counters right before and right after it.
TimedCalls = list[tuple[int, Sequence[Any], Sequence[Any]]]


@dataclass(frozen=True)
class Subject:
    """A call that is timed again and again.

    Args:
        fn: the callable.
        prepare: called before each call, untimed; returns the positional arguments.
        kwargs: keyword arguments.
        prepare_propagates: whether ``prepare`` may query the caches itself.
        release: receives each result, untimed, before it is dropped; None if results are just dropped.
    """

    fn: Callable[..., Any]
    prepare: Prepare
    kwargs: dict[str, Any] = field(default_factory=dict)
    prepare_propagates: bool = False
    release: Callable[[Any], object] | None = None


class TimingRequest(NamedTuple):
    """Calls that are timed one after the other: the arguments of :func:`time_row`.

    Args:
        subject: what is called.
        meter: read right before and right after each call.
        prepare: called before each call, in place of that of the subject.
        read: reads the counters.
        calls: their number.
    """

    subject: Subject
    meter: Meter
    prepare: Prepare
    read: Reader
    calls: int


def _time_row(subject: Subject, meter: Meter, prepare: Prepare, read: Reader, calls: int) -> TimedCalls:
    fn, kwargs, release = subject.fn, subject.kwargs, subject.release
    begin_call, end_call = meter
    timed = []
    may_count = prepare is not subject.prepare or subject.prepare_propagates or release
    before = read()
    for _ in range(calls):
        args = prepare()
        if may_count:
            before = read()
        start = begin_call()
        result = fn(*args, **kwargs)
        end = end_call()
        after = read()
        if release is not None:
            release(result)
        del result  # dropping it is not part of the call
        timed.append((end - start, before, after))
        before = after
    return timed


time_row: Callable[[Subject, Meter, Prepare, Reader, int], TimedCalls] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


def keep_sources() -> None:
    """Keep Python from checking on disk the files of this package that are on the stack, and this one."""
    frame: FrameType | None = sys._getframe()  # of this file, as time_row
    while frame is not None:
        file = frame.f_code.co_filename
        if str(frame.f_globals.get("__name__")).startswith(f"{__package__.partition('.')[0]}."):
            linecache.getlines(file)
            entry = linecache.cache.get(file, ())
            if len(entry) == 4 and entry[1] is not None:
                linecache.cache[file] = (entry[0], None, *entry[2:])  # like a source without a file
        frame = frame.f_back


def no_op() -> None:
    """Do nothing: no device to wait for, or no garbage to collect."""


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
