"""Errors of repetitions are notes, those from elsewhere reach the program."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
import torch

from pytest_dtdispatch.measuring.repeat import is_from_elsewhere
from tests.measuring.runs import measured_call

pytestmark = pytest.mark.torch


class StoppedError(Exception):
    """What one thread makes another raise, to stop it."""


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
        measured_call(fn)
    assert total.tolist() == [1, 1]


def test_an_error_of_a_repetition_is_a_note() -> None:
    def fail() -> None:
        raise ValueError("no more of this")

    fn, total = at_call(5, fail)
    assert measured_call(fn)[1].notes == ("repeating it raised ValueError: no more of this",)
    assert total.tolist() == [1, 1]


def test_an_error_that_says_nothing_and_comes_again_is_of_the_repetition() -> None:
    def fail() -> None:
        raise AssertionError

    assert not is_from_elsewhere(AssertionError(), fail)
    assert is_from_elsewhere(AssertionError(), lambda: None)
    assert not is_from_elsewhere(ValueError("it says something"), lambda: None)
