"""Run a step several times, and count each time; and count what processes do that a program starts anew."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.signatures import place_text, shorten
from pytest_dtdispatch.core.text import ask, shown
from pytest_dtdispatch.replay.call import shape_text, tensor_text
from pytest_dtdispatch.replay.capture import watching_processes
from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.steps.model import StepCalls, StepCounts, Steps
from pytest_dtdispatch.torchapi.profiling import ProfilerRange
from pytest_dtdispatch.torchapi.tensors import mesh_among, tensor_traits, wait_for

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def run_and_count(calls: StepCalls) -> Steps:
    """Run a step as its calls say, first to warm up, and count each call."""
    __tracebackhide__ = True
    with StepCounter(run_and_count) as counter:
        counted: list[StepCounts] = []
        shapes: list[str] = []
        for arguments in calls.arguments():
            if calls.inputs is not None:
                shapes.append(shape_of(*arguments))
                counter.lap()  # what making the input took is no part of the step
            is_warm = len(counted) < calls.warmup
            number = len(counted) + 1 - (0 if is_warm else calls.warmup)
            with ProfilerRange("step", partial(_step_title, number, calls.name, is_warm)):
                with CallNotes(counter) if is_warm else nullcontext():
                    result = calls.step(*arguments)
                wait_for(result)
            del result  # it is not left alive
            counted.append(counter.lap())
    return Steps(calls.name, tuple(counted[: calls.warmup]), tuple(counted[calls.warmup :]), tuple(shapes))


def shape_of(value: Any) -> str:
    """Format the dtypes, shapes and placements of the tensors in an input; of what holds none, its repr."""
    return shorten(ask(_text, value, f"<{type(value).__name__} that cannot be shown>"))


def _text(value: Any) -> str:
    if (tensor := tensor_traits(value)) is not None:
        mesh = mesh_among([value])
        place = "" if mesh is None else f"@{place_text(mesh.shape, mesh.device_type)}"
        return f"{tensor_text(tensor)}{place}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_text(each)}' for key, each in value.items())}}}"
    if is_dataclass(value) and not isinstance(value, type):
        values = [f"{each.name}={_text(getattr(value, each.name, None))}" for each in fields(value)]
        return f"{type(value).__name__}({', '.join(values)})"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # an array of another library
        return f"{value.dtype}{shape_text(value.shape)}"
    return ADDRESS.sub("", shown(value))


def _step_title(number: int, name: str, is_warm: bool) -> str:
    return f"{number}{'' if name == 'step' else f' of {name}'}{' (warm-up)' * is_warm}"


def run_counted(target: Callable[..., object], path: Path, *args: Any, **kwargs: Any) -> None:
    """Run what a process runs, counted as one step; the counts of what ends early are those up to there."""
    with StepCounter() as counter:
        try:
            target(*args, **kwargs)
        finally:
            path.write_text(json.dumps(encode(counter.lap())), encoding="utf-8")


class ProcessCounts:
    """Counts of processes: those that were started so far, and what those of them found that have ended.

    A process that was forked, or that was killed, leaves no counts.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.started = 0

    def start(self, start: Callable[[Any], Any], process: Any) -> Any:
        """Start a process that counts."""
        self.started += 1
        target = getattr(process, "_target", None)
        if target is None or not isinstance(process, SpawnProcess):
            return start(process)
        counted = partial(run_counted, target, self._folder / str(self.started))
        with patch.object(process, "_target", counted):
            return start(process)

    def found(self) -> Iterator[tuple[int, StepCounts]]:
        """Yield the number of each process that left counts, and what it counted."""
        for number in range(1, self.started + 1):
            with suppress(OSError, ValueError):  # it was killed, before it wrote or as it did
                text = (self._folder / str(number)).read_text(encoding="utf-8")
                yield number, decode(StepCounts, json.loads(text))


@contextmanager
def counting_in_processes() -> Iterator[ProcessCounts]:
    """Count in every process that the program starts."""
    with tempfile.TemporaryDirectory(prefix="dtdispatch-processes-") as folder:
        counts = ProcessCounts(folder)
        with watching_processes(counts.start):
            yield counts
