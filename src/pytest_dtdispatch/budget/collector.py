"""Pauses of Python's garbage collector while steps run. Does not import torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

OLDEST = len(gc.get_threshold()) - 1  # number of the oldest generation


class Pause(NamedTuple):
    """Pause during one collection.

    Args:
        generation: oldest collected generation; younger ones are collected with it.
        ns: length of the pause in nanoseconds.
    """

    generation: int
    ns: int


@dataclass(frozen=True)
class CollectorPauses:
    """Pauses of the garbage collector in several steps.

    Args:
        steps: number of steps.
        wall_ns: wall time of these steps.
        pauses: number of pauses; each is one collection.
        paused_ns: sum of all pauses.
        longest_ns: longest pause.
        oldest: number of collections of the oldest generation.
        oldest_ns: sum of the pauses of these.

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
        """Summarize the pauses in several steps."""
        lengths = [pause.ns for pause in pauses]
        oldest = [pause.ns for pause in pauses if pause.generation == OLDEST]
        paused_ns, longest_ns = sum(lengths), max(lengths, default=0)
        return cls(steps, wall_ns, len(lengths), paused_ns, longest_ns, len(oldest), sum(oldest))

    @property
    def share(self) -> float | None:
        """Pauses as a share of wall time; None with fewer than three pauses, or if the wall time is 0."""
        is_chance = self.pauses < 3
        return None if is_chance or not self.wall_ns else self.paused_ns / self.wall_ns


class PauseMeter:
    """Records pauses of the garbage collector within its context.

    It records those in all threads, because each pause stops every thread.

    Attributes:
        pauses: recorded pauses.
    """

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self._began_ns: int | None = None

    def __enter__(self) -> None:
        gc.callbacks.append(self._on_pause)

    def __exit__(self, *exception: Any) -> None:
        if self._on_pause in gc.callbacks:  # the program may have cleared the list
            gc.callbacks.remove(self._on_pause)

    def _on_pause(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif self._began_ns is not None:
            self.pauses.append(Pause(info["generation"], now_ns - self._began_ns))
            self._began_ns = None
