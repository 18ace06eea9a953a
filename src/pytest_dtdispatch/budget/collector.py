"""Pauses of Python's garbage collector while steps run. Without torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

OLDEST = len(gc.get_threshold()) - 1  # generation
MIN_PAUSES = 3  # for a share of the time: fewer may be chance


class Pause(NamedTuple):
    """A collection.

    Args:
        generation: that was collected; younger ones are collected with it.
        ns: its length.
    """

    generation: int
    ns: int


@dataclass(frozen=True)
class CollectorPauses:
    """Pauses of the garbage collector in several steps.

    Args:
        steps: number of steps.
        wall_ns: wall time of these steps.
        pauses: number of collections.
        paused_ns: their sum.
        longest_ns: the longest one.
        oldest: number of collections of the oldest generation.
        oldest_ns: their sum.

    Example:
        >>> CollectorPauses.of([Pause(0, 10), Pause(2, 30), Pause(0, 10)], 4, 500).share
        0.1
    """

    steps: int = 0
    wall_ns: int = 0
    pauses: int = 0
    paused_ns: int = 0
    longest_ns: int = 0
    oldest: int = 0
    oldest_ns: int = 0

    @classmethod
    def of(cls, pauses: Sequence[Pause], steps: int, wall_ns: int) -> CollectorPauses:
        """Sum pauses in several steps."""
        lengths = [one.ns for one in pauses]
        oldest = [one.ns for one in pauses if one.generation == OLDEST]
        paused_ns, longest_ns = sum(lengths), max(lengths, default=0)
        return cls(steps, wall_ns, len(lengths), paused_ns, longest_ns, len(oldest), sum(oldest))

    @property
    def share(self) -> float | None:
        """Share of the time of these steps; None with fewer than three pauses."""
        return self.paused_ns / self.wall_ns if self.pauses >= MIN_PAUSES and self.wall_ns else None


class PauseMeter:
    """Records pauses of the garbage collector, in every thread: each one stops all threads.

    Attributes:
        pauses: recorded ones.
    """

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self._began_ns: int | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record pauses inside."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Begin to record."""
        gc.callbacks.append(self._on_pause)

    def stop(self) -> None:
        """End recording."""
        if self._on_pause in gc.callbacks:  # the program may have cleared the list
            gc.callbacks.remove(self._on_pause)

    def _on_pause(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif self._began_ns is not None:
            self.pauses.append(Pause(info["generation"], now_ns - self._began_ns))
            self._began_ns = None
