"""Time a piece of a program, as a range in a profiler that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from pytest_dtdispatch.core.spans import Interval, label
from pytest_dtdispatch.torchapi.profiler_ranges import begin_range, end_range, is_profiling


class Timed:
    """Time a piece of a program, from now to its end; as a context manager it is shown in a profiler.

    Args:
        kind: what it is, as a span is named.
        name: gives the rest of its name, asked for where a profiler runs.

    Attributes:
        when: it was; none while it is not over.

    Example:
        >>> with Timed("step", lambda: "1") as timed:
        ...     pass
        >>> timed.when.begin_ns <= timed.when.end_ns
        True
    """

    __slots__ = ("_begin_ns", "_kind", "_name", "_range", "when")

    def __init__(self, kind: str, name: Callable[[], str]) -> None:
        self._kind = kind
        self._name = name
        self._range: Any = None
        self.when: Interval | None = None
        self._begin_ns = perf_counter_ns()

    def __enter__(self) -> Timed:
        return self.show()

    def __exit__(self, *exception: Any) -> None:
        self.end()

    def show(self) -> Timed:
        """Show it as a range from here on, where a ``torch.profiler`` runs."""
        if is_profiling() and self._range is None:
            self._range = begin_range(label(self._kind, self._name()))
        return self

    def end(self) -> Interval:
        """End it, and tell when it was."""
        self.when = Interval(threading.get_ident(), self._begin_ns, perf_counter_ns())
        if self._range is not None:
            end_range(self._range)
            self._range = None
        return self.when
