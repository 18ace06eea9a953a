"""Run a step several times, and count each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode, has_dtensor
from pytest_dtdispatch.measuring.timed import Timed
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.input_shapes import shape_of
from pytest_dtdispatch.steps.model import StepCounts, Steps
from pytest_dtdispatch.steps.step_calls import StepCalls
from pytest_dtdispatch.steps.stream import stream_of
from pytest_dtdispatch.torchapi.tensors import wait_for

WARMUP = " (warm-up)"


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


def run_and_count_steps(step: Callable[[], object], warmup: int, steps: int, name: str) -> Steps:
    """Run a step, first to warm up, then as often as it is counted."""
    __tracebackhide__ = True
    with StepCounter(run_and_count_steps) as counter:
        warm, counted = [], []  # no comprehensions: their frames would stand in a failing step's traceback
        for number in range(1, warmup + 1):
            with CallNotes(counter), Timed("step", partial(_numbered, number, name, WARMUP)):
                result = step()
            wait_for(result)
            del result  # it is not left alive
            warm.append(counter.lap())
        for number in range(1, steps + 1):
            with Timed("step", partial(_numbered, number, name)):
                wait_for(step())
            counted.append(counter.lap())
    return Steps(name, tuple(warm), tuple(counted))


def run_and_count_stream(calls: StepCalls) -> Steps:
    """Run a step once with each of its inputs, first to warm up, then counted and timed."""
    __tracebackhide__ = True
    with StepCounter() as counter:
        warm: list[StepCounts] = []
        counted: list[StepCounts] = []
        shapes, took_ns = [], []
        for given in calls.given():
            shapes.append(shape_of(given))
            counter.lap()  # what making the input took is no part of the step
            if len(warm) < calls.warmup:
                with CallNotes(counter), Timed("step", partial(_numbered, len(warm) + 1, calls.name, WARMUP)):
                    result = calls.step(given)
                wait_for(result)
                del result
                warm.append(counter.lap())
                continue
            began = time.perf_counter_ns()
            with Timed("step", partial(_numbered, len(counted) + 1, calls.name)):
                result = calls.step(given)
            took_ns.append(time.perf_counter_ns() - began)
            wait_for(result)
            del result
            counted.append(counter.lap())
    stream = stream_of(shapes, warm, counted, took_ns)
    return Steps(calls.name, tuple(warm), tuple(counted), stream)


def run_and_count(calls: StepCalls) -> Steps:
    """Run a step as its calls say, and count each."""
    __tracebackhide__ = True
    if calls.inputs is None:
        return run_and_count_steps(calls.step, calls.warmup, calls.steps, calls.name)
    return run_and_count_stream(calls)


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
