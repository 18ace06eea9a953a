"""Warnings are ignored for a while, in one thread, and Python's records of them stay as they were."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from pytest_dtdispatch.measuring.quiet import nothing_warned


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
