"""Input of the rules of advice, and the findings that they return."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from operator import attrgetter
from typing import NamedTuple, TypeVar

from pytest_dtdispatch.budget.collector import CollectorPauses
from pytest_dtdispatch.core.events import (
    REDISTRIBUTION,
    Cell,
    CodePlace,
    FsdpGroup,
    OptimizerStep,
    Part,
    Phase,
)
from pytest_dtdispatch.core.results import AdviceKind
from pytest_dtdispatch.core.text import INDEX, TextEnum, fold_layers, grouped, joined_lines
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    OpCalls,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
)
from pytest_dtdispatch.steps.model import StepCounts

MAX_LINES = 3
MIN_CALLS = 4  # minimum number of calls of one op
MIN_SUMS = 3  # minimum number of tensors that are sent one by one
MIN_SHARE = 0.01  # minimum saving as a share of the step
CONVERT_ONCE = "use PrepareModuleInput for this module in the plan"

E = TypeVar("E", bound=StepEvent)


@dataclass(frozen=True)
class Finding:
    """Finding of a rule. Without a change, it is a fact.

    Args:
        events: events at whose lines it is.
        seen: description of the finding, without its lines.
        change: recommended change; empty if no change is proved.
        count: number of saved units; 0 without a change.
        unit: noun of what the change saves.
        of: text after the unit, such as `` of from_local``.
        saves: complete text of the saving; by default that of the count.
        ns: nanoseconds per step that the change may save; 0 if unknown.
        share: this time as a share of the step; 0: the time is a part of the budget.
        bytes: bytes of saved collectives; 0 if unknown.
        ending: end of the description, after the lines.
        claims: events that later rules do not see; None for all events.
    """

    events: Sequence[StepEvent | Cell]
    seen: str
    change: str = ""
    count: int = 0
    unit: str = ""
    of: str = ""
    saves: str = ""
    ns: float = 0.0
    share: float = 0.0
    bytes: int = 0
    ending: str = ""
    claims: Sequence[StepEvent] | None = None


class Rule(NamedTuple):
    """A rule of advice.

    Args:
        name: its name in the documentation.
        find: function that yields its findings on events that no earlier rule claims.
        kind: class of its findings.
    """

    name: str
    find: Callable[[Observed], Iterable[Finding]]
    kind: AdviceKind


class Cost(TextEnum):
    """Cells whose time events share: the cells at the line of an event belong to all such events there.

    Those of conversions and calls have the name of the conversion or op in place of a member.
    """

    EXPLICIT = "explicit redistributions and those of their gradients"
    IMPLIED = "implied redistributions"
    COLLECTIVE = "collectives"
    FSDP = "copies and hooks of FSDP"
    MISS = "misses"


@dataclass(frozen=True)
class Observed:
    """Input of the rules.

    Args:
        steps: counts of each counted step.
        recorded: counts of an earlier step all of whose ops were recorded; empty without one.
        cells: cells of the budget of such a step; empty if there are only counts.
        optimizers: optimizers that stepped in the budget.
        collector: pauses of the garbage collector in steps of the budget; None if not measured.
    """

    steps: Sequence[StepCounts]
    recorded: StepCounts
    cells: Sequence[Cell]
    optimizers: Collection[OptimizerStep | None]
    collector: CollectorPauses | None
    _claimed: set[int] = field(default_factory=set, init=False)

    @cached_property
    def is_proved(self) -> bool:
        """Whether the events are those of the recorded step: they equal those of the last counted one."""
        if not self.recorded.is_recorded or not self.steps:
            return False
        of_recorded, last = (
            [(type(event), event.origin) for event in step.events if not isinstance(event, Miss)]
            for step in (self.recorded, self.steps[-1])
        )
        return of_recorded == last

    @cached_property
    def _by_kind(self) -> dict[type, list[StepEvent]]:
        """Events of the recorded step if it is like the last counted one, else of the latter."""
        last = self.steps[-1] if self.steps else StepCounts()
        events = self.recorded.events if self.is_proved else last.events
        by_kind: dict[type, list[StepEvent]] = grouped((type(event), event) for event in events)
        by_kind[Miss] = [*last.missed]
        return by_kind

    @cached_property
    def is_steady(self) -> bool:
        """Whether all counted steps call equally many ops: a plan for a list is valid for one length."""
        return len({step.calls for step in self.steps}) <= 1

    @cached_property
    def groups(self) -> dict[int, FsdpGroup]:
        """Groups of FSDP2 in the recorded step, by number."""
        return {group.number: group for group in self.recorded.groups}

    def every(self, kind: type[E]) -> list[E]:
        """Return all events of a kind. Misses are those of the last counted step."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def last(self, kind: type[E]) -> list[E]:
        """Return the events of a kind that no rule has claimed."""
        return [event for event in self.every(kind) if id(event) not in self._claimed]

    def claim(self, events: Iterable[StepEvent | Cell]) -> None:
        """Hide events from later rules."""
        self._claimed.update(map(id, events))

    def recurring(self, kind: type[E], key: Callable[[E], Hashable]) -> list[E]:
        """Return the unclaimed events of a kind whose keys occur in each of several counted steps."""
        if len(self.steps) < 2:
            return []
        shared = set.intersection(*({key(event) for event in step.of(kind)} for step in self.steps))
        return [event for event in self.last(kind) if key(event) in shared]

    @cached_property
    def _spent_ns(self) -> dict[Hashable, float]:
        """Nanoseconds of cells by cost and line."""
        spent_ns = defaultdict[Hashable, float](float)
        for cell in self.cells:
            cost = _cost_of_cell(cell)
            if cost:
                spent_ns[cost, line_of(cell.place)] += cell.ns
        return spent_ns

    @cached_property
    def _counts(self) -> Counter[Hashable]:
        """Number of events by cost and line, and by cost."""
        counts = Counter[Hashable]()
        for event in chain(*self._by_kind.values(), self.recorded.ops):
            for cost in costs_of(event):
                counts.update(((cost, line_of(event.place)), cost))
        return counts

    @cached_property
    def _by_node(self) -> dict[int | None, list[StepEvent]]:
        conversions: Iterable[Redistribution | Wrapping] = chain(
            self.every(Redistribution), self.every(Wrapping), self.every(Unwrapping)
        )
        # Only conversions in forward, or in its recomputation, have a number.
        return grouped((event.node, event) for event in conversions if not event.tensor_number)

    def gradients_of(self, events: Iterable[StepEvent], kind: type[E]) -> list[E]:
        """Return the events of a kind in the backward of conversions."""
        nodes = (event.node for event in events)
        found = (event for node in nodes if node is not None for event in self._by_node.get(node, ()))
        return [event for event in found if isinstance(event, kind)]

    def ns_of(self, events: Iterable[StepEvent]) -> float:
        """Return the cost of events in nanoseconds: their shares of the cells at their lines."""
        total = 0.0
        for event in events if self.cells else ():
            line = line_of(event.place)
            for cost in costs_of(event):
                # Cells without a line belong to steps that differ from traced ones.
                total += self._spent_ns.get((cost, None), 0.0) / self._counts[cost]
                if line:
                    total += self._spent_ns.get((cost, line), 0.0) / self._counts[cost, line]
        return total

    def saving(
        self,
        events: Sequence[StepEvent],
        seen: str,
        change: str,
        saved: Sequence[Redistribution] | Sequence[Collective],
        unit: str = "redistribution",
        claims: Sequence[StepEvent] | None = None,
    ) -> Finding:
        """Return the finding that a change saves redistributions or collectives, with their bytes."""
        ns, nbytes = self.ns_of(saved), bytes_of(saved)
        return Finding(events, seen, change, len(saved), unit, ns=ns, bytes=nbytes, claims=claims)


def _cost_of_cell(cell: Cell) -> Hashable:
    """Return the cost that a cell is part of; None without one."""
    if cell.part in REDISTRIBUTION:
        return Cost.EXPLICIT if cell.op.startswith("redistribute ") else Cost.IMPLIED
    if cell.part in (Part.WRAPPING, Part.DISPATCH, Part.AUTOGRAD):
        return cell.op
    if communicates(cell):
        return Cost.COLLECTIVE
    is_fsdp, is_miss = cell.part in (Part.FSDP_COPIES, Part.FSDP_PYTHON), cell.part == Part.PROPAGATION
    return Cost.FSDP if is_fsdp else Cost.MISS if is_miss else None


def costs_of(event: StepEvent) -> tuple[Hashable, ...]:
    """Return the costs that an event has a share of."""
    if isinstance(event, Redistribution):
        return (Cost.IMPLIED if event.is_implied else Cost.EXPLICIT,)
    if isinstance(event, Collective) and not event.is_redistributing:
        return (Cost.COLLECTIVE, Cost.FSDP) if event.fsdp_group else (Cost.COLLECTIVE,)
    if isinstance(event, Wrapping):
        return (event.name,)
    if isinstance(event, OpCalls):
        return (event.op.partition(".")[0],)
    return (Cost.MISS,) if isinstance(event, Miss) else ()


def line_of(place: CodePlace | None) -> Hashable:
    """Return a key of a source line and its module."""
    return place and (place.file, place.line, place.module)


def where(lines: Iterable[CodePlace | None]) -> str:
    """Format source lines with the phase of the first and the module that contains all of them.

    Example:
        >>> where([CodePlace("model.py", 16, f"layers.{i}.wq", Phase.FORWARD) for i in range(2)])
        'model.py:16 (forward, layers.*.wq)'
    """
    found = [line for line in lines if line and line.file]
    if not found:
        return "a line that is not known"
    at = joined_lines(line_texts(found), MAX_LINES)
    modules = fold_layers(dict.fromkeys(line.module for line in found)).values()
    levels = zip(*(module.split(".") for module in modules), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, levels)
    module = ".".join(names[0] for names in shared)
    return f"{at} ({', '.join(filter(None, (str(found[0].phase), module)))})"


def line_texts(lines: Iterable[CodePlace | None]) -> tuple[str, ...]:
    """Return the texts of distinct source lines, in order."""
    distinct = {(line.file, line.line): line for line in lines if line and line.file}  # the text is expensive
    return tuple(dict.fromkeys(line.line_text for line in distinct.values()))


def alike(events: Iterable[E], *names: str) -> list[list[E]]:
    """Group events whose attributes with these names are equal."""
    key = attrgetter(*names)
    return list(grouped((key(event), event) for event in events).values())


def layered(groups: Iterable[list[E]], key: Callable[[E], Hashable]) -> list[list[list[E]]]:
    """Group groups that differ only by layer or phase, such as a forward and its recomputation.

    Args:
        groups: groups of events.
        key: function of the first event of a group; its results differ for groups that are not merged.
    """
    merged: dict[Hashable, list[list[E]]] = {}
    for group in groups:
        found = (one.place for one in group if one.place)
        lines = tuple((line.file, line.line, INDEX.sub("*", line.module)) for line in found)
        merged.setdefault((key(group[0]), len(group), lines), []).append(group)
    return list(merged.values())


def times_text(groups: Sequence[Collection[StepEvent]]) -> str:
    """Format how often each of several groups occurs."""
    return f"{len(groups[0])} times{f' in each of {len(groups)} places,' if len(groups) > 1 else ''}"


def bytes_of(events: Iterable[Redistribution | Collective]) -> int:
    """Return the bytes that events send."""
    return sum(event.bytes for event in events)


def is_backward(event: StepEvent | Cell) -> bool:
    """Return whether an event or a cell belongs to backward."""
    return event.place is not None and event.place.phase is Phase.BACKWARD


def communicates(cell: Cell) -> bool:
    """Return whether a cell is of a collective outside of redistributions."""
    return cell.part in (Part.COMMUNICATION, Part.FSDP_COLLECTIVES)


def repeats_of(groups: Iterable[Sequence[E]]) -> list[E]:
    """Return the repeated events of groups. Each group repeats its first event."""
    return [one for group in groups for one in group[1:]]


def repeats_in_pass(groups: Iterable[Sequence[E]]) -> list[E]:
    """Return the repeated events of groups but the first of each backward pass.

    The first events of later passes can reuse the result too, but each pass has gradients of its own.
    """
    return repeats_of(chain.from_iterable(alike(group, "after") for group in groups))
