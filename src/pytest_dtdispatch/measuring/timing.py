"""Time one call, with as little as possible around it. Without torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple


class CallBlock(NamedTuple):
    """Calls to time, one after the other.

    Args:
        fn: what is called.
        prepare: called before each call, untimed; returns its positional arguments.
        kwargs: keyword arguments of each call.
        read: reads counters right before and right after each call.
        calls: how many.
        release: is given each result before it is dropped, untimed, where results are not just dropped.
        begin: is asked right before each call, and between it and the call nothing is done.
        end: is asked right after it; what it returns less what ``begin`` returned is the sample.
    """

    fn: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any]
    read: Callable[[], Sequence[Any]]
    calls: int
    release: Callable[[Any], object] | None
    begin: Callable[[], int]
    end: Callable[[], int]


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
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    prepare_propagates: bool = False
    release: Callable[[Any], object] | None = None

    def row(
        self,
        meter: tuple[Callable[[], int], Callable[[], int]],
        prepare: Callable[[], tuple[Any, ...]],
        read: Callable[[], Sequence[Any]],
        calls: int,
    ) -> CallBlock:
        """Make the row of so many calls, each prepared as is said here."""
        return CallBlock(self.fn, prepare, self.kwargs, read, calls, self.release, *meter)

    def drop(self, result: Any) -> None:
        """Release a result of a call that is not timed."""
        if self.release is not None:
            self.release(result)


def nothing_to_do() -> None:
    """Stand in for a device to wait for, on a CPU, or for garbage that nobody wants collected."""


def _time_row(row: CallBlock) -> list[tuple[int, Sequence[Any], Sequence[Any]]]:
    """Time the calls of a row.

    Nothing but the call stands between two readings, and next to nothing between two calls: what
    runs there makes the next call slower. What the counters said is looked at when all are done.
    """
    fn, prepare, kwargs, read, calls, release, begin_call, end_call = row
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
time_row: Callable[[CallBlock], list[tuple[int, Sequence[Any], Sequence[Any]]]] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


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
