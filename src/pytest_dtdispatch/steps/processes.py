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

from pytest_dtdispatch.core.places import CodePlace, Phase
from pytest_dtdispatch.core.spans import Interval
from pytest_dtdispatch.measuring.capture import watching_processes
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.happened import Asked, Collective, Miss, Redistribution, Wrapping
from pytest_dtdispatch.steps.model import StepCounts


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


_LISTED: dict[str, type] = {
    "missed": Miss,
    "redistributions": Redistribution,
    "collective_runs": Collective,
    "wraps": Wrapping,
    "unwraps": Wrapping,
}


def _counts(text: str) -> StepCounts:
    content = json.loads(text)
    pairs = {name: tuple(map(tuple, content[name])) for name in ("collectives", "cache_growth")}
    listed = {name: tuple(_read(kind, one) for one in content[name]) for name, kind in _LISTED.items()}
    return StepCounts(**{**content, **pairs, **listed, "when": Interval(*content["when"])})


def _read(kind: type, fields: dict[str, Any]) -> Any:
    """Make one of what happened anew, of what its fields are in JSON."""
    read: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    if "asked" in read:
        read["asked"] = Asked(read["asked"])
    if place := read["place"]:
        read["place"] = CodePlace(**{**place, "phase": Phase(place["phase"])})
    if when := read["when"]:
        read["when"] = Interval(*when)
    return kind(**read)
