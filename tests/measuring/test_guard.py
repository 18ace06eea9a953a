"""One measurement at a time in a process: who is refused, and what is no longer in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.measuring.guard import (
    Measuring,
    call_arguments,
    check_callable,
    check_count,
    check_steps,
    refuse_elsewhere,
)


def in_thread(body: Callable[[], object], name: str = "worker") -> list[BaseException]:
    """Run in a thread to its end, which is named by this and a number; return what it raised."""
    with ThreadPoolExecutor(1, name) as pool:
        error = pool.submit(body).exception()
    return [error] if error else []


def measure(what: str = "a capture is open") -> None:
    with Measuring(what):
        refuse_elsewhere()


def test_others_of_the_same_thread_are_allowed_inside_and_leave_the_outer_one_open() -> None:
    with Measuring("the call 'f' is measured"):
        measure()
        [error] = in_thread(measure)
    assert "the call 'f' is measured in thread 'MainThread'" in str(error)
    assert in_thread(measure) == []


def test_what_is_held_is_taken_out_before_another_thread_is_let_in() -> None:
    refused: list[BaseException] = []

    @contextmanager
    def hook() -> Iterator[None]:
        yield
        refused.extend(in_thread(measure))

    with Measuring("a capture is open") as measuring:
        measuring.contexts.enter_context(hook())
    assert len(refused) == 1
    assert in_thread(measure) == []


def test_a_tuple_of_setup_replaces_the_arguments() -> None:
    setups: list[Any] = [None, lambda: None, lambda: (), lambda: (3,)]
    assert [call_arguments((1, 2), setup) for setup in setups] == [(1, 2), (1, 2), (), (3,)]


def test_a_step_whose_arguments_are_optional_is_taken() -> None:
    check_steps(lambda scale=2, *more, **options: None, 0, 1)
    check_steps(dict, 0, 1)


def step(batch: Any, *, lr: float, verbose: bool = False) -> None:
    """Take arguments, two of which must be given: all are named."""


NO_COUNT = r"steps\(\): {}=.* is not a whole number of at .* {}"
CHECKS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    *((check_count, ("steps", value, 1), NO_COUNT.format("steps", 1)) for value in (0, 1.5, "5", True, None)),
    *((check_count, ("warmup", value, 0), NO_COUNT.format("warmup", 0)) for value in (-1, 0.5)),
    (check_steps, (step, 3, 5), r"the step takes arguments \(batch, lr, verbose\), and steps\(\) gives none"),
    (check_steps, (None, 3, 5), r"steps\(\): a value of type NoneType is not callable; give a"),
    (check_callable, ("call", len, 123), r"call\(name=123\): a name is a text$"),
    (call_arguments, ((), lambda: 5), "setup returned 5: it must return a tuple of arguments, or"),
]


@pytest.mark.parametrize(("check", "values", "message"), CHECKS)
def test_a_mistake_is_refused_in_a_line_that_says_what_is_valid(
    check: Callable[..., Any], values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(CaptureError, match=f"^{message}"):
        check(*values)
