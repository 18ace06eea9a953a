"""Tensor subclasses are created in measured code as in unmeasured code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_dtdispatch import TimeCaptureMode
from tests.measured_runs import NamingMode, Step, budgeted, called, captured, counted, watched

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SOURCE = torch.arange(4.0)


class Inheriting(torch.Tensor):
    pass


class Creating(torch.Tensor):
    @staticmethod
    def __new__(cls: Any, source: Any) -> Any:
        return super().__new__(cls, source)


class Marked(torch.nn.Parameter):
    pass


def created_in_a_step() -> Any:
    return type("Local", (torch.Tensor,), {})(SOURCE)


CREATORS: dict[str, Step] = {
    "super": lambda: Creating(SOURCE),
    "no constructor": lambda: Inheriting(SOURCE),
    "numbers": lambda: Inheriting([1.0, 2.0]),
    "of a subclass": lambda: Creating(Inheriting(SOURCE)),
    "class of the step": created_in_a_step,
    "tensor": lambda: torch.Tensor(SOURCE),
    "as_subclass": lambda: SOURCE.as_subclass(Inheriting),
    "_make_subclass": lambda: torch.Tensor._make_subclass(Inheriting, SOURCE),
    "parameter": lambda: Marked(SOURCE),
}


def timed(step: Step) -> None:
    with TimeCaptureMode():
        step()


LONG = [pytest.param(measure, marks=pytest.mark.long) for measure in (budgeted, called, watched, timed)]


@pytest.mark.parametrize("measure", [counted, captured, *LONG])
def test_subclasses_are_created(measure: Callable[[Step], object]) -> None:
    results: list[tuple[str, ...]] = []

    def step() -> None:
        tensors = [create() for create in CREATORS.values()]
        results.append(tuple(f"{type(each).__name__} {(each + 1).tolist()}" for each in tensors))

    step()
    measure(step)
    assert len(results) > 1
    assert len({*results}) == 1
    assert "__new__" not in vars(torch.Tensor)


def test_mode_of_the_program_rejects_a_subclass() -> None:
    def outcome() -> str:
        with NamingMode(), pytest.raises(RuntimeError) as raised:
            Creating(SOURCE)
        return str(raised.value)

    results = [outcome()]
    captured(lambda: results.append(outcome()))
    assert len({*results}) == 1
