"""A budget: the wall time of a step, and the parts that add up to it. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_dtdispatch.budget.parts import Part
from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.places import CodePlace

NOISY = 0.15  # share of the step
UNEXPLAINED = 0.1  # likewise
MODELLED = 0.1  # share of a part that is taken off it, from which on it stands on a model


@dataclass(frozen=True)
class Cell:
    """What one op took in one part at one place, in a step.

    Args:
        part: what the time went to.
        op: the op, the conversion or the node of autograd; empty outside of all.
        place: where in the program; None where that is not known.
        ns: nanoseconds a step, the cost of timing taken off.
        calls: calls a step.
        timing_ns: the cost of timing that was taken off.
    """

    part: str
    op: str
    place: CodePlace | None
    ns: float
    calls: float
    timing_ns: float = 0.0


@dataclass(frozen=True)
class CostShare:
    """A part of a step, or what a phase, an op, a module or a line has of it.

    Args:
        name: of the part, the phase, the op, the module or the line.
        ns: nanoseconds a step.
        calls: calls a step; 0 where none are counted.
        parts: nanoseconds by part, the largest first.
    """

    name: str
    ns: float
    calls: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Budget:
    """Where the wall time of a step goes.

    Where nothing is measured it is empty, and every figure is 0.

    Args:
        name: of the step.
        measured_ns: wall time of an undisturbed step, in nanoseconds: the median of them.
        cells: what the time went to.
        timed_ns: wall time of a step while it is timed, likewise.
        scatter: how far the true median of ``measured_ns`` may lie from it, as a share of it.
        steps: how many steps were measured undisturbed, and as many timed; 0 where it ran once, timed.
        events: how many events were timed in a step.
        event_ns: what it cost to time one, on average.
        note: what every reader must know.
        noise: the largest scatter of the steps that the figures stand on.

    Example:
        >>> cells = (Cell("local", "mm", None, 30.0, 2.0), Cell("dispatch", "mm", None, 60.0, 2.0))
        >>> budget = Budget("train", 100.0, cells)
        >>> budget.parts, budget.unexplained_ns
        ({'local': 30.0, 'dispatch': 60.0}, 10.0)
    """

    kind: ClassVar[str] = "budget"
    name: str
    measured_ns: float = 0.0
    cells: tuple[Cell, ...] = ()
    timed_ns: float = 0.0
    scatter: float = 0.0
    steps: int = 0
    events: float = 0.0
    event_ns: float = 0.0
    note: str = ""
    noise: float = 0.0

    def rows(self) -> tuple[Measurement, ...]:
        """None: a budget is no row of a benchmark."""
        return ()

    def metrics(self) -> Iterator[tuple[str, int]]:
        """None: its figures have noise, and no gate judges them."""
        return iter(())

    @property
    def parts(self) -> dict[str, float]:
        """Nanoseconds of each part that the step has; with ``unexplained_ns`` they add up to the step."""
        sums = _summed((cell.part, cell.ns) for cell in self.cells)
        return {str(part): sums[part] for part in Part if part in sums}

    @property
    def unexplained_ns(self) -> float:
        """What undisturbed steps took and the parts do not: less than 0 where the parts come to more."""
        return self.measured_ns - sum(self.parts.values())

    @property
    def is_noisy(self) -> bool:
        """Whether steps scatter so far that the parts say little."""
        return self.noise > NOISY

    @property
    def is_unexplained(self) -> bool:
        """Whether the parts miss the step by more than a tenth, though its steps scatter less."""
        return (
            bool(self.steps)
            and abs(self.unexplained_ns) > UNEXPLAINED * self.measured_ns
            and not self.is_noisy
        )

    @property
    def timed_over_undisturbed(self) -> float:
        """How much longer a step takes while it is timed, as a ratio; 0 where nothing was measured."""
        return self.timed_ns / self.measured_ns if self.measured_ns else 0.0

    def known(self, part: str) -> str:
        """Say how a part is known: ``timed`` in place, or ``modelled``: events' cost was taken off it."""
        of_part = [cell for cell in self.cells if cell.part == part]
        taken_off, left = sum(cell.timing_ns for cell in of_part), sum(cell.ns for cell in of_part)
        return "modelled" if taken_off > MODELLED * (left + taken_off) else "timed"

    def by_phase(self) -> list[CostShare]:
        """What each phase takes, the dearest first."""
        return self._by(lambda cell: str(cell.place.phase) if cell.place else "")

    def by_op(self) -> list[CostShare]:
        """What each op takes, the dearest first."""
        return self._by(lambda cell: cell.op)

    def by_module(self) -> list[CostShare]:
        """What each module takes without those inside of it, by fully qualified name, the dearest first."""
        return self._by(lambda cell: cell.place.module if cell.place else "")

    def by_line(self) -> list[CostShare]:
        """What each line of the program takes, as ``train.py:41``, the dearest first."""
        return self._by(lambda cell: cell.place.line_text if cell.place else "")

    def _by(self, key: Callable[[Cell], str]) -> list[CostShare]:
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(key(cell), []).append(cell)
        shares = [_share(name, cells) for name, cells in groups.items()]
        return sorted(shares, key=lambda share: -share.ns)


def _share(name: str, cells: Iterable[Cell]) -> CostShare:
    cells = list(cells)
    parts = _summed((str(cell.part), cell.ns) for cell in cells)
    by_size = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return CostShare(name, sum(cell.ns for cell in cells), sum(cell.calls for cell in cells), by_size)


def _summed(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for name, ns in pairs:
        sums[name] += ns  # type: ignore[assignment]
    return dict(sums)
