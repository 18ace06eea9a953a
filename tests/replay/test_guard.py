"""One measurement at a time in a process: when others are refused, and when the lock is released."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_dtdispatch.replay.guard import MeasurementLock, refuse_elsewhere
from tests.threads import in_thread


def measure(label: str = "a capture is open") -> None:
    with MeasurementLock(label):
        refuse_elsewhere()


def test_nested_measurement_does_not_release_the_lock() -> None:
    with MeasurementLock("the call 'f' is measured"):
        measure()
        [error] = in_thread(measure)
    assert "the call 'f' is measured in thread 'MainThread'" in str(error)
    assert in_thread(measure) == []


def test_contexts_exit_before_the_lock_is_released() -> None:
    refused: list[BaseException] = []

    @contextmanager
    def hook() -> Iterator[None]:
        yield
        refused.extend(in_thread(measure))

    with MeasurementLock("a capture is open") as measuring:
        measuring.contexts.enter_context(hook())
    assert len(refused) == 1
    assert in_thread(measure) == []
