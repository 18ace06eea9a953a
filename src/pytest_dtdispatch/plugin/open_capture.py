"""What is open in a test: captures between their entry and their exit, and a step that is counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.errors import CaptureError, GateError


class OpenRegions:
    """What is open in a test, and so keeps other things from being measured.

    Attributes:
        captures: open captures, the outermost first.
        unused: where captures were made that nobody entered yet.
        idle: where captures were closed in which no op on DTensors ran.
        step: name of the step that is counted or timed; empty where none is.
        is_timed: whether that step is timed, and not counted.
    """

    def __init__(self) -> None:
        self.captures: list[OpenCapture] = []
        self.unused: list[str] = []
        self.idle: list[str] = []
        self.step = ""
        self.is_timed = False

    def refuse(self, what: str, in_capture: str = "") -> None:
        """Refuse what cannot be measured here: beside a measuring thread, in a counted step, in a capture."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import refuse_elsewhere

        refuse_elsewhere()
        if self.captures and in_capture:
            raise CaptureError(in_capture)
        if self.step:
            done, figures = ("timed", "times") if self.is_timed else ("counted", "counts")
            raise CaptureError(
                f"{what} inside {self.step!r}, which is being {done}, would change its {figures}: "
                "take it out of the step"
            )

    @contextmanager
    def running(self, step: str, is_timed: bool) -> Iterator[None]:
        """Run a step, in which nothing else may be measured."""
        self.step, self.is_timed = step, is_timed
        try:
            yield
        finally:
            self.step = ""

    def close(self) -> None:
        """Close captures that were entered and never left, and refuse those that nobody entered."""
        left_open = list(self.captures)
        for capture in reversed(left_open):
            capture.__exit__(None, None, None)
        if left_open:
            raise CaptureError(
                f"{left_open[0].where}: this capture was entered and never left; use it in a with"
            )
        if self.unused:
            raise CaptureError(
                f"{self.unused[0]}: this capture was never entered, so nothing was measured; use it in a with"
            )


class OpenCapture(AbstractContextManager[TestResults]):
    """A dispatch mode, or a counted region, that is open between enter and exit."""

    def __init__(
        self, mode: AbstractContextManager[Any], results: TestResults, regions: OpenRegions, kind: str = ""
    ) -> None:
        caller = sys._getframe(3)  # who called what makes this
        self.where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self._mode = mode
        self._results = results
        self._calls = results.seen_calls
        self._regions = regions
        self._kind = kind  # of what it counts, if it does
        regions.unused.append(self.where)

    def __enter__(self) -> TestResults:
        __tracebackhide__ = True
        if self.where in self._regions.unused:
            self._regions.unused.remove(self.where)
        self._mode.__enter__()
        self._regions.captures.append(self)
        return self._results

    def __exit__(self, *raised: Any) -> None:
        __tracebackhide__ = True
        self._regions.captures.remove(self)
        if self._kind and raised[0] is not None:
            self._results.uncounted.add((self._kind, f"capture at {self.where}"))
        self._mode.__exit__(*raised)
        if self._results.seen_calls == self._calls and not any(raised):
            self._regions.idle.append(self.where)


@contextmanager
def told_of(capture: AbstractContextManager[None]) -> Iterator[None]:
    """Hold a capture open over a test; what it says of the test at its end is no traceback."""
    is_over = False
    try:
        with capture:
            yield
            is_over = True
    except (CaptureError, GateError) as error:
        if not is_over:
            raise
        raise pytest.fail.Exception(str(error), pytrace=False) from None
