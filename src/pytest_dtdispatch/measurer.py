"""The object behind the ``dtdispatch`` fixture, and its stand-in where nothing is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.errors import CaptureError, GateError, ScalingError
from pytest_dtdispatch.judging.scaling import complaint, fit_scaling, merge
from pytest_dtdispatch.records.book import Book
from pytest_dtdispatch.records.scaling import Scaling, not_measured, row_name
from pytest_dtdispatch.values import read_limit, read_sizes

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_dtdispatch.measuring.capture import SignatureCapture
    from pytest_dtdispatch.measuring.rounds import Plan
    from pytest_dtdispatch.measuring.setup import Setup

T = TypeVar("T")
Make = Callable[[int], Callable[[], Any]]
SIZES = (8, 16, 32, 64)


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

    def scaling(
        self,
        make: Make,
        sizes: Iterable[int] = SIZES,
        *,
        name: str | None = None,
        max_exponent: float | None = None,
    ) -> Scaling:
        """Measure how the cost of a callable grows with a size, on a miss and on a hit.

        Callables are made and called from the largest size down, each once for the test; then each of them
        again for each sample, in several passes over all sizes, as of :meth:`call`. Each pass gives an
        exponent of ``cost = constant * size**exponent`` by least squares on logarithms. The result has their
        median, and their least and greatest as its interval. Every size is a row of its own, ``name[8]``.

        Args:
            make: given a size, returns what is called without arguments.
            sizes: lengths of a list, mesh dimensions, ranks: two or more.
            name: names the rows; by default the name of ``make``.
            max_exponent: the test fails where the whole interval of the miss or of the hit lies above it, and
                where nothing could be fitted.

        Returns:
            Costs by size, and the exponents. Where nothing is measured it has no points, and exponents of 0.

        Raises:
            ScalingError: the sizes or the limit make no sense, or what was made cannot be called.
            CaptureError: the name is missing, is taken by another call of this test, or a capture is open.
            GateError: an exponent is above ``max_exponent``, or could not be held against it.

        Example:
            >>> made = []
            >>> scaling = DtDispatch().scaling(lambda n: lambda: made.append(n), sizes=(2, 4))
            >>> made, scaling.points, scaling.miss.exponent
            ([4, 2], (), 0.0)
        """
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.setup import callable_at

        checked, _ = _checked(sizes, max_exponent)
        for size in reversed(checked):
            callable_at(make, size)()
        return not_measured(name or _own_name(make))


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

        name = self._row_name("call(fn, name=...)", fn, name)
        self._refuse_taken(name, [name])
        result, place, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), self._plan)
        self.book.enter_call(name, place, figures)
        return result  # type: ignore[no-any-return]

    def scaling(
        self,
        make: Make,
        sizes: Iterable[int] = SIZES,
        *,
        name: str | None = None,
        max_exponent: float | None = None,
    ) -> Scaling:
        """See :meth:`DtDispatch.scaling`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.caches import ShardingCaches
        from pytest_dtdispatch.measuring.scaling import run_and_measure_sizes

        checked, limit = _checked(sizes, max_exponent)
        name = self._row_name("scaling(make, name=...)", make, name)
        self._refuse_taken(name, [row_name(name, size) for size in checked])
        taken = run_and_measure_sizes(make, checked, ShardingCaches(), self._plan)
        for size, at_size in taken.items():
            self.book.enter_call(row_name(name, size), at_size.place, merge(at_size.passes))
        scaling = fit_scaling(name, {size: at_size.passes for size, at_size in taken.items()}, limit)
        self.book.enter_scaling(scaling)
        if against := complaint(scaling):
            raise GateError(against)
        return scaling

    def _row_name(self, usage: str, fn: Callable[..., Any], name: str | None) -> str:
        """Name what a method measures, where it may be measured now."""
        __tracebackhide__ = True
        method = usage.partition("(")[0]
        if self._open:
            raise CaptureError(
                f"{method}(name={name!r}) inside a capture would be measured twice: close the capture"
            )
        name = name or _own_name(fn)
        if name.startswith("<"):
            raise CaptureError(f"a {method} of {name} needs a name: dtdispatch.{usage}")
        return name

    def _refuse_taken(self, name: str, rows: Iterable[str]) -> None:
        __tracebackhide__ = True
        scalings = (scaling.name for scaling in self.book.scalings())
        if not {*self.book.call_names(), *scalings}.isdisjoint((name, *rows)):
            raise CaptureError(f"the name {name!r} is taken by another call of this test: give another name=")

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


def _own_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "<unnamed>"))


def _checked(sizes: Iterable[int], limit: float | None) -> tuple[tuple[int, ...], float | None]:
    """Read the sizes and the limit of a scaling; sizes come back rising."""
    __tracebackhide__ = True
    try:
        checked = read_sizes(sizes)
    except ValueError as error:
        raise ScalingError(f"sizes={sizes!r} is not {error}") from None
    try:
        return checked, None if limit is None else read_limit(limit)
    except ValueError as error:
        raise ScalingError(f"max_exponent={limit!r} is not {error}") from None


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
