"""Where in a step a call was made: in which thread, and as which call of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_dtdispatch.steps.happened import Asked
from pytest_dtdispatch.torchapi.propagator import ShardingCaches


class CallPlace(NamedTuple):
    """Where a call was made.

    Args:
        thread: its number, 0 for the one that runs the step; caches are per thread.
        call: how many calls the thread made before it in this step.
        clears: how often the caches of the thread had been cleared by then.
    """

    thread: int = 0
    call: int = 0
    clears: int = 0


class ThreadState(threading.local):
    """What is going on in a thread. Its calls are counted, so that a call of one step is found in the next.

    Hits of the native cache are torch's to count, and all other calls are told of. Of a thread that makes
    calls between steps as well, the first place in a step is that after its last call that was told of.
    """

    depth = 0  # propagations that are running: one may need others
    asking: Any = None  # times the outermost of them
    nested = 0
    asked = Asked.NONE
    python_entries = 0
    clears = 0

    def __init__(self, keys: Iterator[int], caches: ShardingCaches) -> None:
        self.key = next(keys)  # the system gives the number of a dead thread to a new one
        self._caches = caches
        self._lap = self._told = self._hits_before = self._hits = 0

    def begin(self, lap: int) -> None:
        """Begin a step in the thread that runs it."""
        self._hits = self._caches.native_stats()[0]
        self._enter(lap)

    def tell(self, lap: int) -> CallPlace:
        """Tell of a call that was no hit of the native cache; return where it was made."""
        self._enter(lap)
        self._told += 1
        return self.last_call(lap)

    def last_call(self, lap: int) -> CallPlace:
        """Return where the latest call was made."""
        self._enter(lap)
        self._hits = self._caches.native_stats()[0]
        return CallPlace(self.key, self._hits - self._hits_before + self._told - 1, self.clears)

    def cleared(self) -> None:
        """Note that the native cache is about to be cleared, and what it counts with it."""
        self._hits_before -= self._caches.native_stats()[0]
        self._hits = 0
        self.clears += 1

    def _enter(self, lap: int) -> None:
        if lap != self._lap:
            self._lap, self._told, self._hits_before = lap, 0, self._hits
