"""Time one call, with as little as possible around it. Without torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

Clock = Callable[[], int]
# A cache's counters: hits first, misses second, and whatever else its owner appends.
Reader = Callable[[], Sequence[Any]]


class Meter(NamedTuple):
    """What is asked right before and right after each call; the difference is the call's figure.

    Args:
        begin: begins to count, and returns what to subtract.
        end: ends it, and returns what was counted.
    """

    begin: Clock
    end: Clock


class Row(NamedTuple):
    """Calls to time, one after the other.

    Args:
        fn: what is called.
        prepare: called before each call, untimed; returns its positional arguments.
        kwargs: keyword arguments of each call.
        read: reads counters right before and right after each call.
        calls: how many.
        release: is given each result before it is dropped, untimed, where results are not just dropped.
    """

    fn: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any]
    read: Reader
    calls: int
    release: Callable[[Any], object] | None = None


class TimedCall(NamedTuple):
    """Figure of one call in the meter's unit, and how far the counters moved during it."""

    figure: int
    hits: int
    misses: int


def nothing_to_do() -> None:
    """Stand in for a device to wait for, on a CPU, or for garbage that nobody wants collected."""


def _time_row(row: Row, meter: Meter) -> list[tuple[int, Sequence[Any], Sequence[Any]]]:
    """Time the calls of a row.

    Nothing but the call stands between two looks at the meter, and next to nothing between two calls: what
    runs there makes the next call slower. What the counters said is looked at when all are done.
    """
    fn, prepare, kwargs, read, calls, release = row
    begin_call, end_call = meter
    timed = []
    for _ in range(calls):
        args = prepare()
        before = read()
        start = begin_call()
        result = fn(*args, **kwargs)
        end = end_call()
        after = read()
        if release is not None:
            release(result)
        del result  # its release is not part of the call
        timed.append((end - start, before, after))
    return timed


# CPython keeps frames in chunks of 16 KiB. Where a chunk ends, every call maps a new one and frees it on
# return, and a hit there takes two to three times as long as one a few frames above or below. This function
# asks for a frame of 32 KiB: it gets a chunk of its own, with as much room again for what it calls.
time_row: Callable[[Row, Meter], list[tuple[int, Sequence[Any], Sequence[Any]]]] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


def moved(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int]:
    """How far hits and misses moved, between two readings of one cache or of several."""
    if isinstance(before[0], int):
        return after[0] - before[0], after[1] - before[1]
    each = [moved(old, new) for old, new in zip(before, after, strict=True)]
    return sum(hits for hits, _ in each), sum(misses for _, misses in each)


@contextmanager
def gc_paused() -> Iterator[Callable[[], object]]:
    """Keep garbage collection out of a timed block, and collect the block's own garbage after it.

    Only the young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield nothing_to_do
        return
    gc.disable()
    try:
        yield collect_young
    finally:
        gc.enable()
        collect_young()


def collect_young() -> None:
    """Collect the two young generations."""
    gc.collect(1)
