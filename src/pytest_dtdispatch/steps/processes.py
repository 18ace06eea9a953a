"""Count what processes do that a program starts anew: each writes what it counted as it ends."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from pytest_dtdispatch.measuring.unseen import watching_processes
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import Asked, Miss, Redistribution, StepCounts


class CountedTarget:
    """What a process runs, counted as one step."""

    def __init__(self, target: Callable[..., object], path: str) -> None:
        self._target = target
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run it; the counts of what ends early are those up to there."""
        with StepCounter() as counter:
            try:
                self._target(*args, **kwargs)
            finally:
                Path(self._path).write_text(json.dumps(asdict(counter.lap())), encoding="utf-8")


class ProcessCounts:
    """Counts of processes: those that were started so far, and what those of them found that have ended.

    A process that was forked, or that was killed, tells nothing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.started = 0

    def start(self, process: Any, start: Callable[[Any], Any]) -> Any:
        """Start a process that counts."""
        self.started += 1
        target = getattr(process, "_target", None)
        if target is None or not isinstance(process, SpawnProcess):
            return start(process)
        setattr(process, "_target", CountedTarget(target, str(self._folder / str(self.started))))  # noqa: B010
        try:
            return start(process)
        finally:
            setattr(process, "_target", target)  # noqa: B010

    def found(self) -> Iterator[tuple[int, StepCounts]]:
        """Give the number of each process that told something, and what it counted."""
        for number in range(1, self.started + 1):
            with suppress(OSError, ValueError):  # it was killed, before it wrote or as it did
                yield number, _counts((self._folder / str(number)).read_text(encoding="utf-8"))


@contextmanager
def counting_in_processes() -> Iterator[ProcessCounts]:
    """Count in every process that the program starts."""
    with tempfile.TemporaryDirectory(prefix="dtdispatch-processes-") as folder:
        counts = ProcessCounts(folder)
        with watching_processes(counts.start):
            yield counts


def _counts(text: str) -> StepCounts:
    content = json.loads(text)
    missed = tuple(Miss(**{**miss, "asked": Asked(miss["asked"])}) for miss in content["missed"])
    moved = tuple(
        Redistribution(**{**one, "source": tuple(one["source"]), "target": tuple(one["target"])})
        for one in content["redistributions"]
    )
    pairs = {name: tuple(map(tuple, content[name])) for name in ("collectives", "cache_growth")}
    return StepCounts(**{**content, **pairs, "missed": missed, "redistributions": moved})
