"""The calls that are asked of a step: alike, or one for each input of a stream. Without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from pytest_dtdispatch.core.callables import step_name
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.steps.model import Steps
from pytest_dtdispatch.steps.stream import Stream

WARMUP, STEPS = 3, 5


@dataclass(frozen=True)
class StepCalls:
    """What a step is called with, and how often.

    Args:
        name: of the step.
        step: is called.
        warmup: calls that run first, and do not count.
        steps: calls after them; without a meaning where there are inputs.
        inputs: one for each call; None where the step takes no argument.
    """

    name: str
    step: Callable[..., object]
    warmup: int
    steps: int
    inputs: Iterable[Any] | None = None

    def given(self) -> Iterator[Any]:
        """Give each input; refuse those of which none would be counted."""
        __tracebackhide__ = True
        number = 0
        for given in self.inputs or ():
            number += 1
            yield given
        _check_number(number, self.warmup)

    def run_once(self) -> Steps:
        """Call the step where nothing is measured: once, or once with each input."""
        __tracebackhide__ = True
        if self.inputs is None:
            self.step()
            return Steps(self.name, (), ())
        for given in self.given():
            self.step(given)
        return Steps(self.name, (), (), Stream())


def read_calls(
    step: Callable[..., object],
    warmup: int | None,
    steps: int | None,
    inputs: Iterable[Any] | None,
    name: str | None,
) -> StepCalls:
    """Read what ``steps()`` was given, and refuse what cannot be counted."""
    __tracebackhide__ = True
    from pytest_dtdispatch.measuring.preconditions import check_callable, check_count, check_steps

    if inputs is None:
        warmup, steps = WARMUP if warmup is None else warmup, STEPS if steps is None else steps
        check_steps(step, warmup, steps, name)
        return StepCalls(name or step_name(step), step, warmup, steps)
    check_callable("steps", step, name)
    if steps is not None:
        raise CaptureError(f"steps(): steps={shown(steps)} with inputs: each input is a step, leave it out")
    warmup = 0 if warmup is None else warmup
    check_count("warmup", warmup, 0)
    if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
        raise CaptureError(f"steps(): inputs={shown(inputs)} cannot be iterated over: give a list of inputs")
    if isinstance(inputs, Sized):
        _check_number(len(inputs), warmup)
    _check_takes_one(step)
    return StepCalls(name or step_name(step), step, warmup, 0, inputs)


def _check_number(number: int, warmup: int) -> None:
    __tracebackhide__ = True
    if number <= warmup:
        rest = f"warmup={warmup} leaves none of them to count" if number else "give one at least"
        raise CaptureError(f"steps(): inputs has {number or 'no'} item{'s' * (number != 1)}: {rest}")


def _check_takes_one(step: Callable[..., object]) -> None:
    __tracebackhide__ = True
    try:
        signature = inspect.signature(step)
    except ValueError:  # a function of C that does not tell
        return
    try:
        signature.bind(None)
    except TypeError:
        raise CaptureError(
            f"steps(): the step takes {_shown_parameters(signature)}, and is called with one of the inputs: "
            "wrap it, as in dtdispatch.steps(lambda pair: step(*pair), inputs=pairs)"
        ) from None


def _shown_parameters(signature: inspect.Signature) -> str:
    names = ", ".join(signature.parameters)
    return f"arguments ({names})" if names else "no argument"
