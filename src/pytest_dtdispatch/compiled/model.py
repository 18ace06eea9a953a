"""Compilations and their results: graphs, breaks, guards, recompiles, rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_dtdispatch.core.checks import Setup, check_result
from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.results import Count, OneRow
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError

METRICS = ("graphs", "graph_breaks", "recompiles")


@dataclass(frozen=True)
class Compilation:
    """A function to compile, with its options.

    Args:
        fn: the function.
        args: arguments of its first call.
        others: arguments of further calls, a tuple each.
        setup: function that is called before each call and may return its arguments.
        backend: backend of torch.compile, a name or a function.
        dynamic: ``dynamic`` of torch.compile.
        fullgraph: ``fullgraph`` of torch.compile.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    others: Sequence[tuple[Any, ...]] = ()
    setup: Setup | None = None
    backend: str | Callable[..., Any] = "inductor"
    dynamic: bool | None = None
    fullgraph: bool = True

    def __post_init__(self) -> None:
        __tracebackhide__ = True
        is_listed = isinstance(self.others, (tuple, list))
        are_tuples = is_listed and all(isinstance(other, tuple) for other in self.others)
        checks = {
            "others": (are_tuples, "a list of tuples of arguments"),
            "backend": (isinstance(self.backend, str) or callable(self.backend), "a name or a function"),
            "dynamic": (self.dynamic in (None, True, False), "True, False or None"),
        }
        for keyword, (is_valid, valid) in checks.items():
            if not is_valid:
                raise MeasurementError(f"compile(): {keyword}={shown(getattr(self, keyword))} is not {valid}")

    def call_all(self, *args: Any) -> tuple[Any, ...]:
        """Run the first call, with these arguments, and all further calls, uncompiled."""
        __tracebackhide__ = True
        results = (self.fn(*args), *(self.fn(*other) for other in self.others))
        for result in results:
            check_result("compile", result)
        return results


@dataclass(frozen=True)
class CompileCounts:
    """Torch's counters of one cold compile; None if this torch has no such counter.

    Args:
        graphs: number of compiled graphs.
        graph_breaks: source line and reason of each graph break.
        guards: number of guards that every later call checks.
        recompiles: function, source line and reason of each recompile, in the first call, in calls with other
            arguments, and in timed calls.
        propagations: number of sharding propagations while the function was traced.
        fake_tensor_hits: hits of the FakeTensor cache.
        fake_tensor_misses: misses of the FakeTensor cache.
    """

    graphs: int | None = None
    graph_breaks: tuple[str, ...] | None = None
    guards: int | None = None
    recompiles: tuple[str, ...] | None = None
    propagations: int | None = None
    fake_tensor_hits: int | None = None
    fake_tensor_misses: int | None = None

    def number(self, name: str) -> int | None:
        """Return a count by its name, or the length of a list."""
        found: tuple[str, ...] | int | None = getattr(self, name)
        return len(found) if isinstance(found, tuple) else found


@dataclass(frozen=True)
class CompiledFunction(OneRow):
    """Result of a compiled function.

    Args:
        name: name of its rows.
        backend: name of the backend.
        counts: counts of its first cold compile.
        measurement: its rows, one for each state of compiles and calls.
        gave_up: why torch gave up compiling it, so that calls run uncompiled; empty if it did not.
        difference: first difference of the compiled results from the uncompiled; empty if there is none, or
            the function draws random numbers.
    """

    kind: ClassVar[str] = "compiled"
    name: str
    backend: str
    counts: CompileCounts
    measurement: Measurement
    gave_up: str = ""
    difference: str = ""

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Yield each available count, unless torch gave up compiling the function."""
        for metric in () if self.gave_up else METRICS:
            value = self.counts.number(metric)
            if value is not None:
                yield metric, value


@dataclass(frozen=True)
class Compiled:
    """Result of ``dtdispatch.compile``: compiled and eager results, and counts to assert on.

    If nothing is measured, the function runs uncompiled: both results are the same, and every count is 0.
    A count that this torch does not provide is NaN, so that every comparison with it is false.

    Args:
        results: results of the compiled function: of its first call, then of the calls with ``others``.
        eager_results: results of the same calls uncompiled.
        function: its measurement; None if nothing was measured.

    Example:
        >>> compiled = Compiled((4,), (4,))
        >>> compiled.result, compiled.graph_breaks == 0
        (4, True)
    """

    results: tuple[Any, ...]
    eager_results: tuple[Any, ...]
    function: CompiledFunction | None = None

    @property
    def result(self) -> Any:
        """Result of the compiled function."""
        return self.results[0]

    @property
    def eager_result(self) -> Any:
        """Result of the same call uncompiled."""
        return self.eager_results[0]

    @property
    def graphs(self) -> float:
        """Number of compiled graphs."""
        return self._count("graphs")

    @property
    def guards(self) -> float:
        """Number of guards that every later call checks."""
        return self._count("guards")

    @property
    def graph_breaks(self) -> float:
        """Number of graph breaks, with a list of their lines and reasons."""
        return self._count("graph_breaks")

    @property
    def recompiles(self) -> float:
        """Number of recompiles, with a list of functions and reasons."""
        return self._count("recompiles")

    @property
    def propagations(self) -> float:
        """Number of sharding propagations while the function was traced."""
        return self._count("propagations")

    @property
    def difference(self) -> str:
        """First difference of the compiled results from the uncompiled; empty if they are close."""
        return self.function.difference if self.function else ""

    def _count(self, name: str) -> float:
        found = getattr(self.function.counts, name) if self.function else 0
        if isinstance(found, tuple):
            return Count(len(found), 1, found)
        return math.nan if found is None else float(found)
