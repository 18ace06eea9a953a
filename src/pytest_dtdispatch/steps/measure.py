"""Counting of repeated steps, and of steps in spawned processes."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pytest_dtdispatch.core.checks import check_result
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.signatures import mesh_device_text, shorten
from pytest_dtdispatch.core.text import ask, shown
from pytest_dtdispatch.replay.modes import UnnoticedMode
from pytest_dtdispatch.steps.counter import CallNotes, NoteTrail, StepCounter
from pytest_dtdispatch.steps.model import StepCalls, StepCounts, Steps
from pytest_dtdispatch.torchapi.ops import hidden_from_constructors
from pytest_dtdispatch.torchapi.patches import around_start
from pytest_dtdispatch.torchapi.profiling import ProfilerRange
from pytest_dtdispatch.torchapi.signatures import shape_text, tensor_text
from pytest_dtdispatch.torchapi.tensors import mesh_among, tensor_traits, wait_for


def run_and_count(calls: StepCalls, note: NoteTrail | None = None) -> Steps:
    """Run the calls of a step, and count each; note what ran, even if a call raises."""
    __tracebackhide__ = True
    with StepCounter(run_and_count, note) as counter, ExitStack() as warming:
        warming.enter_context(hidden_from_constructors(UnnoticedMode))
        counted: list[StepCounts] = []
        shapes: list[str] = []
        for arguments in calls.arguments():
            if calls.inputs is not None:
                shapes.append(shape_of(*arguments))
                counter.lap()  # creating the input is not part of the step
            is_warm = len(counted) < calls.warmup
            if not is_warm:
                warming.close()  # counted steps run without a mode
            number = len(counted) + 1 - (0 if is_warm else calls.warmup)
            title = f"{number}" if calls.name == "step" else f"{number} of {calls.name}"
            with ProfilerRange("step", str, f"{title} (warm-up)" if is_warm else title):
                is_last = number == calls.warmup
                with CallNotes(counter, records_flow=is_last) if is_warm else nullcontext():
                    result = calls.step(*arguments)
                check_result("steps", result)
                wait_for(result)
            del result  # or it counts as growth
            counted.append(counter.lap())
    return Steps(calls.name, tuple(counted[: calls.warmup]), tuple(counted[calls.warmup :]), tuple(shapes))


def shape_of(value: Any) -> str:
    """Format dtypes, shapes and placements of the tensors in an input, and other values by their repr."""
    return shorten(ask(_text, value, f"<{type(value).__name__} that cannot be shown>"))


def _text(value: Any) -> str:
    tensor = tensor_traits(value)
    if tensor is not None:
        mesh = mesh_among([value])
        at = "" if mesh is None else f"@{mesh_device_text(mesh.shape, mesh.device_type)}"
        return f"{tensor_text(tensor)}{at}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_text(each)}' for key, each in value.items())}}}"
    if is_dataclass(value) and not isinstance(value, type):
        values = [f"{each.name}={_text(getattr(value, each.name, None))}" for each in fields(value)]
        return f"{type(value).__name__}({', '.join(values)})"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # an array of another library
        return f"{value.dtype}{shape_text(value.shape)}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shown(value))  # equal objects have different addresses


def run_counted(target: Callable[..., object], path: Path, *args: Any, **kwargs: Any) -> None:
    """Run the target of a process as one counted step, and write its counts, even if it raises."""
    with StepCounter() as counter:
        try:
            target(*args, **kwargs)
        finally:
            path.write_text(json.dumps(encode(counter.lap())), encoding="utf-8")


class ProcessCounts:
    """Counts of spawned processes that have ended.

    A process that was forked or killed leaves no counts.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.started = 0

    def start(self, start: Callable[[Any], Any], process: Any) -> Any:
        """Start a process with a target that counts."""
        self.started += 1
        target = getattr(process, "_target", None)
        if target is None or not isinstance(process, SpawnProcess):
            return start(process)
        counted = partial(run_counted, target, self._folder / str(self.started))
        with patch.object(process, "_target", counted):
            return start(process)

    def found(self) -> Iterator[tuple[int, StepCounts]]:
        """Yield the number and the counts of each process that wrote counts."""
        for number in range(1, self.started + 1):
            with suppress(OSError, ValueError):  # the process was killed before or during writing
                text = (self._folder / str(number)).read_text(encoding="utf-8")
                yield number, decode(StepCounts, json.loads(text))


@contextmanager
def counting_in_processes() -> Iterator[ProcessCounts]:
    """Count in all processes that the program spawns."""
    with tempfile.TemporaryDirectory(prefix="dtdispatch-processes-") as folder:
        counts = ProcessCounts(folder)
        with around_start(counts.start):
            yield counts
