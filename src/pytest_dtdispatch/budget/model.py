"""A budget: the wall time of a step by part, op and source line. Does not import torch."""

from __future__ import annotations

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import ClassVar, NamedTuple

from pytest_dtdispatch.budget.collector import CollectorPauses
from pytest_dtdispatch.budget.timeline import ACCUMULATING, BETWEEN_NODES, Context, Timeline, executed
from pytest_dtdispatch.core.events import Cell, CodePlace, OptimizerStep, Part, Phase, ns_by_part
from pytest_dtdispatch.core.results import Advice, NoRows
from pytest_dtdispatch.core.text import fold_layers, grouped
from pytest_dtdispatch.lines.traced_line import TracedLine
from pytest_dtdispatch.steps.events import Redistribution
from pytest_dtdispatch.steps.model import StepCounts

# Minimum share of a step that waits for a core: for a note, and for marks on a clock without waits.
MIN_WAITED = 0.01


@dataclass(frozen=True)
class CostShare:
    """Share of a phase, an op, a module or a line in the time of a step.

    Args:
        name: name of the phase, op, module or line.
        ns: nanoseconds per step.
        calls: calls per step; 0 if calls are not counted.
        parts: nanoseconds by part, the largest first.
    """

    name: str
    ns: float
    calls: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Budget(NoRows):
    """Division of a step's wall time into parts. Its figures are noisy, and no gate judges them.

    All figures of a budget without a measurement are 0.

    Args:
        name: name of the step.
        measured_ns: median time of undisturbed steps without their waits for a core, in nanoseconds.
        cells: time by part, op and source line.
        timed_ns: median wall time of profiled steps, without their waits for a core.
        scatter: maximum distance of the true median from ``measured_ns``, as a share of it.
        steps: number of undisturbed steps, and also of profiled steps; 0 if the step ran once, profiled.
        events: number of profiled events in a step.
        event_ns: mean cost of timing an event.
        note: text shown below the table.
        noise: largest noise of each kind of timed steps without their waits for a core: their scatter, or the
            distance of the faster half's median, as a share of the median.
        advice: recommended changes to the step, the largest saving first.
        waiting_ns: median wall time of the same steps minus ``measured_ns``; 0 if waits are not counted.
        elsewhere: text with the collective that a redistribution runs on another type of device; empty if it
            is the same.
        collector: pauses of Python's garbage collector in additional steps, which are in no part; None if the
            program has disabled it.
        tracers: names of tools that made steps longer.
        redistributions: redistributions of a counted step; empty if the step ran once.
        slowed_by: settings of the process that can make calls longer, with their values.

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
    collector: CollectorPauses | None = None
    tracers: tuple[str, ...] = ()
    redistributions: tuple[Redistribution, ...] = ()
    slowed_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, float]:
        """Nanoseconds by part; with ``unexplained_ns`` they add up to ``measured_ns``."""
        sums = ns_by_part(self.cells)
        return {str(part): sums[part] for part in Part if part in sums}

    @property
    def unexplained_ns(self) -> float:
        """``measured_ns`` minus the sum of all parts; negative if the sum is larger."""
        return self.measured_ns - sum(self.parts.values())

    @property
    def is_noisy(self) -> bool:
        """Whether steps are too noisy for the parts to be reliable."""
        return self.noise > 0.15  # of the step

    def timing_ns(self, part: str) -> float:
        """Return the nanoseconds that were subtracted from a part as timing cost."""
        return sum(cell.timing_ns for cell in self.cells if cell.part == part)

    def basis(self, part: str) -> str:
        """Return ``timed``, or ``modelled`` if over a tenth of the part was subtracted as timing cost."""
        timing_ns = self.timing_ns(part)
        remaining_ns = sum(cell.ns for cell in self.cells if cell.part == part)
        return "modelled" if abs(timing_ns) > 0.1 * (remaining_ns + timing_ns) else "timed"

    def by_phase(self) -> list[CostShare]:
        """Return the share of each phase, the most expensive first."""
        return self._by(str(cell.place.phase) if cell.place else "" for cell in self.cells)

    def by_op(self) -> list[CostShare]:
        """Return the share of each op, the most expensive first."""
        return self._by(cell.op for cell in self.cells)

    def by_module(self) -> list[CostShare]:
        """Return the share of each module without its submodules, the most expensive first."""
        return self._by(cell.place.module if cell.place else "" for cell in self.cells)

    def by_line(self) -> list[CostShare]:
        """Return the share of each line of the program, such as ``train.py:41``, the most expensive first."""
        return self._by(cell.place.line_text if cell.place else "" for cell in self.cells)

    def _by(self, names: Iterable[str]) -> list[CostShare]:
        """Sum the cells by these names, one for each cell."""
        pairs = zip(names, self.cells, strict=True)
        shares = (CostShare(name, cell.ns, cell.calls, {str(cell.part): cell.ns}) for name, cell in pairs)
        return _sum_by_name(shares)


def _sum_by_name(shares: Iterable[CostShare]) -> list[CostShare]:
    """Sum shares with equal names, and sort by cost in descending order."""
    summed = []
    for name, same in grouped((share.name, share) for share in shares).items():
        parts: defaultdict[str, float] = defaultdict(float)
        for share in same:
            for part, ns in share.parts.items():
                parts[part] += ns
        largest_first = {part: parts[part] for part in sorted(parts, key=parts.__getitem__, reverse=True)}
        ns, calls = sum(share.ns for share in same), sum(share.calls for share in same)
        summed.append(CostShare(name, ns, calls, largest_first))
    return sorted(summed, key=attrgetter("ns"), reverse=True)


def fold_shares(shares: Sequence[CostShare]) -> list[CostShare]:
    """Sum shares whose names differ only by the index of a layer, the most expensive first.

    Example:
        >>> shares = [CostShare(f"layers.{n}.wq", 10.0, 2.0, {"local": 10.0}) for n in range(3)]
        >>> fold_shares(shares)
        [CostShare(name='layers.*.wq (3x)', ns=30.0, calls=6.0, parts={'local': 30.0})]
    """
    names = fold_layers(share.name for share in shares)
    layers = Counter(names[share.name] for share in shares)
    titles = {name: f"{name} ({count}x)" if count > 1 else name for name, count in layers.items()}
    return _sum_by_name(replace(share, name=titles[names[share.name]]) for share in shares)


class MeasuredBudget(NamedTuple):
    """A budget without advice, and the input of the rules that advise on it.

    Args:
        budget: the budget.
        counted: counts of some further steps; empty if the step ran once.
        optimizers: optimizers that stepped in traced steps.
        recorded: counts of a step before them all of whose ops were recorded; None without one.
    """

    budget: Budget
    counted: Sequence[StepCounts]
    optimizers: Collection[OptimizerStep | None]
    recorded: StepCounts | None = None


def split_by_line(lines: Sequence[TracedLine], begin_ns: int, end_ns: int) -> list[tuple[TracedLine, float]]:
    """Return the lines that ran in a time interval, with their shares of it. The tracer's time is excluded.

    Example:
        >>> here = TracedLine(0, 0, CodePlace("a.py", 1), False)
        >>> there = TracedLine(30, 35, CodePlace("a.py", 2), False)
        >>> [(line.place.line, share) for line, share in split_by_line([here, there], 20, 45)]
        [(1, 0.5), (2, 0.5)]
    """
    first = max(bisect.bisect_right(lines, begin_ns, key=attrgetter("begin_ns")) - 1, 0)
    last = max(bisect.bisect_left(lines, end_ns, key=attrgetter("begin_ns")), first + 1)
    inside = lines[first:last]
    if not inside:
        return []
    ends = [*(line.begin_ns for line in inside[1:]), end_ns]
    spans = zip(inside, ends, strict=True)
    lengths = [max(0, min(end, end_ns) - max(line.at_ns, begin_ns)) for line, end in spans]
    total = sum(lengths)
    if not total:
        return [(inside[0], 1.0)]
    return [(line, length / total) for line, length in zip(inside, lengths, strict=True) if length]


def tracing_ns(lines: Sequence[TracedLine], begin_ns: int, end_ns: int) -> int:
    """Return the nanoseconds spent in the tracer during a time interval.

    Example:
        >>> tracing_ns([TracedLine(30, 35, CodePlace("a.py", 2), False)], 20, 32)
        2
    """
    first = bisect.bisect_right(lines, begin_ns, key=attrgetter("at_ns"))
    last = bisect.bisect_left(lines, end_ns, key=attrgetter("begin_ns"))
    return sum(min(line.at_ns, end_ns) - max(line.begin_ns, begin_ns) for line in lines[first:last])


class LineShare(NamedTuple):
    """Share of a source line in a slice; by default all of it, at an unknown line.

    Args:
        place: the line; None if unknown.
        part: part of Python code that runs at this line outside of ops.
        share: share of the slice.
    """

    place: CodePlace | None = None
    part: Part = Part.OTHER
    share: float = 1.0


LineShares = list[LineShare]  # lines of one slice


def cells_of(
    timelines: Sequence[Timeline], lines: Sequence[TracedLine], traced: Sequence[Timeline]
) -> tuple[Cell, ...]:
    """Compute the mean time per step by part, op and line.

    Only traced steps have lines. A slice of another step gets the lines of its counterpart: a slice with the
    same key in a traced step that executed the same ops, else in any traced step, else one of the same op.

    Args:
        timelines: timelines of the steps to sum.
        lines: lines of all traced steps.
        traced: timelines of the traced steps, on the clock of the lines.
    """
    by_order: dict[Hashable, dict[Hashable, LineShares]] = {}
    by_any: dict[Hashable, LineShares] = {}
    for step in reversed(traced):
        keys, shares = _keys(step), list(_line_shares(step, lines))
        of_step = {key.call: each for key, each in zip(keys, shares, strict=True)}
        by_any |= {key.op: each for key, each in zip(keys, shares, strict=True)}
        by_any |= of_step
        by_order[executed(step)] = of_step
    ns: defaultdict[tuple[str, str, CodePlace | None], float] = defaultdict(float)
    calls, timing_ns = ns.copy(), ns.copy()
    for timeline in timelines:
        same = by_order.get(executed(timeline), {})
        for one, key in zip(timeline, _keys(timeline), strict=True):
            found = same.get(key.call) or by_any.get(key.call) or by_any.get(key.op) or [LineShare()]
            for number, (place, python, share) in enumerate(found):
                part = python if one.context.part is Part.OTHER else one.context.part
                cell = str(part), one.context.op, place
                ns[cell] += (one.length_ns - one.timing_ns) * share
                calls[cell] += one.calls if number == 0 else 0
                timing_ns[cell] += one.timing_ns * share
    steps = len(timelines)
    return tuple(Cell(*cell, ns[cell] / steps, calls[cell] / steps, timing_ns[cell] / steps) for cell in ns)


class SliceKeys(NamedTuple):
    """Keys of a slice, which do not depend on shapes. Those outside of ops contain the preceding op.

    Args:
        call: op and number of the call, equal for all slices of a call.
        op: op only.
    """

    call: Hashable = ()
    op: Hashable = ()


def _keys(timeline: Timeline) -> list[SliceKeys]:
    """Return the keys of each slice."""
    numbers: defaultdict[Hashable, dict[Hashable, int]] = defaultdict(dict)  # of calls, by op and begin
    keys: list[SliceKeys] = []
    preceding = SliceKeys()  # of the latest slice in an op
    for one in timeline:
        context = one.context
        name = re.sub(r"\d+", "", context.op)  # names of redistributions contain shapes
        op = (name, context.in_engine) if name else (preceding.op, context.part)
        counted: Hashable = op
        begin: Hashable = context.called_ns
        if context.called_ns < 0:
            counted = (op if name else preceding, context.part)
            begin = (one.begin_ns, one.end_ns)
        earlier = numbers[counted]
        keys.append(SliceKeys((counted, earlier.setdefault(begin, len(earlier))), op))
        if name:
            preceding = keys[-1]
    return keys


class _NodeLines:
    """Lines that created autograd nodes, by the number of the node.

    An op that calls ops, such as ``linear``, may create several nodes. Only its first node has a record.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._lines: dict[int, CodePlace | None] = {}
        self._latest: CodePlace | None = None

    def record(self, number: int, line: CodePlace | None) -> None:
        """Record the line of a node. The latest record is valid: earlier ops may have created no node."""
        if number not in self._lines:
            bisect.insort(self._numbers, number)
        self._lines[number] = line

    def run(self, context: Context) -> CodePlace | None:
        """Return the line that created the running node; None if none runs, or for nodes of earlier steps."""
        if context.running_node == ACCUMULATING:
            return self._latest
        after = bisect.bisect(self._numbers, context.running_node)
        line = self._lines[self._numbers[after - 1]] if after else None
        # The node of a checkpoint runs an engine.
        if context.running_node >= 0 and context.op != BETWEEN_NODES:
            self._latest = line
        return line


def _line_shares(timeline: Timeline, lines: Sequence[TracedLine]) -> Iterator[LineShares]:
    """Yield the lines of each slice of a traced step."""
    created = _NodeLines()
    backward: CodePlace | None = None
    for one in timeline:
        context = one.context
        span = (context.called_ns,) * 2 if context.called_ns >= 0 else (one.begin_ns, one.end_ns)
        found = split_by_line(lines, *span)
        origin = created.run(context)
        inside = [(line, share) for line, share in found if line.in_engine == context.in_engine]
        if context.in_engine and not inside and found:
            backward = found[-1][0].place
        at = origin or backward
        at = replace(at, phase=Phase.BACKWARD) if at and context.in_engine else None
        total = sum(share for _, share in inside)
        shares = [LineShare(_completed(line.place, at), line.part, share / total) for line, share in inside]
        shares = shares or [LineShare(at)]
        if context.new_node not in (-1, context.running_node):
            created.record(context.new_node, shares[-1].place)
        yield shares


def _completed(place: CodePlace | None, node: CodePlace | None) -> CodePlace | None:
    """Add the module of a node to code outside of modules that it runs, and its line to code without one."""
    if place is None or node is None:
        return place
    at = place if place.file else node
    return replace(place, file=at.file, line=at.line, module=place.module or node.module)
