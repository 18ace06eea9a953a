"""What is compiled, what compiling it did, and what that gave: graphs, breaks, guards, recompiles, rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_dtdispatch.core.checks import Setup
from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.results import Count, OneRow
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Sampler

if TYPE_CHECKING:
    from pytest_dtdispatch.rounds.plan import Agreement

METRICS = ("graphs", "graph_breaks", "recompiles")


@dataclass(frozen=True)
class CompilePlan:
    """How much is compiled, and by what, where a test does not say.

    Args:
        rounds: cold compiles, and as many warm ones.
        calls: of the compiled function in each round, and of the uncompiled one.
        sampler: reads each call; where all read alike there are no warm compiles.
        one_thread: compile for, and call in, one intra-op thread.
        agreement: of ranks that compile together.
    """

    rounds: int = 5
    calls: int = 40
    sampler: Sampler = field(default_factory=lambda: SAMPLERS["time"])
    one_thread: bool = True
    agreement: Agreement | None = None


@dataclass(frozen=True)
class Compilation:
    """What is compiled, and how.

    Args:
        fn: the function.
        args: of its first call.
        others: arguments of further calls, a tuple each.
        setup: called before each call; what it returns, if anything, are the arguments.
        backend: of torch.compile: a name, or a function that compiles a graph.
        dynamic: as torch.compile takes it.
        fullgraph: as torch.compile takes it.
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
        tuples = isinstance(self.others, (tuple, list)) and all(isinstance(one, tuple) for one in self.others)
        wanted = {
            "others": (tuples, "a list of tuples of arguments"),
            "backend": (isinstance(self.backend, str) or callable(self.backend), "a name or a function"),
            "dynamic": (self.dynamic in (None, True, False), "True, False or None"),
        }
        for keyword, (is_valid, valid) in wanted.items():
            if not is_valid:
                raise MeasurementError(f"compile(): {keyword}={shown(getattr(self, keyword))} is not {valid}")

    def call_all(self, *args: Any) -> tuple[Any, ...]:
        """Make the first call, with these arguments, and every further one, uncompiled."""
        __tracebackhide__ = True
        return (self.fn(*args), *(self.fn(*other) for other in self.others))


@dataclass(frozen=True)
class CompileCounts:
    """Torch's own counters of one cold compile; None for what this torch does not count.

    Args:
        graphs: that were compiled.
        graph_breaks: place and reason of each.
        guards: that every later call checks.
        recompiles: function, place and reason of each further compile, because no program fitted the
            arguments: in the first call, in calls with other arguments, in timed calls.
        propagations: of DTensor's sharding, while the function was traced.
        fake_tensor_hits: look-ups that the FakeTensor cache answered.
        fake_tensor_misses: look-ups that it did not answer.
    """

    graphs: int | None = None
    graph_breaks: tuple[str, ...] | None = None
    guards: int | None = None
    recompiles: tuple[str, ...] | None = None
    propagations: int | None = None
    fake_tensor_hits: int | None = None
    fake_tensor_misses: int | None = None

    def number(self, name: str) -> int | None:
        """Return a count by its name, or how long a list is."""
        found: tuple[str, ...] | int | None = getattr(self, name)
        return len(found) if isinstance(found, tuple) else found


@dataclass(frozen=True)
class CompiledFunction(OneRow):
    """What is kept of a compiled function.

    Args:
        name: of its rows.
        backend: that compiled it.
        counts: what its compile did.
        measurement: its compiles and calls.
        gave_up: why torch gave up compiling it, so that calls run uncompiled; empty if it did not.
    """

    kind: ClassVar[str] = "compiled"
    name: str
    backend: str
    counts: CompileCounts
    measurement: Measurement
    gave_up: str = ""

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Every count that this torch gives; none of a function that torch gave up compiling."""
        for metric in () if self.gave_up else METRICS:
            if (value := self.counts.number(metric)) is not None:
                yield metric, value


@dataclass(frozen=True)
class Compiled:
    """What ``dtdispatch.compile`` returns: results to compare with eager ones, and counts to assert on.

    If nothing is measured, the function runs uncompiled: both results are the same, and every count is 0.
    A count that this torch does not have is NaN, which equals nothing.

    Args:
        results: of the compiled function: its first call, then one for each of ``others``.
        eager_results: of the same calls uncompiled.
        function: what was measured; None if nothing was.

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
        """Graphs that were compiled."""
        return self._count("graphs")

    @property
    def guards(self) -> float:
        """Guards that every later call checks."""
        return self._count("guards")

    @property
    def graph_breaks(self) -> float:
        """Graph breaks; lists where and why."""
        return self._count("graph_breaks")

    @property
    def recompiles(self) -> float:
        """Recompiles; lists what and why."""
        return self._count("recompiles")

    @property
    def propagations(self) -> float:
        """Propagations of DTensor's sharding while the function was traced."""
        return self._count("propagations")

    def _count(self, name: str) -> float:
        found = getattr(self.function.counts, name) if self.function else 0
        if isinstance(found, tuple):
            return Count(len(found), 1, found)
        return math.nan if found is None else float(found)
