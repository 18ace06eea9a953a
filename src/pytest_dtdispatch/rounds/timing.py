"""Timing of consecutive calls with minimal overhead. Does not import torch.

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
