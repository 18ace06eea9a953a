"""What ``steps()`` may be given, and what it calls where nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.steps.step_calls import read_calls
from pytest_dtdispatch.steps.stream import Stream


def one(given: Any) -> None:
    del given


def two(left: Any, right: Any) -> None:
    del left, right


def test_numbers_of_steps_have_their_defaults() -> None:
    alike, stream = read_calls(dict, None, None, None, None), read_calls(one, None, None, [1], None)
    assert (alike.name, alike.warmup, alike.steps) == ("dict", 3, 5)
    assert (stream.name, stream.warmup) == ("one", 0)
    assert read_calls(lambda x: x, 1, None, [1, 2], None).name == "step"


@pytest.mark.parametrize(
    ("step", "given", "line"),
    [
        (one, {"inputs": []}, "steps(): inputs has no items: give one at least"),
        (
            one,
            {"inputs": [1, 2], "warmup": 2},
            "steps(): inputs has 2 items: warmup=2 leaves none of them to",
        ),
        (
            one,
            {"inputs": [1], "warmup": 1},
            "steps(): inputs has 1 item: warmup=1 leaves none of them to count",
        ),
        (one, {"inputs": 7}, "steps(): inputs=7 cannot be iterated over: give a list of inputs"),
        (
            one,
            {"inputs": [1], "steps": 5},
            "steps(): steps=5 with inputs: each input is a step, leave it out",
        ),
        (one, {"inputs": [1], "warmup": -1}, "steps(): warmup=-1 is not a whole number of at least 0"),
        (one, {"inputs": [1], "warmup": "2"}, "steps(): warmup='2' is not a whole number of at least 0"),
        (lambda: None, {"inputs": [1]}, "steps(): the step takes no argument, and is called with one of the"),
        (two, {"inputs": [1]}, "steps(): the step takes arguments (left, right), and is called with one of"),
        (7, {"inputs": [1]}, "steps(): a value of type int is not callable; give a function"),
    ],
)
def test_a_mistake_is_told_before_the_step_is_called(step: Any, given: dict[str, Any], line: str) -> None:
    with pytest.raises(CaptureError) as told:
        DtDispatch().steps(step, **given)
    assert str(told.value).startswith(line)
    assert "\n" not in str(told.value)


def test_a_generator_that_yields_too_little_is_refused_at_its_end() -> None:
    with pytest.raises(CaptureError, match="inputs has no items"):
        DtDispatch().steps(one, inputs=iter(()))
    with pytest.raises(CaptureError, match="inputs has 2 items: warmup=3 leaves none"):
        DtDispatch().steps(one, inputs=(n for n in range(2)), warmup=3)


def test_where_nothing_is_measured_the_step_runs_once_with_each_input() -> None:
    seen: list[Any] = []
    steps = DtDispatch().steps(seen.append, inputs=(n for n in (3, (1, 2), 3)), warmup=1)
    assert seen == [3, (1, 2), 3]
    assert steps.stream == Stream()
    assert steps.stream.steady_after == (0, 0)
    assert DtDispatch().steps(lambda: None).stream is None


class Items:
    """A sequence of the old kind, as a map-style dataset is."""

    def __getitem__(self, at: int) -> int:
        return [8, 16][at]


@pytest.mark.parametrize(
    "inputs", [range(2), {8: 1, 16: 2}, Items(), iter([8, 16])], ids=lambda x: type(x).__name__
)
def test_whatever_ends_may_give_inputs(inputs: Any) -> None:
    seen: list[int] = []
    DtDispatch().steps(seen.append, inputs=inputs)
    assert len(seen) == 2


def test_each_input_is_asked_for_when_its_step_is_due() -> None:
    log: list[str] = []

    def inputs() -> Iterator[int]:
        for n in range(2):
            log.append(f"made {n}")
            yield n

    DtDispatch().steps(lambda n: log.append(f"step {n}"), inputs=inputs())
    assert log == ["made 0", "step 0", "made 1", "step 1"]


def test_a_step_and_a_generator_that_raise_raise() -> None:
    def raising(given: int) -> None:
        if given == 2:
            raise KeyError("of the step")

    with pytest.raises(KeyError, match="of the step"):
        DtDispatch().steps(raising, inputs=range(9))
    with pytest.raises(ZeroDivisionError):
        DtDispatch().steps(one, inputs=(1 // n for n in (1, 0)))
