"""One measurement at a time in a process: who is refused, and what is no longer in the way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.measuring.guard import (
    Measuring,
    check_callable,
    check_count,
    check_steps,
    given_arguments,
    refuse_elsewhere,
)


def in_thread(body: Callable[[], object], name: str = "worker") -> list[BaseException]:
    """Run in a thread to its end; return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    return raised


def measure(what: str = "a capture is open") -> None:
    with Measuring(what):
        refuse_elsewhere()


def test_a_second_thread_is_refused_by_the_name_of_the_first() -> None:
    with Measuring("a capture is open"):
        [error] = in_thread(measure)
        [checked] = in_thread(refuse_elsewhere)
    assert isinstance(error, CaptureError)
    assert str(error) == (
        "a capture is open in thread 'MainThread': two threads would measure each other, "
        "so let that one end first"
    )
    assert str(checked) == str(error)


def test_others_of_the_same_thread_are_allowed_inside_and_leave_the_outer_one_open() -> None:
    with Measuring("the call 'f' is measured"):
        measure()
        [error] = in_thread(measure)
    assert "the call 'f' is measured in thread 'MainThread'" in str(error)
    assert in_thread(measure) == []


def test_a_thread_that_died_keeps_nobody_away_and_what_it_held_is_taken_out() -> None:
    held = []

    @contextmanager
    def hook() -> Iterator[None]:
        held.append("in place")
        yield
        held.clear()

    def leave_open() -> None:
        measuring = Measuring("a capture is open")
        measuring.__enter__()
        measuring.held.enter_context(hook())

    assert in_thread(leave_open) == []
    assert held == ["in place"]
    measure()
    assert held == []


def test_what_is_held_is_taken_out_before_another_thread_is_let_in() -> None:
    refused: list[BaseException] = []

    @contextmanager
    def hook() -> Iterator[None]:
        yield
        refused.extend(in_thread(measure))

    with Measuring("a capture is open") as measuring:
        measuring.held.enter_context(hook())
    assert len(refused) == 1
    assert in_thread(measure) == []


def test_a_second_task_is_refused_by_both_names_and_works_once_the_first_is_done() -> None:
    async def measuring(pause: asyncio.Event) -> None:
        with Measuring("a capture is open"):
            await pause.wait()

    async def main() -> BaseException | None:
        pause = asyncio.Event()
        first = asyncio.create_task(measuring(pause), name="first")
        await asyncio.sleep(0)
        second = asyncio.create_task(measuring(pause), name="second")
        [refused] = await asyncio.gather(second, return_exceptions=True)
        pause.set()
        await first
        await asyncio.create_task(measuring(pause), name="third")
        return refused

    error = asyncio.run(main())
    assert isinstance(error, CaptureError)
    assert str(error) == (
        "a capture is open in asyncio task 'first', which would measure what task 'second' of the same "
        "thread does: let that one end first"
    )


def test_it_may_be_closed_by_another_task_than_opened_it() -> None:
    measuring = Measuring("a capture is open")

    async def enter() -> None:
        measuring.__enter__()

    async def leave() -> None:
        measuring.__exit__(None, None, None)

    asyncio.run(enter())
    asyncio.run(leave())
    assert in_thread(measure) == []


def test_neither_asyncio_nor_torch_is_imported_for_it() -> None:
    code = (
        "import sys; from pytest_dtdispatch.measuring.guard import Measuring\n"
        "with Measuring('a capture is open'): pass\n"
        "print(sorted({'asyncio', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("setup", "expected"),
    [(None, (1, 2)), (lambda: None, (1, 2)), (lambda: (), ()), (lambda: (3,), (3,))],
)
def test_a_tuple_of_setup_replaces_the_arguments(setup: Any, expected: tuple[int, ...]) -> None:
    assert given_arguments((1, 2), setup) == expected


def test_a_step_whose_arguments_are_optional_is_taken() -> None:
    check_steps(lambda scale=2, *more, **options: None, 0, 1)
    check_steps(dict, 0, 1)


def step(batch: Any, *, lr: float, verbose: bool = False) -> None:
    """Take arguments, two of which must be given."""


CHECKS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    *(
        (
            check_count,
            (name, value, least),
            rf"steps\(\): {name}=.* is not a whole number of at .* {least}",
        )
        for name, least, values in (("steps", 1, (0, 1.5, "5", True, None)), ("warmup", 0, (-1, 0.5)))
        for value in values
    ),
    (check_steps, (step, 3, 5), r"the step takes arguments \(batch, lr\), and steps\(\) gives none"),
    (check_steps, (None, 3, 5), r"steps\(\): a value of type NoneType is not callable; give a"),
    (check_callable, ("call", len, 123), r"call\(name=123\): a name is a text$"),
    (given_arguments, ((), lambda: 5), "setup returned 5: it must return a tuple of arguments, or"),
]


@pytest.mark.parametrize(("check", "values", "message"), CHECKS)
def test_a_mistake_is_refused_in_a_line_that_says_what_is_valid(
    check: Callable[..., Any], values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(CaptureError, match=f"^{message}"):
        check(*values)
