"""Errors of repetitions are notes, those from elsewhere reach the program; warnings are ignored."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.measuring.calls import run_and_measure_call
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeating import is_from_elsewhere, nothing_warned
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = pytest.mark.torch


class StoppedError(Exception):
    """What one thread makes another raise, to stop it."""


def measure(fn: Callable[[], Any]) -> Figures:
    return run_and_measure_call(fn, (), None, ShardingCaches(), Plan(2, 3))[2]


def at_call(number: int, do: Callable[[], None]) -> tuple[Callable[[], None], torch.Tensor]:
    """Make a callable that adds to a tensor, and does something else at one of its calls."""
    calls, total = [0], torch.zeros(2)

    def fn() -> None:
        calls[0] += 1
        total.add_(1)
        if calls[0] == number:
            do()

    return fn, total


def test_what_another_thread_makes_this_one_raise_is_raised() -> None:
    def stop() -> None:
        this = ctypes.c_ulong(threading.get_ident())
        ctypes.pythonapi.PyThreadState_SetAsyncExc(this, ctypes.py_object(StoppedError))

    fn, total = at_call(5, stop)
    with pytest.raises(StoppedError):
        measure(fn)
    assert total.tolist() == [1, 1]


def test_an_error_of_a_repetition_is_a_note() -> None:
    def fail() -> None:
        raise ValueError("no more of this")

    fn, total = at_call(5, fail)
    assert measure(fn).notes == ("repeating it raised ValueError: no more of this",)
    assert total.tolist() == [1, 1]


def test_an_error_that_says_nothing_and_comes_again_is_of_the_repetition() -> None:
    def fail() -> None:
        raise AssertionError

    assert not is_from_elsewhere(AssertionError(), fail)
    assert is_from_elsewhere(AssertionError(), lambda: None)
    assert not is_from_elsewhere(ValueError("it says something"), lambda: None)


def warn() -> None:
    warnings.warn("seen once", UserWarning, stacklevel=1)


def records() -> dict[Any, Any]:
    found: dict[Any, Any] = globals().get("__warningregistry__", {})
    return {key: value for key, value in found.items() if key != "version"}


def test_nothing_is_shown_and_a_warning_shown_before_is_not_shown_again() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warn()
        before = records()
        with nothing_warned():
            warn()
            with warnings.catch_warnings():  # leaving it makes Python forget what it has shown
                warnings.simplefilter("ignore")
        assert records() == before != {}
        warn()
        assert len(shown) == 1


def test_a_warning_that_was_not_shown_before_is_shown_after() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with nothing_warned():
            warnings.warn("for the first time", UserWarning, stacklevel=1)
        for _ in range(2):
            warnings.warn("for the first time", UserWarning, stacklevel=1)
        assert [str(each.message) for each in shown] == ["for the first time"]


def test_filters_that_make_errors_of_warnings_make_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with nothing_warned():
            warn()
        assert list(warnings.filters) == before


def test_another_thread_warns_as_ever() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with nothing_warned():
            other = threading.Thread(target=warn)
            other.start()
            other.join()
            warn()
        assert len(shown) == 1
