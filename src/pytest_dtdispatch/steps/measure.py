"""Run a step several times, and count each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import place_text, shorten
from pytest_dtdispatch.measuring.call import OpCall, UnnoticedMode, has_dtensor, shape_text, tensor_text
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import StepCalls, StepCounts, Steps
from pytest_dtdispatch.torchapi.profiling import Timed
from pytest_dtdispatch.torchapi.tensors import mesh_among, tensor_traits, wait_for

WARMUP = " (warm-up)"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class CallNotes(UnnoticedMode):
    """Note every DTensor op, so that it is known what later misses have that these calls had not."""

    def __init__(self, counter: StepCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        self._counter.note_place()
        result = call.run()
        if has_dtensor(call.leaves()):
            self._counter.note_call(func, args, call.kwargs)
        return result


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
            with Timed("step", partial(_numbered, number, calls.name, WARMUP * is_warm)):
                with CallNotes(counter) if is_warm else nullcontext():
                    result = calls.step(*arguments)
                wait_for(result)
            del result  # it is not left alive
            counted.append(counter.lap())
    return Steps(calls.name, tuple(counted[: calls.warmup]), tuple(counted[calls.warmup :]), tuple(shapes))


def shape_of(given: Any) -> str:
    """Write the dtypes, shapes and placements of the tensors in an input; of what holds none, its repr."""
    return shorten(_text(given))


def _text(given: Any) -> str:
    if (tensor := tensor_traits(given)) is not None:
        mesh = mesh_among([given])
        place = "" if mesh is None else f"@{place_text(mesh.shape, mesh.device_type)}"
        return f"{tensor_text(tensor)}{place}"
    if isinstance(given, Mapping):
        return f"{{{', '.join(f'{key}: {_text(value)}' for key, value in given.items())}}}"
    if is_dataclass(given) and not isinstance(given, type):
        values = [f"{each.name}={_text(getattr(given, each.name, None))}" for each in fields(given)]
        return f"{type(given).__name__}({', '.join(values)})"
    if isinstance(given, (list, tuple)):
        return f"({', '.join(map(_text, given))})"
    if hasattr(given, "dtype") and hasattr(given, "shape"):  # an array of another library
        return f"{given.dtype}{shape_text(given.shape)}"
    return _own_text(given)


def _own_text(given: Any) -> str:
    try:
        text = repr(given)
    except Exception:  # it is the user's, and can raise anything
        text = f"<{type(given).__name__}>"
    return printable(" ".join(ADDRESS.sub("", text).split()))


class CountedRegion(StepCounter):
    """Count a region as one step, from the ``with`` to its end.

    Args:
        name: of the step.
        keep: is given the step, where the region ended without an exception.
    """

    def __init__(self, name: str, keep: Callable[[Steps], None]) -> None:
        super().__init__()
        self.name = name
        self._keep = keep

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        try:
            counts = self.lap()
        finally:
            super().__exit__(*exception)
        if exception[0] is None:
            self._keep(Steps(self.name, (), (counts,)))


def _numbered(number: int, name: str, among: str = "") -> str:
    return f"{number}{among}" if name == "step" else f"{number} of {name}{among}"
