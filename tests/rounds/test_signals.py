"""Signals are blocked while state is restored, and delivered while the op runs; warnings are ignored."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from pytest_dtdispatch.rounds.signals import Signals, nothing_warned
from tests.threads import in_thread

NUMBER = signal.SIGUSR1


class LateError(Exception):
    pass


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """Install a signal handler that raises."""

    def raise_late(number: int, frame: FrameType | None) -> None:
        raise LateError("too late")

    before = signal.signal(NUMBER, raise_late)
    yield raise_late
    signal.signal(NUMBER, before)


def test_signal_waits_until_unblocked() -> None:
    handled: list[int] = []
    signal.signal(NUMBER, lambda number, frame: handled.append(number))
    with Signals() as signals:
        signal.raise_signal(NUMBER)
        assert handled == []
        signals.let_in()
        assert handled == [NUMBER]
        signal.raise_signal(NUMBER)
        assert handled == [NUMBER] * 2
        signals.is_open = False
        signal.raise_signal(NUMBER)
    assert handled == [NUMBER] * 3, "delivered at the end"


@pytest.mark.parametrize("is_swallowed", [True, False], ids=["swallowed", "another was made of it"])
def test_handler_error_is_raised_at_exit(handler: Any, is_swallowed: bool) -> None:
    went_on = []

    def swallow(signals: Signals) -> None:
        try:
            signals.let_in()
            signal.raise_signal(NUMBER)
        except LateError as error:
            went_on.append(True)
            if not is_swallowed:
                raise RuntimeError("propagation failed") from error
        finally:
            signals.is_open = False

    with pytest.raises(LateError, match="too late"), Signals() as signals:
        swallow(signals)
    assert went_on
    assert signal.getsignal(NUMBER) is handler


def test_signal_during_restore_leaves_original_handler(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = signal.signal
    came: list[int] = []

    def late(number: int, handler: Any) -> Any:
        if number == NUMBER and not came:
            came.append(number)
            signal.raise_signal(number)
        return original(number, handler)

    with pytest.raises(LateError, match="too late"), Signals():
        monkeypatch.setattr(signal, "signal", late)
    assert came
    assert signal.getsignal(NUMBER) is handler


def test_new_handler_and_other_threads_are_unaffected(handler: Any) -> None:
    def record_handler() -> None:
        with Signals():
            assert signal.getsignal(NUMBER) is handler

    assert in_thread(record_handler) == []
    with Signals():
        signal.signal(NUMBER, signal.SIG_IGN)
    assert signal.getsignal(NUMBER) is signal.SIG_IGN


def warn() -> None:
    warnings.warn("seen once", UserWarning, stacklevel=1)


def records() -> dict[Any, Any]:
    found: dict[Any, Any] = globals().get("__warningregistry__", {})
    return {key: value for key, value in found.items() if key != "version"}


def test_suppression_preserves_records_of_shown_warnings() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warn()
        before = records()
        with nothing_warned():
            warn()
            with warnings.catch_warnings():  # its exit resets the registry of shown warnings
                warnings.simplefilter("ignore")
        assert records() == before != {}
        warn()
        assert len(shown) == 1


def test_error_filters_apply_only_in_other_threads() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with nothing_warned():
            warn()
            [raised] = in_thread(warn)
        assert isinstance(raised, UserWarning)
        assert list(warnings.filters) == before
