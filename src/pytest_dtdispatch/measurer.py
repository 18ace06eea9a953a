"""The object behind the ``dtdispatch`` fixture, and its stand-in where nothing is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.records.book import Book

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_dtdispatch.measuring.capture import SignatureCapture
    from pytest_dtdispatch.measuring.rounds import Plan
    from pytest_dtdispatch.measuring.setup import Setup

T = TypeVar("T")


class DtDispatch:
    """What a test measures with; where nothing is measured, everything runs once and at full speed.

    Attributes:
        enabled: whether anything is measured.

    Example:
        >>> dtdispatch = DtDispatch()
        >>> with dtdispatch.capture() as book:
        ...     dtdispatch.call(lambda: 2 + 2, name="sum")
        4
        >>> book.measurements()
        ()
    """

    enabled = False

    def capture(self) -> AbstractContextManager[Book]:
        """Measure every DTensor op of a ``with`` block, each signature at its first call.

        The program does not notice: each op's result and effects are those of one call. Figures start below
        autograd, where torch asks dispatch modes.

        Returns:
            A context manager that gives the book in which :meth:`Book.measurements` are kept.

        Raises:
            CaptureError: on entry, when a capture is open already.
        """
        return nullcontext(Book())

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """Measure a whole callable, end to end from Python, autograd included.

        It is called once for the test, then again for each sample: on a miss, every sharding-propagation
        cache having been cleared, and on hits. Its result is that of the first call. Before each further
        call, and at the end, these are put back to what they were: the contents of tensors that torch was
        asked to write to, the ``grad`` of leaves that took part, and random states. A callable that changes
        anything else (a Python counter, a list, a file) changes it once for each sample: give ``setup`` to
        put such state back, or to make fresh arguments.

        Args:
            fn: what is called.
            *args: its positional arguments.
            name: names the row; by default the function's own name.
            setup: called before each call, untimed. A tuple that it returns replaces ``args``.

        Returns:
            What the first call returned.

        Raises:
            CaptureError: the name is missing, is taken by another call of this test, or a capture is open.

        Example:
            >>> DtDispatch().call(pow, 2, 5, name="power")
            32
        """
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.setup import given_arguments

        return fn(*given_arguments(args, setup))


class MeasuringDtDispatch(DtDispatch):
    """Measure, and keep what was measured in the book of the test.

    Args:
        plan: how much is measured.
        ops: globs of the ops that captures measure.
    """

    enabled = True

    def __init__(self, plan: Plan, ops: tuple[str, ...]) -> None:
        self.book = Book()
        self._plan = plan
        self._ops = ops
        self._open: list[Capture] = []

    def capture(self) -> AbstractContextManager[Book]:
        """See :meth:`DtDispatch.capture`."""
        from pytest_dtdispatch.measuring.capture import SignatureCapture

        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return Capture(SignatureCapture(self.book, self._plan, self._ops), self.book, where, self._open)

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """See :meth:`DtDispatch.call`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.caches import ShardingCaches
        from pytest_dtdispatch.measuring.calls import run_and_measure_call

        if self._open:
            raise CaptureError(
                f"call(name={name!r}) inside a capture would be measured twice: close the capture"
            )
        name = name or str(getattr(fn, "__name__", "<unnamed>"))
        if name.startswith("<"):
            raise CaptureError(f"a call of {name} needs a name: dtdispatch.call(fn, name=...)")
        if name in self.book.call_names():
            raise CaptureError(f"the name {name!r} is taken by another call of this test: give another name=")
        result, place, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), self._plan)
        self.book.enter_call(name, place, figures)
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close captures that were entered and never left.

        Raises:
            CaptureError: there was one.
        """
        left_open = list(self._open)
        for capture in reversed(left_open):
            capture.__exit__(None, None, None)
        if left_open:
            raise CaptureError(
                f"{left_open[0].where}: this capture was entered and never left; use it in a with"
            )


class Capture(AbstractContextManager[Book]):
    """A dispatch mode that is open between enter and exit.

    Args:
        mode: the mode.
        book: what the ``with`` statement gives.
        where: file and line that made the capture.
        open_captures: where the capture is listed while it is open.
    """

    def __init__(self, mode: SignatureCapture, book: Book, where: str, open_captures: list[Capture]) -> None:
        self.where = where
        self._mode = mode
        self._book = book
        self._open_captures = open_captures

    def __enter__(self) -> Book:
        __tracebackhide__ = True
        self._mode.__enter__()
        self._open_captures.append(self)
        return self._book

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        self._open_captures.remove(self)
        self._mode.__exit__(kind, error, traceback)
