"""A budget: the wall time of a step, the parts that add up to it, and its cells at places. Without torch."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_dtdispatch.budget.parts import Course, ran
from pytest_dtdispatch.core.events import Cell, CodePlace, Part, Phase, ns_by_part
from pytest_dtdispatch.core.results import Advice, NoRows
from pytest_dtdispatch.core.text import fold_layers
from pytest_dtdispatch.lines.moment import Moment

NOISY = 0.15  # share of the step
UNEXPLAINED = 0.1  # likewise
MODELLED = 0.1  # share of a part that is taken off it, from which on it stands on a model


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
class Budget(NoRows):
    """Where the wall time of a step goes. Its figures have noise, and no gate judges them.

    If nothing is measured, it is empty, and every figure is 0.

    Args:
        name: of the step.
        measured_ns: wall time of an undisturbed step, in nanoseconds: the median of them.
        cells: what the time went to.
        timed_ns: median wall time of a timed step, without its waits for a core.
        scatter: how far the true median may lie from ``measured_ns``, as a share of it.
        steps: undisturbed steps, and as many timed ones; 0 if it ran once, timed.
        events: timed events of a step.
        event_ns: what it cost to time one, on average.
        note: what every reader must know.
        noise: the largest scatter of the steps that the figures stand on, without their waits for a core.
        advice: what to change in the step, what saves most first.
        waiting_ns: part of ``measured_ns`` that the step waited for a core: without their waits the median of
            the same steps is that much less.
        elsewhere: what torch runs on a mesh of another device in place of collectives of redistributions.

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
    advice: tuple[Advice, ...] = ()
    waiting_ns: float = 0.0
    elsewhere: str = ""

    @property
    def parts(self) -> dict[str, float]:
        """Nanoseconds of each part that the step has; with ``unexplained_ns`` they add up to the step."""
        sums = dict(ns_by_part(self.cells))
        if self.waiting_ns:
            sums[Part.WAITING] = self.waiting_ns
        return {str(part): sums[part] for part in Part if part in sums}

    @property
    def unexplained_ns(self) -> float:
        """``measured_ns`` minus all parts; below 0 if the parts come to more."""
        return self.measured_ns - sum(self.parts.values())

    @property
    def is_noisy(self) -> bool:
        """Whether steps scatter so far that the parts say little."""
        return self.noise > NOISY

    @property
    def is_unexplained(self) -> bool:
        """Whether more than a tenth of the step is unexplained, though its steps scatter less."""
        is_far = abs(self.unexplained_ns) > UNEXPLAINED * self.measured_ns
        return is_far and not self.is_noisy and self.steps > 0

    def known(self, part: str) -> str:
        """Say how a part is known: ``timed`` in place, or ``modelled``: events' cost was taken off it."""
        of_part = [cell for cell in self.cells if cell.part == part]
        taken_off, left = sum(cell.timing_ns for cell in of_part), sum(cell.ns for cell in of_part)
        return "modelled" if abs(taken_off) > MODELLED * (left + taken_off) else "timed"

    def by_phase(self) -> list[CostShare]:
        """What each phase takes, the most expensive first."""
        return self._by(lambda cell: str(cell.place.phase) if cell.place else "")

    def by_op(self) -> list[CostShare]:
        """What each op takes, the most expensive first."""
        return self._by(lambda cell: cell.op)

    def by_module(self) -> list[CostShare]:
        """What each module takes without its submodules, by qualified name, the most expensive first."""
        return self._by(lambda cell: cell.place.module if cell.place else "")

    def by_line(self) -> list[CostShare]:
        """What each line of the program takes, as ``train.py:41``, the most expensive first."""
        return self._by(lambda cell: cell.place.line_text if cell.place else "")

    def _by(self, key: Callable[[Cell], str]) -> list[CostShare]:
        groups: defaultdict[str, list[Cell]] = defaultdict(list)
        for cell in self.cells:
            groups[key(cell)].append(cell)
        shares = []
        for name, cells in groups.items():
            parts = sorted(ns_by_part(cells).items(), key=lambda item: -item[1])
            spent_ns, calls = sum(cell.ns for cell in cells), sum(cell.calls for cell in cells)
            shares.append(CostShare(name, spent_ns, calls, dict(parts)))
        return sorted(shares, key=lambda share: -share.ns)


def fold_shares(shares: Sequence[CostShare]) -> list[CostShare]:
    """Add up shares whose names differ by the index of a layer alone; the dearest first.

    Example:
        >>> shares = [CostShare(f"layers.{n}.wq", 10.0, 2.0, {"local": 10.0}) for n in range(3)]
        >>> fold_shares(shares)
        [CostShare(name='layers.*.wq (3x)', ns=30.0, calls=6.0, parts={'local': 30.0})]
    """
    names = fold_layers(share.name for share in shares)
    groups: defaultdict[str, list[CostShare]] = defaultdict(list)
    for share in shares:
        groups[names[share.name]].append(share)
    summed = (_joined(name, alike) if len(alike) > 1 else alike[0] for name, alike in groups.items())
    return sorted(summed, key=lambda share: -share.ns)


def _joined(name: str, shares: Sequence[CostShare]) -> CostShare:
    every = {part for share in shares for part in share.parts}
    parts = {part: sum(share.parts.get(part, 0.0) for share in shares) for part in every}
    spent_ns, calls = sum(share.ns for share in shares), sum(share.calls for share in shares)
    largest = sorted(parts.items(), key=lambda item: -item[1])
    return CostShare(f"{name} ({len(shares)}x)", spent_ns, calls, dict(largest))


def pieces(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> list[tuple[Moment, float]]:
    """Cut a time where the program went from one place to the next; give the share that each has of it.

    Time that noting took belongs to no place.

    Example:
        >>> here = Moment(0, 0, CodePlace("a.py", 1), False)
        >>> there = Moment(30, 35, CodePlace("a.py", 2), False)
        >>> [(moment.place.line, share) for moment, share in pieces([here, there], 20, 45)]
        [(1, 0.5), (2, 0.5)]
    """
    first = max(bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.begin_ns) - 1, 0)
    last = max(bisect.bisect_left(moments, end_ns, key=lambda moment: moment.begin_ns), first + 1)
    inside = moments[first:last]
    if not inside:
        return []
    ends = [*(moment.begin_ns for moment in inside[1:]), end_ns]
    lengths = [
        max(0, min(end, end_ns) - max(moment.at_ns, begin_ns))
        for moment, end in zip(inside, ends, strict=True)
    ]
    total = sum(lengths)
    if not total:
        return [(moment, 1.0) for moment in inside[:1]]
    shares = ((moment, length / total) for moment, length in zip(inside, lengths, strict=True))
    return [(moment, share) for moment, share in shares if share]


def noting_ns(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> int:
    """Add up the time of a span that was spent on noting.

    Example:
        >>> noting_ns([Moment(30, 35, CodePlace("a.py", 2), False)], 20, 32)
        2
    """
    first = bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.at_ns)
    last = bisect.bisect_left(moments, end_ns, key=lambda moment: moment.begin_ns)
    inside = moments[first:last]
    return sum(min(each.at_ns, end_ns) - max(each.begin_ns, begin_ns) for each in inside)


Shares = list[tuple["CodePlace | None", float]]  # of a slice, at places


def cells_of(
    courses: Sequence[Course], moments: Sequence[Moment], located: Sequence[Course]
) -> tuple[Cell, ...]:
    """Add up the slices of several steps by part, op and place, and divide by the number of steps.

    Args:
        courses: what each step consists of.
        moments: where the program was while steps were located.
        located: what each of those consists of, on the clock of the moments. Slices of other steps have the
            places of these, by op and order; of a located step that ran the same, all in order.
    """
    # Nanoseconds, calls, and the cost of timing.
    sums: defaultdict[tuple[str, str, CodePlace | None], list[float]] = defaultdict(lambda: [0, 0, 0])
    same: dict[Hashable, dict[Hashable, Shares]] = {}
    every: dict[Hashable, Shares] = {}
    for step in reversed(located):
        keys, shares = _keys(step), list(_places(step, moments))
        same[ran(step)] = {key: each for (key, _), each in zip(keys, shares, strict=True)}
        every |= {op: each for (_, op), each in zip(keys, shares, strict=True)} | same[ran(step)]
    for course in courses:
        own = same.get(ran(course), {})
        for one, (key, op) in zip(course, _keys(course), strict=True):
            found = own.get(key) or every.get(key) or every.get(op) or [(None, 1.0)]
            for number, (place, share) in enumerate(found):
                cell = sums[str(one.part), one.op, place]
                cell[0] += (one.length_ns - one.timing_ns) * share
                cell[1] += one.calls if number == 0 else 0
                cell[2] += one.timing_ns * share
    return tuple(Cell(*key, *(value / len(courses) for value in cell)) for key, cell in sums.items())


SIZES = re.compile(r"\d+")  # in names, as in those of redistributions


def _keys(course: Course) -> list[tuple[Hashable, Hashable]]:
    """Return keys that slices share with those of steps of other shapes: by op and order, and by op alone.

    All slices of a call have its line, however many it has. A slice outside of ops follows the op before it.
    """
    numbers: defaultdict[Hashable, dict[Hashable, int]] = defaultdict(dict)
    keys: list[tuple[Hashable, Hashable]] = []
    last: tuple[Hashable, Hashable] = ((), ())
    for one in course:
        name = SIZES.sub("", one.op)
        op = (name, one.in_engine) if name else (last[1], one.part)
        order: Hashable = op
        begin: Hashable = one.since_ns
        if one.since_ns < 0:
            order, begin = (op if name else last, one.part), (one.begin_ns, one.end_ns)
        met = numbers[order]
        keys.append(((order, met.setdefault(begin, len(met))), op))
        last = keys[-1] if name else last
    return keys


def _places(course: Course, moments: Sequence[Moment]) -> Iterator[Shares]:
    """Give where each slice of a located step was spent."""
    made: dict[int, CodePlace | None] = {}  # where nodes of autograd were made, by their number
    backward: CodePlace | None = None
    for one in course:
        span = (one.since_ns,) * 2 if one.since_ns >= 0 else (one.begin_ns, one.end_ns)
        found = pieces(moments, *span)
        origin = made.get(one.running)
        in_code = [
            (_in_module(moment.place, origin), share)
            for moment, share in found
            if moment.in_engine == one.in_engine
        ]
        if in_code and one.made >= 0:
            made[one.made] = in_code[-1][0]
        if one.in_engine and not in_code:
            backward = found[-1][0].place if found else backward
            at = origin or backward
            yield [(replace(at, phase=Phase.BACKWARD) if at else None, 1.0)]
        else:
            total = sum(share for _, share in in_code)
            yield [(place, share / total) for place, share in in_code] or [(None, 1.0)]


def _in_module(place: CodePlace | None, origin: CodePlace | None) -> CodePlace | None:
    """Put what a node calls outside of modules, as a function of the user's, in the module that made it."""
    return replace(place, module=origin.module) if place and origin and not place.module else place
