"""Checks of arguments: valid values, and errors for others."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.checks import (
    call_arguments,
    callable_at,
    check_callable,
    check_count,
    check_result,
    check_steps,
)
from pytest_dtdispatch.errors import MeasurementError


def test_tuple_from_setup_replaces_the_arguments() -> None:
    setups: list[Any] = [None, lambda: None, lambda: (), lambda: (3,)]
    assert [call_arguments((1, 2), setup) for setup in setups] == [(1, 2), (1, 2), (), (3,)]


def test_step_with_optional_arguments_is_valid() -> None:
    check_steps(lambda scale=2, *more, **options: None, 0, 1)
    check_steps(dict, 0, 1)


def step(batch: Any, *, lr: float, verbose: bool = False) -> None:
    """Two arguments are required; the error lists all."""


async def waits() -> None:
    """Do nothing."""


def yields() -> Iterator[int]:
    """Yield a number."""
    yield 1


NO_COUNT = r"steps\(\): {}=.* is not a whole number of at .* {}"
CHECKS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    *((check_count, ("steps", value, 1), NO_COUNT.format("steps", 1)) for value in (0, 1.5, "5", True, None)),
    *((check_count, ("warmup", value, 0), NO_COUNT.format("warmup", 0)) for value in (-1, 0.5)),
    (
        check_steps,
        (step, 3, 5),
        r"the step takes arguments \(batch, lr, verbose\), and steps\(\) passes none",
    ),
    (check_steps, (None, 3, 5), r"steps\(\): a value of type NoneType is not callable: pass a"),
    (check_callable, ("call", len, 123), r"call\(name=123\): the name must be a string$"),
    (
        check_steps,
        (yields, 3, 5),
        r"steps\(\): a call of a generator function runs none of its code: pass lambda",
    ),
    (callable_at, (lambda size: yields, 8), r"scaling\(\): a call of a generator function runs none"),
    (check_callable, ("call", partial(waits), None), r"call\(\): a call only creates a coroutine"),
    (call_arguments, ((), lambda: 5), "setup returned 5: it must return a tuple of arguments, or"),
]


@pytest.mark.parametrize(("check", "values", "message"), CHECKS)
def test_invalid_argument_is_an_error_with_valid_values(
    check: Callable[..., Any], values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(MeasurementError, match=f"^{message}"):
        check(*values)


def test_coroutine_result_is_an_error() -> None:
    check_result("steps", None)
    with pytest.raises(MeasurementError, match=r"^steps\(\): a call only creates a coroutine"):
        check_result("steps", waits())


def test_unstarted_generator_result_is_an_error() -> None:
    started = yields()
    next(started)
    check_result("steps", started)
    with pytest.raises(MeasurementError, match=r"^steps\(\): the result is a generator, whose code"):
        check_result("steps", yields())


class Squares:
    """An iterator of a program."""

    def __iter__(self) -> Squares:
        return self

    def __next__(self) -> int:
        raise StopIteration


class Batches:
    """An asynchronous iterator of a program, which can also be awaited."""

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> int:
        raise StopAsyncIteration


class Later:
    """An awaitable that has not run."""

    def __await__(self) -> Iterator[int]:
        yield 1


async def async_yields() -> AsyncIterator[int]:
    yield 1


LAZY: list[Callable[[], object]] = [
    yields,
    async_yields,
    waits,
    Squares,
    Batches,
    Later,
    lambda: map(str, [1]),
    lambda: filter(None, [1]),
    lambda: zip([1], [2], strict=True),
    lambda: enumerate([1]),
    lambda: iter(int, 1),
    lambda: reversed(bytearray(2)),
    lambda: itertools.islice([1], 1),
    lambda: itertools.chain([1]),
    lambda: itertools.starmap(pow, [(1, 2)]),
    lambda: itertools.accumulate([1]),
    lambda: itertools.tee([1]),
    lambda: {"rows": map(str, [1])},
    lambda: (1, (n for n in [1])),
]
NOT_LAZY: list[Callable[[], object]] = [
    lambda: [1],
    lambda: {"a": 1}.items(),
    lambda: iter([1]),
    lambda: iter({}),
    lambda: iter("text"),
    lambda: reversed([1]),
    lambda: range(3),
    lambda: io.StringIO("text"),
    mock.MagicMock,
    lambda: {"state": csv.reader([])},
    int,
]


@pytest.mark.parametrize("make", LAZY)
@pytest.mark.parametrize(
    "measure",
    [
        lambda dtdispatch, fn: dtdispatch.call(fn, name="lazy"),
        lambda dtdispatch, fn: dtdispatch.steps(fn),
        lambda dtdispatch, fn: dtdispatch.steps(lambda number: fn(), inputs=[1]),
        lambda dtdispatch, fn: dtdispatch.budget(fn),
        lambda dtdispatch, fn: dtdispatch.scaling(lambda size: fn, sizes=(1, 2), name="lazy"),
        lambda dtdispatch, fn: dtdispatch.compile(fn, name="lazy"),
    ],
)
def test_lazy_result_is_an_error(
    make: Callable[[], object], measure: Callable[[DtDispatch, Callable[[], object]], object]
) -> None:
    with pytest.raises(MeasurementError, match="code"):
        measure(DtDispatch(), lambda: make())


@pytest.mark.parametrize("make", NOT_LAZY)
def test_existing_values_are_valid_results(make: Callable[[], object]) -> None:
    check_result("steps", make())


def test_finished_future_is_a_valid_result() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    with pytest.raises(MeasurementError):
        check_result("steps", future)
    future.set_result(1)
    check_result("steps", future)
    loop.close()
