"""Run a step several times, and count each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode, has_dtensor
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import StepCounts, Steps
from pytest_dtdispatch.torchapi.tensors import wait_for


class CallNotes(UnnoticedMode):
    """Note every DTensor op, so that it is known what later misses have that these calls had not."""

    def __init__(self, counter: StepCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        result = call.run()
        if has_dtensor(call.leaves()):
            self._counter.note_call(func, args, call.kwargs)
        return result


def run_and_count_steps(step: Callable[[], object], warmup: int, steps: int, name: str) -> Steps:
    """Run a step, first to warm up, then as often as it is counted."""
    __tracebackhide__ = True
    with StepCounter() as counter:
        warm, counted = [], []  # no comprehensions: their frames would stand in a failing step's traceback
        for _ in range(warmup):
            with CallNotes(counter):
                result = step()
            wait_for(result)
            del result  # it is not left alive
            warm.append(counter.lap())
        for _ in range(steps):
            wait_for(step())
            counted.append(counter.lap())
    return Steps(name, tuple(warm), tuple(counted))


class CountedRegion(StepCounter):
    """Count a region as one step, from the ``with`` to its end."""

    def __init__(self, enter: Callable[[StepCounts], None]) -> None:
        super().__init__()
        self._enter = enter

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        try:
            counts = self.lap()
        finally:
            super().__exit__(*exception)
        if exception[0] is None:
            self._enter(counts)
