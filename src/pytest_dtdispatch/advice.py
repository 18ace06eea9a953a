"""Advice on changes to a step: rules over its events and their cost.

Each rule is one function. It yields advice only if its condition is certain.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise, takewhile
from typing import TypeVar

from pytest_dtdispatch.budget.collector import CollectorPauses
from pytest_dtdispatch.budget.model import Budget, MeasuredBudget
from pytest_dtdispatch.core.events import (
    REDISTRIBUTION,
    Cell,
    CodePlace,
    OptimizerStep,
    Part,
    Phase,
    ns_by_part,
)
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.text import INDEX, first_of, fold_layers, plural, shorten_path
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    Read,
    Redistribution,
    Remedy,
    StepEvent,
    Unwrapping,
    Wrapping,
    placement_change,
)
from pytest_dtdispatch.steps.model import StepCounts, most_growth

MAX_LINES = 3
MIN_SHARE = 0.01  # minimum saving as a share of the step
MIN_SUMS = 3  # minimum number of tensors that are sent one by one
BUCKET_BYTES = 25 * 2**20  # as in DDP: larger buckets are hardly faster
LOSS_OPS = ("_log_softmax", "nll_loss")  # names of the ops of a cross entropy begin so
# With 2 KiB of logits loss_parallel took 7.5 times as long, with 32 MiB 0.56 times. Sizes between: untried.
MIN_LOGITS_BYTES = 2**22
MIN_GROUPS = 8  # minimum number of FSDP groups
SMALL_GROUP_BYTES = 2**20  # as DDP's first bucket
LOCAL_RATIO = 5  # minimum ratio of dispatch to local ops: it is 6 to 10 for a small shard
# Conversions of input, weight and result of a module on local tensors, in forward and backward. Each costs as
# much as one to three ops. With two ops, the predicted saving was 0.6 and 1.5 times the actual saving of two
# models.
CONVERTING_OPS = 6 * 2

# Elementwise optimizers of torch: a step on local tensors has the same result.
ELEMENTWISE = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SGD", "ASGD", "Rprop", "RMSprop"}
ELEMENTWISE |= {"Adadelta", "Adagrad"}
MIXED = "use separate optimizers for plain parameters and for each mesh: a fused one takes no mixture"
# Ops that may combine elements of several ranks: their result on local tensors may differ.
MIXING = re.compile(
    r"mm|matmul|linear|conv|embedding|attention|scatter|gather|index|sort|topk|cum|softmax|drop|rand|nll"
)

E = TypeVar("E", bound=StepEvent)
T = TypeVar("T")


@dataclass(frozen=True)
class Observed:
    """Input of the rules.

    Args:
        steps: counts of each step.
        cells: cells of the budget of such a step; empty if there are only counts.
        optimizers: optimizers that stepped in the budget.
        collector: pauses of the garbage collector in steps of the budget; None if not measured.
    """

    steps: Sequence[StepCounts]
    cells: Sequence[Cell] = ()
    optimizers: Collection[OptimizerStep | None] = ()
    collector: CollectorPauses | None = None

    @cached_property
    def passes(self) -> dict[int, int]:
        """Number of backward passes that ended before each event of the last step, by the event's id."""
        events = self.steps[-1].events if self.steps else ()
        ends = (_is_backward(one) and not _is_backward(other) for one, other in pairwise(events))
        return dict(zip(map(id, events), accumulate(ends, initial=0), strict=False))

    def last(self, kind: type[E]) -> tuple[E, ...]:
        """Return the events of a kind in the last step."""
        return self.steps[-1].of(kind) if self.steps else ()

    def recurring(self, kind: type[E], key: Callable[[E], Hashable]) -> list[E]:
        """Return the events of a kind in the last of several steps whose keys occur in every step."""
        if len(self.steps) < 2:
            return []
        shared = set.intersection(*({key(event) for event in step.of(kind)} for step in self.steps))
        return [event for event in self.last(kind) if key(event) in shared]

    def cost_ns(
        self,
        events: Sequence[StepEvent],
        all_events: Sequence[StepEvent],
        has_cost: Callable[[Cell], bool],
        forward_only: bool = False,
    ) -> float:
        """Return the cost of events in nanoseconds: their share of the cells at their lines.

        Args:
            events: the events.
            all_events: all events, including ``events``, that share the cells at a line and those without a
                line.
            has_cost: whether a cell belongs to such events.
            forward_only: whether to exclude cells of backward.
        """
        spent = Counter[Hashable]()
        for cell in filter(has_cost, self.cells):
            if not (forward_only and _is_backward(cell)):
                spent[_line(cell.place)] += cell.ns  # type: ignore[assignment]
        sharing = Counter(_line(event.place) for event in all_events)
        each_ns = spent.pop(None, 0.0) / (len(all_events) or 1)  # steps that differ from traced ones
        lines = (_line(event.place) for event in events)
        return sum(spent[line] / sharing[line] + each_ns for line in lines)


def advise(
    steps: Sequence[StepCounts],
    cells: Sequence[Cell] = (),
    step_ns: float = 0.0,
    optimizers: Collection[OptimizerStep | None] = (),
    collector: CollectorPauses | None = None,
) -> tuple[Advice, ...]:
    """Return the advice of all rules on a step, the largest saving first.

    Args:
        steps: counts of each step after the warm-up.
        cells: cells of the budget of such a step; empty if there are only counts.
        step_ns: length of the step in nanoseconds; 0 if unknown.
        optimizers: optimizers that stepped in the budget.
        collector: pauses of the garbage collector in steps of the budget; None if not measured.

    Returns:
        At most five pieces of advice.

    Example:
        >>> advise([StepCounts(hits=3)])
        ()
    """
    observed = Observed(steps, cells, optimizers, collector)
    found = [advice for rule in RULES for advice in rule(observed)]
    if cells and step_ns:
        min_ns = MIN_SHARE * sum(cell.ns for cell in cells)
        found = [one for one in found if one.ns >= min_ns or one.grows]
        for number, one in enumerate(found):
            if not one.share:
                # At most the whole step, and at least nothing: differences of measured times may be negative.
                ns = min(max(one.ns, 0.0), step_ns)
                found[number] = replace(one, ns=ns, share=ns / step_ns)
    found.sort(key=lambda one: (-one.ns, -one.count))
    return tuple(found[:5])


def with_advice(measured: MeasuredBudget) -> Budget:
    """Return a measured budget with advice."""
    budget = measured.budget
    advice = advise(measured.counted, budget.cells, budget.measured_ns, measured.optimizers, budget.collector)
    return replace(budget, advice=advice)


def _line(place: CodePlace | None) -> Hashable:
    return place and (place.file, place.line, place.module)


def where(lines: Iterable[CodePlace | None]) -> str:
    """Format source lines with the phase of the first and the module that contains all of them.

    Example:
        >>> where([CodePlace("model.py", 16, f"layers.{i}.wq", Phase.FORWARD) for i in range(2)])
        'model.py:16 (forward, layers.*.wq)'
    """
    found = [line for line in lines if line and line.file]
    numbers: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for line in found:
        file, _, number = shorten_path(line.line_text).rpartition(":")
        numbers[file][number] = None
    if not found:
        return "a line that is not known"
    at = [f"{file}:{', '.join(first_of(list(each), MAX_LINES))}" for file, each in numbers.items()]
    modules = fold_layers(line.module for line in found).values()
    levels = zip(*(module.split(".") for module in modules), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, levels)
    module = ".".join(names[0] for names in shared)
    return f"{', '.join(at)} ({', '.join(filter(None, (str(found[0].phase), module)))})"


def line_texts(lines: Iterable[CodePlace | None]) -> tuple[str, ...]:
    """Return the texts of distinct source lines, in order."""
    return tuple(dict.fromkeys(line.line_text for line in lines if line and line.file))


def _lines_of(events: Iterable[StepEvent | Cell]) -> list[CodePlace | None]:
    return [event.place for event in events]


def _advice(
    seen: str,
    events: Iterable[StepEvent | Cell],
    change: str,
    count: int,
    noun: str,
    ns: float = 0.0,
    rest: str = "",
) -> Advice:
    """Return advice on a finding at the lines of events. It saves at most ``count`` of ``noun``."""
    lines = _lines_of(events)
    saves = f"saves at most {plural(count, noun)}{rest}"
    return Advice(f"{seen} at {where(lines)}", change, saves, count, ns, source_lines=line_texts(lines))


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: defaultdict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _layered(groups: Iterable[list[E]], key: Callable[[E], Hashable]) -> list[list[list[E]]]:
    """Group groups that differ only by layer or phase, such as a forward and its recomputation."""

    def folded(group: list[E]) -> Hashable:
        lines = [(at.file, at.line, INDEX.sub("*", at.module)) for one in group if (at := one.place)]
        return key(group[0]), len(group), tuple(lines)

    return _grouped(groups, folded)


def _times(groups: Sequence[Collection[StepEvent]]) -> str:
    return f"{len(groups[0])} times{f' in each of {len(groups)} places,' if len(groups) > 1 else ''}"


def _is_backward(event: StepEvent | Cell) -> bool:
    return _phase(event) is Phase.BACKWARD


def _phase(event: StepEvent | Cell) -> Phase | None:
    """Return the phase. ``Phase.OTHER``, as of a forward after a backward, is reported as forward."""
    phase = event.place.phase if event.place else None
    return Phase.FORWARD if phase is Phase.OTHER else phase


# Redistributions


def _is_partial(placements: Sequence[str]) -> bool:
    return any("P" in placement for placement in placements)


def _moves(cell: Cell) -> bool:
    return cell.part in REDISTRIBUTION


def _moves_explicitly(cell: Cell) -> bool:
    return _moves(cell) and cell.op.startswith("redistribute ")


def _moves_implicitly(cell: Cell) -> bool:
    return _moves(cell) and not _moves_explicitly(cell)


def _implied(observed: Observed) -> list[Redistribution]:
    return [one for one in observed.last(Redistribution) if one.is_implied]


def _explicit(observed: Observed) -> list[Redistribution]:
    """Return the explicit redistributions, except those of gradients, whose tensors have no number."""
    return [one for one in observed.last(Redistribution) if one.tensor_number and not one.is_implied]


def _saving(
    observed: Observed,
    seen: str,
    change: str,
    events: Iterable[StepEvent],
    omitted: Sequence[Redistribution],
    forward_only: Sequence[Redistribution] = (),
) -> Advice:
    """Return advice to omit explicit redistributions and those of their gradients.

    Args:
        observed: input of the rule.
        seen: finding of the advice.
        change: recommended change.
        events: events at the lines of the advice.
        omitted: redistributions to omit.
        forward_only: further redistributions to omit, whose gradients are still redistributed.
    """
    explicit = _explicit(observed)
    forward = Counter(_line(one.place) for one in explicit)
    every = Counter(_line(one.place) for one in observed.last(Redistribution) if not one.is_implied)
    with_gradients = sum(every[_line(one.place)] / forward[_line(one.place)] for one in omitted)
    count = round(with_gradients) + len(forward_only)
    ns = observed.cost_ns(omitted, explicit, _moves_explicitly)
    ns += observed.cost_ns(forward_only, explicit, _moves_explicitly, forward_only=True)
    return _advice(seen, events, change, count, "redistribution", ns)


def _repeats(observed: Observed, groups: Iterable[Sequence[E]]) -> tuple[list[E], list[E]]:
    """Return two lists with all but the first event of each group.

    The first list has the events after the first of each backward pass. The second has the first events of
    later passes: they can reuse the result, but each pass has gradients of its own.
    """
    by_pass = [_grouped(group, lambda one: observed.passes[id(one)]) for group in groups]
    same = [one for passes in by_pass for of_pass in passes for one in of_pass[1:]]
    return same, [of_pass[0] for passes in by_pass for of_pass in passes[1:]]


def repeated_redistributions(observed: Observed) -> Iterator[Advice]:
    """Advise if a tensor is redistributed several times to the same placements, as for q, k and v."""
    same = _grouped(_explicit(observed), lambda one: (one.tensor_number, one.target, _phase(one)))
    repeated = (group for group in same if len(group) > 1)
    for groups in _layered(repeated, lambda one: (one.tensor, one.source, one.target)):
        first = groups[0][0]
        seen = f"{first.tensor} {placement_change(first.source, first.target)} redistributed {_times(groups)}"
        others = _repeats(observed, groups)
        yield _saving(observed, seen, "redistribute it once before", chain(*groups), *others)


def _returned(observed: Observed) -> list[list[Redistribution]]:
    """Return pairs of redistributions: to other placements, and of the unchanged result back."""
    explicit = _explicit(observed)
    came_from = {one.result_number: one for one in explicit if one.result_number}
    pairs = ([came_from[one.tensor_number], one] for one in explicit if one.tensor_number in came_from)
    return [[there, back] for there, back in pairs if there.source == back.target]


def there_and_back(observed: Observed) -> Iterator[Advice]:
    """Advise if the result of a redistribution is redistributed to the original placements."""
    for groups in _layered(_returned(observed), lambda one: (one.tensor, one.source, one.target)):
        there, back = groups[0]
        change = f"{' '.join(there.source)} -> {placement_change(back.source, back.target)}"
        seen = f"{there.tensor} {change} redistributed there and back"
        every = [*chain(*groups)]
        yield _saving(observed, seen, "use the tensor that it was before", every, every)


def gathered_one_by_one(observed: Observed) -> Iterator[Advice]:
    """Advise if tensors that outlive the step, such as parameters, are gathered one by one, as in a loop.

    Other tensors are excluded, because they may depend on earlier gathers. Gathers in modules are excluded,
    because a module gathers a tensor when it needs it.
    """
    lasting = observed.recurring(Redistribution, lambda one: one.memory_number)
    returned = {one.tensor_number for one, _ in _returned(observed)}
    first = {one.memory_number: one for one in reversed(lasting) if one.memory_number}
    gathered = [one for one in first.values() if _is_gathered(one) and one.tensor_number not in returned]
    in_program = [
        one for one in gathered if _phase(one) is Phase.FORWARD and not (one.place and one.place.module)
    ]
    for group in _grouped(in_program, lambda one: _line(one.place)):
        alike = _grouped(group, lambda one: (one.tensor.partition("[")[0], one.source))
        count = len(group) - sum(math.ceil(sum(one.bytes for one in each) / BUCKET_BYTES) for each in alike)
        if count >= MIN_SUMS - 1:
            seen = f"{len(group)} tensors gathered one by one"
            change = "concatenate their local shards, and gather the result in buckets"
            ns = observed.cost_ns(group, _explicit(observed), _moves_explicitly) * count / len(group)
            yield _advice(seen, group, change, count, "redistribution", ns)


def _is_gathered(one: Redistribution) -> bool:
    """Return whether a redistribution only gathers shards, over some or all mesh dimensions."""
    pairs = zip(one.source, one.target, strict=True)
    is_whole = all(target in (source, "R") for source, target in pairs)
    return is_whole and bool(one.bytes) and not _is_partial(one.source)


def _of_matrices(observed: Observed) -> list[Redistribution]:
    """Return the redistributions of optimizers that gather each matrix several times, such as Muon.

    They include those of partial products and norms at the same lines, which gathered matrices do not need.
    """
    stepping = [one for one in _implied(observed) if one.matrices and one.bytes]
    of_matrices = [one for one in stepping if _is_gathered(one) and "," in one.tensor]
    every: list[Redistribution] = []
    for group in _grouped(of_matrices, lambda one: one.matrices):
        if len({one.tensor_number or id(one) for one in group}) > group[0].matrices:
            lines = {_line(one.place) for one in group}
            same = (one for one in stepping if one.matrices == group[0].matrices)
            every += [one for one in same if _line(one.place) in lines]
    return every


def matrices_gathered_again(observed: Observed) -> Iterator[Advice]:
    """Advise if an optimizer gathers each matrix several times, as for products of matrices in Muon."""
    for group in _grouped(_of_matrices(observed), lambda one: one.matrices):
        matrices = group[0].matrices
        count = len(group) - matrices
        seen = f"{matrices} sharded matrices redistributed {len(group)} times"
        change = "gather each matrix once: redistribute its gradient to R before the step of the optimizer"
        ns = observed.cost_ns(group, _implied(observed), _moves_implicitly) * count / len(group)
        yield _advice(seen, group, change, count, "redistribution", ns)


def _of_losses(observed: Observed) -> list[list[Redistribution]]:
    """Group redistributions that ``loss_parallel`` avoids by the line of the loss, those of logits first.

    Since torch 2.15 a cross entropy shards logits by row, gathers the log-probabilities, and shards labels.
    """
    of_logits = [one for one in observed.last(Redistribution) if _is_of_logits(one)]
    of_ops = [one for one in _implied(observed) if one.op.startswith(LOSS_OPS) and not _is_of_logits(one)]
    groups = _grouped(of_logits, lambda one: _line(one.place))
    for group in groups:
        tensor, line = group[0].tensor, _line(group[0].place)
        group += [
            one for one in of_ops if _line(one.place) == line and (one.tensor == tensor or not one.bytes)
        ]
    return [group for group in groups if max(one.bytes for one in group) >= MIN_LOGITS_BYTES]


def _is_of_logits(one: Redistribution) -> bool:
    """Return whether a redistribution moves logits that are sharded by class, on one mesh dimension."""
    is_by_class = one.source == (f"S{one.tensor.count(',')}",) and (one.is_implied or one.target == ("R",))
    return one.is_for_loss and is_by_class


def logits_gathered(observed: Observed) -> Iterator[Advice]:
    """Advise if logits that are sharded by class are gathered for a cross entropy."""
    for group in _of_losses(observed):
        first = group[0]
        alike, has_cost = (_implied(observed), _moves_implicitly)
        if not first.is_implied:
            alike, has_cost = (_explicit(observed), _moves_explicitly)
        moved = f"{first.tensor} {placement_change(first.source, first.target)}"
        change = "keep it sharded, and run the loss and its backward in "
        change += "torch.distributed.tensor.parallel.loss_parallel()"
        ns = observed.cost_ns(group, alike, has_cost)
        seen = f"{moved} redistributed for a cross entropy"
        yield _advice(seen, group, change, len(group), "redistribution", ns)


def _implied_groups(observed: Observed) -> list[list[Redistribution]]:
    """Group implied redistributions by tensor, except those of partial sums and those of other rules."""
    others = set(map(id, chain(_of_matrices(observed), *_of_losses(observed))))
    moved = (one for one in _implied(observed) if one.bytes and not _is_partial(one.source))
    rest = (one for one in moved if id(one) not in others)
    return _grouped(rest, lambda one: (one.tensor_number or id(one), one.target, _phase(one)))


def implied_redistributions(observed: Observed) -> Iterator[Advice]:
    """Advise if an op redistributes an operand implicitly; partial sums must be reduced anyway."""
    once = (group for group in _implied_groups(observed) if len(group) == 1)
    for groups in _layered(once, lambda one: (one.op, one.tensor, one.source, one.target)):
        every = [*chain(*groups)]
        if all(one.matrices and _is_gathered(one) and MIXING.search(one.op) for one in every):
            continue  # the product of an optimizer needs the whole matrix, and gathers it once
        first, is_alone = every[0], all(one.operands == 1 for one in every)
        if all(map(_is_backward, every)) or (is_alone and "," not in first.tensor):
            continue  # the program does not place a gradient; a vector has no other dimension to shard
        target, source = " ".join(first.target), " ".join(first.source)
        change = f"make it {target}, or place the other operands so that it stays {source}"
        if is_alone:
            change = "shard another dimension, or work on the local tensor"
        yield _implied_advice(observed, groups, change, every)


def repeated_implied_redistributions(observed: Observed) -> Iterator[Advice]:
    """Advise if ops redistribute the same operand several times implicitly, as for q, k and v."""
    again = (group for group in _implied_groups(observed) if len(group) > 1)
    for groups in _layered(again, lambda one: (one.op, one.tensor, one.source, one.target)):
        if not all(map(_is_backward, chain(*groups))):
            others = [one for group in groups for one in group[1:]]
            yield _implied_advice(observed, groups, "redistribute it once before", others)


def _implied_advice(
    observed: Observed,
    groups: Sequence[Sequence[Redistribution]],
    change: str,
    saved: Sequence[Redistribution],
) -> Advice:
    every = [*chain(*groups)]
    seen = f"{every[0].tensor} {placement_change(every[0].source, every[0].target)} implied by "
    seen += f"{', '.join(dict.fromkeys(one.op for one in every))}{f' {len(every)} times' * (len(every) > 1)}"
    ns = observed.cost_ns(saved, _implied(observed), _moves_implicitly)
    return _advice(seen, every, change, len(saved), "redistribution", ns)


def gradients_reduced_again(observed: Observed) -> Iterator[Advice]:
    """Advise if several ops of an optimizer reduce the same partial gradient, such as three ops of AdamW."""
    of_matrices = set(map(id, _of_matrices(observed)))
    reduced = (one for one in _implied(observed) if one.tensor_number and _is_partial(one.source))
    in_optimizer = (one for one in reduced if _phase(one) is Phase.OPTIMIZER and id(one) not in of_matrices)
    again = [group for group in _grouped(in_optimizer, lambda one: one.tensor_number) if len(group) > 1]
    if again:
        others = [one for group in again for one in group[1:]]
        seen = f"{plural(len(again), 'partial gradient')} reduced {len(others) + len(again)} times"
        change = "redistribute each gradient once before the step of the optimizer"
        ns = observed.cost_ns(others, _implied(observed), _moves_implicitly)
        yield _advice(seen, chain(*again), change, len(others), "redistribution", ns)


def sums_one_by_one(observed: Observed) -> Iterator[Advice]:
    """Advise if partial scalars are reduced one by one, such as the norm of each parameter."""
    every = observed.last(Redistribution)
    others = set(map(id, _of_matrices(observed)))
    numbers = [one for one in every if one.tensor.endswith("[]") and _is_partial(one.source)]
    reduced = (one for one in numbers if one.place and not _is_partial(one.target) and id(one) not in others)
    for group in _grouped(reduced, lambda one: (one.source, one.place)):
        if len(group) >= MIN_SUMS:
            seen = f"{len(group)} partial results of one number reduced one by one"
            change = "stack them, and reduce the stack once, as torch.nn.utils.get_total_norm does"
            ns = observed.cost_ns(group[1:], every, _moves)
            yield _advice(seen, group, change, len(group) - 1, "collective", ns)


# Collectives outside of redistributions


def _own_collectives(observed: Observed) -> list[Collective]:
    """Return the collectives of the last step outside of redistributions."""
    return [one for one in observed.last(Collective) if not one.is_redistributing]


def _communicates(cell: Cell) -> bool:
    return cell.part in (Part.COMMUNICATION, Part.FSDP_COLLECTIVES)


def numbers_one_by_one(observed: Observed) -> Iterator[Advice]:
    """Advise if plain tensors of one number are reduced one by one over a group, such as logged metrics."""
    every = _own_collectives(observed)
    of_one = (one for one in every if one.kind == "all_reduce" and one.bytes <= 8)  # f64 at most
    for numbers in _grouped(of_one, lambda one: (one.mesh_dim, one.group)):
        if len(numbers) >= MIN_SUMS:
            seen = f"{len(numbers)} numbers reduced one by one"
            change = "stack them, and reduce the stack once"
            ns = observed.cost_ns(numbers[1:], every, _communicates)
            yield _advice(seen, numbers, change, len(numbers) - 1, "collective", ns)


def gradients_reduced_in_each_pass(observed: Observed) -> Iterator[Advice]:
    """Advise if FSDP reduces the same gradients in several backward passes of a step, as of micro-batches."""
    for same in _reduced_passes(observed):
        if others := list(chain(*same[:-1])):
            seen = f"gradients reduced in each of {len(same)} backward passes"
            change = "call set_requires_gradient_sync(False) on the model before all passes but the last"
            ns = observed.cost_ns(others, _own_collectives(observed), _communicates)
            yield _advice(seen, chain(*same), change, len(others), "reduce_scatter", ns)


def _reduced_passes(observed: Observed) -> list[list[list[Collective]]]:
    """Return the reductions of each backward pass, with passes of equal reductions in one group."""
    every = (one for one in _own_collectives(observed) if one.kind == "reduce_scatter")
    passes = _grouped(filter(_is_backward, every), lambda one: observed.passes[id(one)])
    # Equal reductions: their numbers by size and line are equal.
    return _grouped(
        passes,
        lambda of_pass: frozenset(Counter((one.bytes, _line(one.place)) for one in of_pass).items()),
    )


def _gathered_in_a_row(observed: Observed) -> list[list[Collective]]:
    """Return, by pass and group, the gathers of FSDP groups that are gathered twice in a row."""
    gathers = [one for one in _own_collectives(observed) if one.fsdp_group and one.kind == "all_gather"]
    of_pass = _grouped(gathers, lambda one: observed.passes[id(one)])
    again = {
        (number, one.fsdp_group)
        for number, each in enumerate(of_pass)
        for one, other in pairwise(each)
        if one.fsdp_group == other.fsdp_group and _phase(one) is _phase(other)
    }
    return [[one for one in of_pass[number] if one.fsdp_group == group] for number, group in sorted(again)]


def groups_gathered_again(observed: Observed) -> Iterator[Advice]:
    """Advise if FSDP gathers a group for each call of a module in a row, such as lm_head for each chunk."""
    for groups in _layered(_gathered_in_a_row(observed), lambda one: one.bytes):
        others = [one for group in groups for one in group[1:]]
        seen = f"{groups[0][0].bytes:,} bytes of an FSDP group gathered {_times(groups)}"
        change = "leave its module to the group of the module that calls it, which is gathered once"
        ns = _cost_of_groups_ns(observed, others)
        yield _advice(seen, chain(*groups), change, len(others), "all_gather", ns)


def small_groups(observed: Observed) -> Iterator[Advice]:
    """Advise if FSDP gathers and reduces many groups of few bytes, such as one for each linear layer."""
    every = _own_collectives(observed)
    others = chain(
        *(of_pass for same in _reduced_passes(observed) for of_pass in same[:-1]),
        *(group[1:] for group in _gathered_in_a_row(observed)),
    )
    saved = set(map(id, others))
    of_fsdp = [one for one in every if one.fsdp_group and id(one) not in saved]
    sizes = {one.fsdp_group: one.bytes for one in sorted(of_fsdp, key=lambda one: one.bytes)}
    small = {group: nbytes for group, nbytes in sizes.items() if nbytes <= SMALL_GROUP_BYTES}
    if len(small) >= MIN_GROUPS:
        share = 1 - math.ceil(sum(small.values()) / SMALL_GROUP_BYTES) / len(small)
        run = [one for one in of_fsdp if one.fsdp_group in small]
        groups = f"{len(small)} FSDP groups of {max(small.values()):,} bytes or less"
        change = "pass larger blocks to fully_shard, or a list of several modules"
        count, ns = round(len(run) * share), _cost_of_groups_ns(observed, run) * share
        yield _advice(f"{groups} gathered and reduced one by one", run, change, count, "collective", ns)


def _cost_of_groups_ns(observed: Observed, events: Sequence[Collective]) -> float:
    """Return the cost of collectives of FSDP, with its copies and hooks."""
    every = _own_collectives(observed)
    of_fsdp = [one for one in every if one.fsdp_group]
    hooks = Part.FSDP_COPIES, Part.FSDP_PYTHON
    in_hooks_ns = observed.cost_ns(events, of_fsdp, lambda cell: cell.part in hooks)
    return observed.cost_ns(events, every, _communicates) + in_hooks_ns


def scattered_tensors(observed: Observed) -> Iterator[Advice]:
    """Advise if ``distribute_tensor`` sends several tensors, which every rank may already have."""
    lines = {_line(one.place) for one in observed.last(Wrapping) if one.name == "distribute_tensor"}
    every = _own_collectives(observed)
    sent = [one for one in every if one.kind in ("scatter", "broadcast") and _line(one.place) in lines]
    if len(sent) > 1:
        seen = f"{len(sent)} tensors sent to all ranks by distribute_tensor"
        change = "if every rank has them, pass src_data_rank=None"
        ns = observed.cost_ns(sent, every, _communicates)
        yield _advice(seen, sent, change, len(sent), "collective", ns)


# Reads by the host


def partial_reads(observed: Observed) -> Iterator[Advice]:
    """Advise if the host reads a partial DTensor, whose value is the share of one rank."""
    if reads := [one for one in observed.last(Read) if one.is_partial]:
        values = plural(len(reads), "partial value")
        yield Advice(
            f"{values} read at {where(_lines_of(reads))}: each rank reads its own share",
            "reduce before the read, by full_tensor()",
            f"makes {values} equal on all ranks",
            len(reads),
            source_lines=line_texts(_lines_of(reads)),
        )


def repeated_reads(observed: Observed) -> Iterator[Advice]:
    """Advise if the host reads several values in each step, and waits for the device each time."""
    reads = observed.recurring(Read, lambda one: (one.op, one.place))
    if len(reads) > 1:
        change = "keep values on the device, or stack them and read them once, after the step"
        seen, count = f"{len(reads)} reads by the host", len(reads) - 1
        yield _advice(seen, reads, change, count, "wait", rest=" for the device")


# Wrapping


def _convert_ns(observed: Observed, events: Sequence[Wrapping], forward_only: bool = False) -> float:
    """Return the cost of conversions in nanoseconds, including those of their gradients."""
    every = (*observed.last(Wrapping), *observed.last(Unwrapping))
    names = {one.name for one in events}
    same_name = [one for one in every if one.name in names and one.tensor_number]
    return observed.cost_ns(
        events, same_name, lambda cell: cell.part == Part.WRAPPING and cell.op in names, forward_only
    )


def _of_gradients(observed: Observed, wraps: Sequence[Wrapping]) -> list[Redistribution]:
    """Return redistributions of gradients of wraps, except at lines that redistribute such tensors."""
    shapes = {(_line(one.place), one.tensor) for one in wraps} - {
        (_line(one.place), one.tensor) for one in _explicit(observed)
    }
    explicit = (one for one in observed.last(Redistribution) if _is_backward(one) and not one.is_implied)
    return [one for one in explicit if (_line(one.place), one.tensor) in shapes]


def repeated_conversions(observed: Observed) -> Iterator[Advice]:
    """Advise if a tensor is wrapped or unwrapped several times in a phase.

    Each wrap may redistribute a gradient.
    """
    for kind, result in ((Wrapping, "DTensor"), (Unwrapping, "local tensor")):
        numbered = [one for one in observed.last(kind) if one.tensor_number]
        same = _grouped(numbered, lambda one: (one.name, one.tensor_number, one.placements, _phase(one)))
        repeated = (group for group in same if len(group) > 1)
        for groups in _layered(repeated, lambda one: (one.name, one.tensor)):
            every = [*chain(*groups)]
            others, leading = _repeats(observed, groups)
            share, count = len(others) / len(every), len(others) + len(leading)
            moved = _of_gradients(observed, every) if kind is Wrapping else []
            saved = round(len(moved) * share)
            gradients = f" and {plural(saved, 'redistribution')}" if saved else ""
            tensor, name = every[0].tensor, every[0].name
            seen = f"{tensor} {' '.join(every[0].placements)} given to {name} {_times(groups)}"
            change = f"keep the {result} of the first call"
            ns = _convert_ns(observed, others) + _convert_ns(observed, leading, forward_only=True)
            ns += observed.cost_ns(moved, moved, _moves_explicitly) * share
            yield _advice(seen, every, change, count, "call", ns, f" of {name}{gradients}")


def wrapped_parameters(observed: Observed) -> Iterator[Advice]:
    """Advise if parameters are converted to DTensors in each step."""
    wrapped = observed.recurring(Wrapping, lambda one: one.is_parameter and one.tensor_number)
    parameters = ([one] for one in wrapped if one.is_parameter and one.tensor_number)
    for groups in _layered(parameters, lambda one: (one.name, one.placements)):
        every = [*chain(*groups)]
        count, name = len({one.tensor_number for one in every}), every[0].name
        seen = f"{plural(count, 'parameter')} given to {name} in each step"
        change, ns = "make the DTensor once, and let it be the parameter", _convert_ns(observed, every)
        yield _advice(seen, every, change, len(every), "call", ns, f" of {name}")


# Optimizers, misses, growth, modules


def slow_optimizer(observed: Observed) -> Iterator[Advice]:
    """Advise if an optimizer runs ops on DTensors that one fused op or ops on local tensors can replace."""
    cells = [cell for cell in observed.cells if cell.place and cell.place.phase is Phase.OPTIMIZER]
    dispatched = [cell for cell in cells if cell.part == Part.DISPATCH]
    calls = round(sum(cell.calls for cell in dispatched))
    is_fused = any(cell.op.startswith("_fused_") for cell in dispatched)
    one = next(iter(observed.optimizers)) if len(observed.optimizers) == 1 else None
    if one is None or one.name not in ELEMENTWISE or calls < 4 or is_fused:
        return
    by_lists = any(cell.op.startswith("_foreach_") for cell in dispatched)
    if one.fuses:
        change = f"give {one.name} fused=True{' in place of foreach' * by_lists}"
        change = MIXED if one.is_mixed else change
    elif one.is_partial:  # a local tensor is only one summand of its gradient
        return
    else:
        change = "step on the local tensors: the result is the same"
    # Dispatch of one op over all lists costs as much as that of several ops over parts of them.
    stays = {Part.LOCAL, Part.DISPATCH} if by_lists and one.fuses else {Part.LOCAL}
    seen = f"{one.name} steps {'by lists of' if by_lists else 'op by op over'} DTensors"
    ns = sum(cell.ns for cell in cells if cell.part not in stays)
    yield _advice(seen, dispatched, change, calls, "op", ns)


def recurring_misses(observed: Observed) -> Iterator[Advice]:
    """Advise if ops miss in each step for the same cause, at one or several lines."""
    again = observed.recurring(Miss, lambda one: (one.op, one.cause, one.place))
    avoidable = (one for one in again if one.remedy and (one.is_direct or one.remedy is not Remedy.NUMBER))
    for groups in _layered(_grouped(avoidable, _origin), lambda one: one.remedy):
        missed = [*chain(*groups)]
        ops = [op.partition(".")[0] for op in dict.fromkeys(one.op for one in missed)]
        lines, count = _lines_of(missed), len(missed)
        listed = ", ".join(first_of(ops, MAX_LINES))
        seen = f"{listed} missed in each step at {where(lines)}, {missed[0].reason}"
        saves = f"saves at most {plural(count, 'miss', 'es')}"
        ns = observed.cost_ns(missed, observed.last(Miss), lambda cell: cell.part == Part.PROPAGATION)
        yield Advice(seen, missed[0].remedy, saves, count, ns, source_lines=line_texts(lines))


def _origin(miss: Miss) -> Hashable:
    """Return the key of a cause: the remedy, and the values of a number or the op that is not cached."""
    is_of_op = miss.remedy is Remedy.UNCACHED
    return miss.remedy, miss.op if is_of_op else miss.remedy is not Remedy.SHAPE and miss.values


def growth(observed: Observed) -> Iterator[Advice]:
    """Advise if each step adds the same number of live DTensors, sharding specs or cached plans."""
    missed = observed.last(Miss)
    if missed:  # each miss adds a cache entry, which holds specs
        direct = [one for one in missed if one.is_direct]
        if direct and not any(recurring_misses(observed)):
            such = f", as of {direct[0].op} at {where(_lines_of(direct))}"
            change = "give ops what they were given before"
            yield from _grown(observed, most_growth, "cached plan", such, change)
        return
    change = "keep nothing beyond the step that holds them"
    held = f", as {observed.steps[-1].kept}" if observed.steps and observed.steps[-1].kept else ""
    tensors = [*_grown(observed, lambda step: step.dtensor_growth, "live DTensor", held, change)]
    yield from tensors or _grown(observed, lambda step: step.spec_growth, "live sharding spec", "", change)


def _grown(
    observed: Observed, grown: Callable[[StepCounts], int], noun: str, such: str, change: str
) -> Iterator[Advice]:
    """Advise if several steps grew by the same number; name the line that wraps as many if it is unique."""
    counts = {grown(step) for step in observed.steps}
    if len(observed.steps) > 1 and len(counts) == 1 and (count := max(counts)) > 0:
        wraps = _grouped(observed.last(Wrapping), lambda one: (one.name, one.place))
        equal = [group for group in wraps if len(group) == count]
        origin = ""
        if len(equal) == 1:
            origin = f", as many as {equal[0][0].name} makes at {where(_lines_of(equal[0]))}"
        seen = f"{plural(count, noun)} more after each step{such}{origin}"
        yield Advice(seen, change, "saves memory and no time", count, grows=True)


def elementwise_modules(observed: Observed) -> Iterator[Advice]:
    """Advise if dispatch of a module costs many times its local ops, which only need the local shard."""
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
            seen = f"dispatch and autograd cost {many_ns / max(local_ns, 1):,.0f} times the local ops"
            change = "run the module on local tensors, by local_map"
            saved_ns = ns[Part.DISPATCH] * left / calls  # plain tensors have autograd nodes too
            yield _advice(seen, dispatched, change, left, "op", saved_ns)


def _needs_others(cell: Cell) -> bool:
    """Return whether an op may need elements of other ranks, so that local tensors do not suffice."""
    moves = _moves(cell) or _communicates(cell) or cell.part == Part.WRAPPING
    is_forward = cell.place is not None and cell.place.phase is Phase.FORWARD
    return (moves and is_forward) or MIXING.search(cell.op) is not None


def old_objects_collected(observed: Observed) -> Iterator[Advice]:
    """Advise if collections of the oldest generation, which visit the whole heap, run within steps."""
    found = observed.collector
    if found and found.share is not None and found.oldest_ns >= MIN_SHARE * found.wall_ns:
        yield Advice(
            f"garbage of the whole heap collected {found.oldest:,} times in {plural(found.steps, 'step')}",
            "call gc.freeze() after the warm-up, and gc.collect() between steps",
            "saves at most these pauses",
            found.oldest,
            found.oldest_ns / found.steps,
            found.oldest_ns / found.wall_ns,
        )


RULES: tuple[Callable[[Observed], Iterator[Advice]], ...] = (
    repeated_redistributions,
    there_and_back,
    gathered_one_by_one,
    implied_redistributions,
    repeated_implied_redistributions,
    matrices_gathered_again,
    logits_gathered,
    gradients_reduced_again,
    sums_one_by_one,
    numbers_one_by_one,
    gradients_reduced_in_each_pass,
    groups_gathered_again,
    small_groups,
    scattered_tensors,
    partial_reads,
    repeated_reads,
    slow_optimizer,
    repeated_conversions,
    wrapped_parameters,
    recurring_misses,
    growth,
    elementwise_modules,
    old_objects_collected,
)
