"""What to change in a step: rules from what happened in it, and what that cost, to advice.

A rule is one function. It gives advice where it is sure, and none where it is not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TypeVar

from pytest_dtdispatch.core.events import Cell, CodePlace, Part, Phase, ns_by_part
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.text import INDEX, first_of, fold_layers, plural, shorten_path
from pytest_dtdispatch.steps.events import (
    Miss,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
    change_text,
)
from pytest_dtdispatch.steps.model import StepCounts, most_growth

MOST_ADVICE, MOST_LINES = 5, 3
LEAST_SHARE = 0.01  # of the step: advice that saves less is left out
LEAST_SUMS = 3  # results of one number that are reduced one by one
LEAST_OPTIMIZER_OPS = 4
LOCAL_RATIO = 5  # of what dispatch costs to what local ops cost: of a small shard that is 6 to 10
# What a module on local tensors needs: conversions of input, weight and result, and their backward. Each
# costs as much as an op to three; by two the promise was 0.6 and 1.5 times what came of two models.
CONVERTING_OPS = 6 * 2

FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
# Optimizers of torch that compute each element by itself: a step on local tensors gives the same.
ELEMENTWISE = {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
# Ops that may need more than a rank has: on local tensors they may give another result.
MIXING = re.compile(
    r"mm|matmul|linear|conv|embedding|attention|scatter|gather|index|sort|topk|cum|softmax|drop|rand|nll"
)
# How causes of misses begin, and what stops them.
CURES = {
    "value of": "give the number as a 0-dim tensor: its value is no part of the key",
    "shape of": "pad to a few sizes: each new shape propagates once",
    "length of": "give lists of one length",
    "an equal call missed": "torch does not cache this op: run it on local tensors",
    "propagation raised": "torch does not cache this op: run it on local tensors",
    "the caches were cleared": "do not clear the caches in the step",
}

E = TypeVar("E", bound=StepEvent)


@dataclass(frozen=True)
class Observed:
    """What rules look at.

    Args:
        steps: what was counted of each step.
        cells: of the budget of such a step; empty where there are counts alone.
    """

    steps: Sequence[StepCounts]
    cells: Sequence[Cell] = ()

    def last(self, kind: type[E]) -> tuple[E, ...]:
        """Return what happened of a kind in the last step."""
        return self.steps[-1].of(kind) if self.steps else ()

    def recurring(self, kind: type[E], key: Callable[[E], Hashable]) -> list[E]:
        """Return what happened of a kind in the last step, and in each other one with the same key."""
        if len(self.steps) < 2:
            return []
        shared = set.intersection(*({key(event) for event in step.of(kind)} for step in self.steps))
        return [event for event in self.last(kind) if key(event) in shared]

    def cost_ns(
        self, some: Sequence[StepEvent], alike: Sequence[StepEvent], is_meant: Callable[[Cell], bool]
    ) -> float:
        """Say what some events cost: their share of the cells at their lines, with those of backward.

        Args:
            some: the events.
            alike: those that share the cells at a line, and those without a line; ``some`` are among them.
            is_meant: whether a cell is one of such an event.
        """
        spent = Counter[Hashable]()
        for cell in filter(is_meant, self.cells):
            spent[_line(cell.place)] += cell.ns  # type: ignore[assignment]
        sharing = Counter(_line(event.place) for event in alike)
        each_ns = spent.pop(None, 0.0) / (len(alike) or 1)  # where steps differ, lines are not known
        return sum(spent[line] / sharing[line] + each_ns for line in (_line(one.place) for one in some))


def advise(
    steps: Sequence[StepCounts], cells: Sequence[Cell] = (), step_ns: float = 0.0
) -> tuple[Advice, ...]:
    """Say what to change in a step, what saves most first.

    Args:
        steps: what was counted of each step after the warm-up.
        cells: of the budget of such a step; empty where there are counts alone.
        step_ns: what the step takes, in nanoseconds; 0 where that is not known.

    Returns:
        At most five.

    Example:
        >>> advise([StepCounts(hits=3)])
        ()
    """
    found = [advice for rule in RULES for advice in rule(Observed(steps, cells))]
    if cells and step_ns:
        least_ns = LEAST_SHARE * sum(cell.ns for cell in cells)
        found = [one for one in found if one.ns >= least_ns or one.grows]
        found = [replace(one, ns=min(one.ns, step_ns), share=min(one.ns / step_ns, 1.0)) for one in found]
    found.sort(key=lambda one: (-one.ns, -one.count))
    return tuple(found[:MOST_ADVICE])


def _line(place: CodePlace | None) -> Hashable:
    return place and (place.file, place.line, place.module)


def where(places: Iterable[CodePlace | None]) -> str:
    """Write the lines of places, the phase, and the module that holds all of them.

    Example:
        >>> where([CodePlace("model.py", 16, f"layers.{i}.wq", Phase.FORWARD) for i in range(2)])
        'model.py:16 (forward, layers.*.wq)'
    """
    known = [place for place in places if place and place.file]
    lines: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for place in known:
        file, _, line = shorten_path(place.line_text).rpartition(":")
        lines[file][line] = None
    if not known:
        return "a line that is not known"
    at = [f"{file}:{', '.join(first_of(list(numbers), MOST_LINES))}" for file, numbers in lines.items()]
    modules = fold_layers(place.module for place in known).values()
    levels = zip(*(module.split(".") for module in modules), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, levels)
    module = ".".join(names[0] for names in shared)
    return f"{', '.join(at)} ({', '.join(filter(None, (str(known[0].phase), module)))})"


def _places(groups: Iterable[Iterable[StepEvent]]) -> Iterator[CodePlace | None]:
    return (event.place for event in chain(*groups))


def _grouped(events: Iterable[E], key: Callable[[E], Hashable]) -> list[list[E]]:
    groups: defaultdict[Hashable, list[E]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return list(groups.values())


def _layered(groups: Iterable[list[E]], key: Callable[[E], Hashable]) -> list[list[list[E]]]:
    """Put groups together that differ in the layer alone."""
    layers: defaultdict[Hashable, list[list[E]]] = defaultdict(list)
    for group in groups:
        places = (
            replace(each.place, module=INDEX.sub("*", each.place.module)) for each in group if each.place
        )
        layers[key(group[0]), len(group), tuple(places)].append(group)
    return list(layers.values())


def _times(groups: Sequence[Collection[StepEvent]]) -> str:
    return f"{len(groups[0])} times{f' in each of {len(groups)} places,' if len(groups) > 1 else ''}"


def _is_backward(event: StepEvent) -> bool:
    return event.place is not None and event.place.phase is Phase.BACKWARD


# Redistributions


def _is_partial(placements: Sequence[str]) -> bool:
    return any("P" in placement for placement in placements)


def _moves(cell: Cell) -> bool:
    return cell.part.startswith("redistribution")


def _moves_as_asked(cell: Cell) -> bool:
    return _moves(cell) and cell.op.startswith("redistribute ")


def _asked(observed: Observed) -> list[Redistribution]:
    """Return the redistributions that were asked for, of tensors that are known: no gradient is."""
    return [one for one in observed.last(Redistribution) if one.tensor_number and not one.is_implied]


def _saving(observed: Observed, seen: str, change: str, some: Sequence[Redistribution]) -> Advice:
    """Advise to leave out redistributions that were asked for; their gradients' go with them."""
    asked = _asked(observed)
    forward = Counter(_line(one.place) for one in asked)
    every = Counter(_line(one.place) for one in observed.last(Redistribution) if not one.is_implied)
    count = round(sum(every[_line(one.place)] / forward[_line(one.place)] for one in some))
    ns = observed.cost_ns(some, asked, _moves_as_asked)
    return Advice(seen, change, f"saves at most {plural(count, 'redistribution')}", count, ns)


def repeated_redistributions(observed: Observed) -> Iterator[Advice]:
    """One tensor is redistributed several times to the same placements: as for q, k and v."""
    same = _grouped(
        _asked(observed), lambda one: (one.tensor_number, one.target, one.place and one.place.phase)
    )
    repeated = (group for group in same if len(group) > 1)
    for groups in _layered(repeated, lambda one: (one.tensor, one.source, one.target)):
        first = groups[0][0]
        seen = f"{first.tensor} {change_text(first.source, first.target)} redistributed {_times(groups)}"
        others = [one for group in groups for one in group[1:]]
        yield _saving(observed, f"{seen} at {where(_places(groups))}", "redistribute it once before", others)


def there_and_back(observed: Observed) -> Iterator[Advice]:
    """A tensor is redistributed, and what came out, unchanged, to what the tensor was."""
    came_from = {one.result_number: one for one in _asked(observed) if one.result_number}
    pairs = (
        [came_from[one.tensor_number], one] for one in _asked(observed) if one.tensor_number in came_from
    )
    returned = ([there, back] for there, back in pairs if there.source == back.target)
    for groups in _layered(returned, lambda one: (one.tensor, one.source, one.target)):
        there, back = groups[0]
        change = f"{' '.join(there.source)} -> {change_text(back.source, back.target)}"
        seen = f"{there.tensor} {change} redistributed there and back at {where(_places(groups))}"
        yield _saving(observed, seen, "use the tensor that it was before", [*chain(*groups)])


def implied_redistributions(observed: Observed) -> Iterator[Advice]:
    """An op moves an operand that nobody asked to move; partial sums must be reduced at some time."""
    implied = [one for one in observed.last(Redistribution) if one.is_implied]
    moved = ([one] for one in implied if one.bytes and not _is_partial(one.source))
    for groups in _layered(moved, lambda one: (one.op, one.tensor, one.source, one.target)):
        [first] = groups[0]
        times = f" {len(groups)} times" if len(groups) > 1 else ""
        change = change_text(first.source, first.target)
        yield Advice(
            f"{first.tensor} {change} implied by {first.op}{times} at {where(_places(groups))}",
            f"make it {' '.join(first.target)}, or place the other operands so that it stays "
            f"{' '.join(first.source)}",
            f"saves at most {plural(len(groups), 'redistribution')}",
            len(groups),
            observed.cost_ns(
                [*chain(*groups)], implied, lambda cell: _moves(cell) and not _moves_as_asked(cell)
            ),
        )


def sums_one_by_one(observed: Observed) -> Iterator[Advice]:
    """Partial results of one number are reduced one after the other, as the norm of each parameter is."""
    every = observed.last(Redistribution)
    numbers = [one for one in every if one.tensor.endswith("[]") and _is_partial(one.source)]
    reduced = (one for one in numbers if one.place and not _is_partial(one.target))
    for group in _grouped(reduced, lambda one: (one.source, one.place)):
        if len(group) >= LEAST_SUMS:
            yield Advice(
                f"{len(group)} partial results of one number reduced one by one at {where(_places([group]))}",
                "stack them, and reduce the stack once, as torch.nn.utils.get_total_norm does",
                f"saves at most {plural(len(group) - 1, 'collective')}",
                len(group) - 1,
                observed.cost_ns(group[1:], every, _moves),
            )


# Wrapping


def _convert_ns(observed: Observed, some: Sequence[Wrapping]) -> float:
    """Say what conversions by one function cost, with those of their gradients, which have no number."""
    name = some[0].name
    every = (*observed.last(Wrapping), *observed.last(Unwrapping))
    alike = [one for one in every if one.name == name and one.tensor_number]
    return observed.cost_ns(some, alike, lambda cell: cell.part == Part.WRAPPING and cell.op == name)


def _of_gradients(observed: Observed, some: Sequence[Wrapping]) -> list[Redistribution]:
    """Return the redistributions of the gradients of wraps, where nothing else at their lines needs any."""
    shapes = {(_line(one.place), one.tensor) for one in some} - {
        (_line(one.place), one.tensor) for one in _asked(observed)
    }
    asked = (one for one in observed.last(Redistribution) if _is_backward(one) and not one.is_implied)
    return [one for one in asked if (_line(one.place), one.tensor) in shapes]


def repeated_conversions(observed: Observed) -> Iterator[Advice]:
    """One tensor is wrapped or unwrapped several times in one phase; each wrap's gradient may be moved."""
    for kind, kept in ((Wrapping, "DTensor"), (Unwrapping, "local tensor")):
        known = [one for one in observed.last(kind) if one.tensor_number]
        same = _grouped(
            known, lambda one: (one.name, one.tensor_number, one.placements, one.place and one.place.phase)
        )
        repeated = (group for group in same if len(group) > 1)
        for groups in _layered(repeated, lambda one: (one.name, one.tensor)):
            every = [*chain(*groups)]
            others = [one for group in groups for one in group[1:]]
            share = len(others) / len(every)
            moved = _of_gradients(observed, every) if kind is Wrapping else []
            gradients = f" and {plural(round(len(moved) * share), 'redistribution')}" if moved else ""
            yield Advice(
                f"{every[0].tensor} {' '.join(every[0].placements)} given to {every[0].name} "
                f"{_times(groups)} at {where(_places(groups))}",
                f"keep the {kept} of the first call",
                f"saves at most {plural(len(others), 'call')} of {every[0].name}{gradients}",
                len(others),
                _convert_ns(observed, others) + observed.cost_ns(moved, moved, _moves_as_asked) * share,
            )


def wrapped_parameters(observed: Observed) -> Iterator[Advice]:
    """Parameters are made DTensors anew in each step."""
    wrapped = observed.recurring(Wrapping, lambda one: one.is_parameter and one.tensor_number)
    parameters = ([one] for one in wrapped if one.is_parameter and one.tensor_number)
    for groups in _layered(parameters, lambda one: (one.name, one.placements)):
        every = [*chain(*groups)]
        yield Advice(
            f"{plural(len({one.tensor_number for one in every}), 'parameter')} given to {every[0].name} in "
            f"each step at {where(_places(groups))}",
            "make the DTensor once, and let it be the parameter",
            f"saves at most {plural(len(every), 'call')} of {every[0].name}",
            len(every),
            _convert_ns(observed, every),
        )


# Optimizers, misses, growth, modules


def slow_optimizer(observed: Observed) -> Iterator[Advice]:
    """An optimizer runs op by op, or by lists, over DTensors, where one op or local tensors do the same."""
    cells = [cell for cell in observed.cells if cell.place and cell.place.phase is Phase.OPTIMIZER]
    dispatched = [cell for cell in cells if cell.part == Part.DISPATCH]
    names = {match[1] for cell in cells if (match := OPTIMIZER_STEP.match(cell.op))}
    calls = round(sum(cell.calls for cell in dispatched))
    is_fused = any(cell.op.startswith("_fused_") for cell in dispatched)
    if len(names) != 1 or calls < LEAST_OPTIMIZER_OPS or is_fused or not names <= FUSED | ELEMENTWISE:
        return
    [name] = names
    by_lists = any(cell.op.startswith("_foreach_") for cell in dispatched)
    # To dispatch one op over all lists costs as much as several, each over some of them.
    stays = {Part.LOCAL, Part.DISPATCH} if by_lists and name in FUSED else {Part.LOCAL}
    yield Advice(
        f"{name} steps {'by lists of' if by_lists else 'op by op over'} DTensors at "
        f"{where(cell.place for cell in dispatched)}",
        f"give {name} fused=True" if name in FUSED else "step on the local tensors: the result is the same",
        f"saves at most {plural(calls, 'op')}",
        calls,
        sum(cell.ns for cell in cells if cell.part not in stays),
    )


def recurring_misses(observed: Observed) -> Iterator[Advice]:
    """Ops propagate in each step, by one cause."""
    again = observed.recurring(Miss, lambda one: (one.op, one.cause, one.place))
    cured = ([one] for one in again if _cure(one))
    for groups in _layered(cured, _cure):
        missed = [*chain(*groups)]
        ops = [op.partition(".")[0] for op in dict.fromkeys(one.op for one in missed)]
        yield Advice(
            f"{', '.join(first_of(ops, MOST_LINES))} missed in each step at {where(_places(groups))}, "
            f"{missed[0].reason}",
            _cure(missed[0]),
            f"saves at most {plural(len(missed), 'miss', 'es')}",
            len(missed),
            observed.cost_ns(missed, observed.last(Miss), lambda cell: cell.part == Part.PROPAGATION),
        )


def _cure(miss: Miss) -> str:
    cures = (cure for begin, cure in CURES.items() if miss.cause.startswith(begin))
    return "" if " in another place" in miss.cause else next(cures, "")


def growth(observed: Observed) -> Iterator[Advice]:
    """As many DTensors, sharding specs or plans in a cache stay after each step."""
    missed = observed.last(Miss)
    if missed:  # what missed has an entry in a cache, and that holds specs
        if not any(recurring_misses(observed)):
            of = f", as of {missed[0].op} at {where(_places([missed]))}"
            yield from _grown(
                observed, most_growth, "cached plan", of, "give ops what they were given before"
            )
        return
    change = "keep nothing beyond the step that holds them"
    kept = f", as {observed.steps[-1].kept}" if observed.steps and observed.steps[-1].kept else ""
    tensors = [*_grown(observed, lambda step: step.dtensor_growth, "live DTensor", kept, change)]
    yield from tensors or _grown(observed, lambda step: step.spec_growth, "live sharding spec", "", change)


def _grown(
    observed: Observed, grown: Callable[[StepCounts], int], noun: str, such: str, change: str
) -> Iterator[Advice]:
    """Advise where each of several steps grew by the same number; name what makes as many, if one does."""
    counts = {grown(step) for step in observed.steps}
    if len(observed.steps) > 1 and len(counts) == 1 and (count := max(counts)) > 0:
        made = _grouped(observed.last(Wrapping), lambda one: (one.name, one.place))
        makers = [
            f", as many as {one[0].name} makes at {where(_places([one]))}"
            for one in made
            if len(one) == count
        ]
        seen = f"{plural(count, noun)} more after each step{such}{makers[0] if len(makers) == 1 else ''}"
        yield Advice(seen, change, "saves memory and no time", count, grows=True)


def elementwise_modules(observed: Observed) -> Iterator[Advice]:
    """Dispatch of a module costs many times its local ops, each of which needs its own shard alone."""
    of_module: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell in observed.cells:
        if cell.place and cell.place.module:
            of_module[INDEX.sub("*", cell.place.module)].append(cell)
    for cells in of_module.values():
        ns = ns_by_part(cells)
        many_ns, local_ns = ns[Part.DISPATCH] + ns[Part.AUTOGRAD], ns[Part.LOCAL]
        dispatched = sorted((cell for cell in cells if cell.part == Part.DISPATCH), key=lambda cell: -cell.ns)
        calls = round(sum(cell.calls for cell in dispatched))
        left = calls - CONVERTING_OPS * len({cell.place.module for cell in cells if cell.place})
        if left > 0 and many_ns > LOCAL_RATIO * local_ns and not any(map(_needs_others, cells)):
            yield Advice(
                f"dispatch and autograd cost {many_ns / max(local_ns, 1):,.0f} times the local ops at "
                f"{where(cell.place for cell in dispatched)}",
                "run the module on local tensors, by local_map",
                f"saves at most {plural(left, 'op')}",
                left,
                ns[Part.DISPATCH] * left / calls,  # plain tensors have their nodes of autograd too
            )


def _needs_others(cell: Cell) -> bool:
    """Return whether a module has what local tensors alone may not give."""
    moves = _moves(cell) or cell.part in (Part.WRAPPING, Part.COMMUNICATION)
    is_forward = cell.place is not None and cell.place.phase is Phase.FORWARD
    return (moves and is_forward) or MIXING.search(cell.op) is not None


RULES: tuple[Callable[[Observed], Iterator[Advice]], ...] = (
    repeated_redistributions,
    there_and_back,
    implied_redistributions,
    sums_one_by_one,
    slow_optimizer,
    repeated_conversions,
    wrapped_parameters,
    recurring_misses,
    growth,
    elementwise_modules,
)
