"""Rules on optimizers, misses, growth, modules and the garbage collector."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from operator import attrgetter

from pytest_dtdispatch.advice.model import (
    MAX_LINES,
    MIN_CALLS,
    MIN_SHARE,
    Finding,
    Observed,
    communicates,
    layered,
    where,
)
from pytest_dtdispatch.core.events import FOREACH, REDISTRIBUTION, Part, Phase, ns_by_part
from pytest_dtdispatch.core.text import INDEX, first_of, grouped, plural
from pytest_dtdispatch.steps.events import Miss, Remedy, Wrapping
from pytest_dtdispatch.steps.model import StepCounts


def slow_optimizer(observed: Observed) -> Iterator[Finding]:
    """Advise if an optimizer of torch runs ops on DTensors that one op over lists can replace."""
    one = next(iter(observed.optimizers)) if len(observed.optimizers) == 1 else None
    cells = [cell for cell in observed.cells if cell.place and cell.place.phase is Phase.OPTIMIZER]
    recorded = [each for each in observed.recorded.ops if each.place and each.place.phase is Phase.OPTIMIZER]
    dispatched = [cell for cell in cells if cell.part == Part.DISPATCH]
    calls = sum(each.count for each in recorded if each.via)
    more = observed.recorded.calls - observed.steps[-1].calls if observed.steps else 0
    if 0 < more < calls:  # the first step also creates the state of the optimizer
        calls -= more
    calls = calls or round(sum(cell.calls for cell in dispatched))
    names = {each.op.partition(".")[0] for each in recorded if each.via} or {cell.op for cell in dispatched}
    by_lists = any(name.startswith("_foreach_") for name in names)
    has_lists = by_lists or not observed.is_steady
    is_best = one is None or not one.option or (has_lists and one.option == FOREACH) or one.is_partial
    if one is None or is_best or calls < MIN_CALLS or any(name.startswith("_fused_") for name in names):
        return
    ns, left = sum(cell.ns for cell in cells if cell.part != Part.LOCAL), one.lists
    if one.option == FOREACH:  # as many ops for each list as one tensor needs
        left *= round(calls / one.tensors) if one.tensors else len(names)
        ns = sum(cell.ns for cell in dispatched) * (1 - left / calls)
    elif by_lists:  # dispatch of one op over all lists costs as much as that of several over parts of them
        ns -= sum(cell.ns for cell in dispatched)
    replaced = " in place of foreach" if by_lists else ""
    change = f"pass {one.option} to {one.name}{replaced}"
    if not one.takes_meshes:
        change += ", with one optimizer for each mesh, as this torch has no such step over several"
    elif one.has_plain:
        change += ", and give plain parameters an optimizer of their own"
    seen = f"{one.name} steps {'by lists of' if by_lists else 'op by op over'} DTensors"
    if calls > left:
        yield Finding([*recorded, *dispatched], seen, change, calls - left, "op", ns=ns, claims=())


def recurring_misses(observed: Observed) -> Iterator[Finding]:
    """Advise if ops miss in each step for the same cause, at one or several lines."""
    again = observed.recurring(Miss, attrgetter("op", "cause", "place"))
    avoidable = (one for one in again if one.remedy and (one.is_direct or one.remedy is not Remedy.NUMBER))
    by_origin: defaultdict[Hashable, list[Miss]] = defaultdict(list)
    for one in avoidable:  # by the values of a number, or the op that is not cached
        differing: Hashable = "" if one.remedy is Remedy.SHAPE else one.values
        by_origin[one.remedy, one.op if one.remedy is Remedy.UNCACHED else differing].append(one)
    for groups in layered(by_origin.values(), attrgetter("remedy")):
        missed = [*chain(*groups)]
        ops = [op.partition(".")[0] for op in dict.fromkeys(one.op for one in missed)]
        seen, ending = f"{', '.join(first_of(ops, MAX_LINES))} missed in each step", f", {missed[0].reason}"
        ns = observed.ns_of(missed)
        yield Finding(missed, seen, missed[0].remedy, len(missed), "miss", ns=ns, ending=ending)


def new_plans(observed: Observed) -> Iterator[Finding]:
    """Advise if each step adds the same number of cached plans, and no other rule claims a miss."""
    missed = observed.last(Miss)
    direct = [one for one in missed if one.is_direct]
    count = _constant_growth(observed, attrgetter("max_cache_growth"))
    if count and direct and len(missed) == len(observed.every(Miss)):
        seen = f"{plural(count, 'cached plan')} more after each step, as of {direct[0].op}"
        ns, change = observed.ns_of(missed), "pass equal arguments in each step"
        yield Finding(direct, seen, change, len(missed), "miss", ns=ns, ending=f", {direct[0].reason}")


def growth(observed: Observed) -> Iterator[Finding]:
    """Advise if each step adds the same number of live DTensors or sharding specs."""
    if observed.every(Miss):  # each miss adds a cache entry, which holds specs
        return
    held = f", as {observed.steps[-1].kept}" if observed.steps and observed.steps[-1].kept else ""
    tensors = [*_grown(observed, attrgetter("dtensor_growth"), "live DTensor", held)]
    yield from tensors or _grown(observed, attrgetter("spec_growth"), "live sharding spec", "")


def _constant_growth(observed: Observed, grown: Callable[[StepCounts], int]) -> int:
    """Return by how many each of several steps grew; 0 if the numbers differ, as the growth may end."""
    counts = {grown(step) for step in observed.steps}
    return max(*counts, 0) if len(observed.steps) > 1 and len(counts) == 1 else 0


def _grown(observed: Observed, grown: Callable[[StepCounts], int], noun: str, such: str) -> Iterator[Finding]:
    """Advise if several steps keep as many; name the line that wraps as many if it is unique."""
    count = _constant_growth(observed, grown)
    if count:
        wraps = grouped(((one.name, one.place), one) for one in observed.every(Wrapping))
        equal = [group for group in wraps.values() if len(group) == count]
        origin = ""
        if len(equal) == 1:
            origin = f", as many as {equal[0][0].name} makes at {where(one.place for one in equal[0])}"
        seen = f"{plural(count, noun)} more after each step{such}{origin}"
        change = "keep nothing beyond the step that holds them"
        yield Finding((), seen, change, count, noun, saves="saves memory and no time")


def _contains(module: str, other: str) -> bool:
    """Return whether a module is another one, or may call it. The outermost one has the name of its class."""
    is_outermost = module[:1].isupper() and other != "" and not other[:1].isupper()
    return other == module or other.startswith(f"{module}.") or is_outermost


def elementwise_modules(observed: Observed) -> Iterator[Finding]:
    """Advise if dispatch of a module costs many times its local ops, which only need the local shard."""
    in_modules = ((cell.place.module, cell) for cell in observed.cells if cell.place and cell.place.module)
    of_module = grouped((INDEX.sub("*", module), cell) for module, cell in in_modules)
    aliasing = {"detach.default", "alias.default"}  # these only return another reference to a tensor
    others = (each for each in observed.recorded.ops if not (each.is_pointwise or each.op in aliasing))
    # Modules with ops that need more than the elements that this rank has.
    mixing = {INDEX.sub("*", each.place.module) for each in others if each.place}
    for module, cells in of_module.items():
        ns = ns_by_part(cells)
        many_ns, local_ns = ns[Part.DISPATCH] + ns[Part.AUTOGRAD], ns[Part.LOCAL]
        dispatched = [cell for cell in cells if cell.part == Part.DISPATCH]
        dispatched.sort(key=attrgetter("ns"), reverse=True)
        calls = round(sum(cell.calls for cell in dispatched))
        # A module on local tensors converts its input, weight and result, in forward and backward. Each costs
        # as much as one to three ops: with two, the predicted saving was 0.6 and 1.5 times the actual saving
        # of two models.
        left = calls - 6 * 2 * len({cell.place.module for cell in cells if cell.place})
        # Cells of data of other ranks, for which local tensors do not suffice.
        inside = chain.from_iterable(same for other, same in of_module.items() if _contains(module, other))
        moves = [c for c in inside if c.part in REDISTRIBUTION or communicates(c) or c.part == Part.WRAPPING]
        in_forward = any(cell.place is not None and cell.place.phase is Phase.FORWARD for cell in moves)
        is_local = not any(_contains(module, other) for other in mixing) and not in_forward
        step_ns = sum(cell.ns for cell in observed.cells)
        is_large = ns[Part.DISPATCH] * max(left, 0) >= MIN_SHARE * calls * step_ns
        is_slow = many_ns > 5 * local_ns  # it is 6 to 10 times for a small shard
        if left > 0 and is_slow and is_local and is_large and observed.recorded.ops:
            seen = f"dispatch and autograd cost {many_ns / max(local_ns, 1):,.0f} times the local ops"
            change = "run the module on local tensors, by local_map"
            saved_ns = ns[Part.DISPATCH] * left / calls  # plain tensors have autograd nodes too
            yield Finding(dispatched, seen, change, left, "op", ns=saved_ns)


def old_objects_collected(observed: Observed) -> Iterator[Finding]:
    """Advise if collections of the oldest generation, which visit the whole heap, run within steps."""
    found = observed.collector
    if found and found.share is not None and found.oldest_ns >= MIN_SHARE * found.wall_ns:
        times, steps = plural(found.oldest, "time"), plural(found.steps, "step")
        seen = f"garbage of the whole heap collected {times} in {steps}"
        change = "call gc.freeze() after the warm-up, and gc.collect() between steps"
        ns, share = found.oldest_ns / found.steps, found.oldest_ns / found.wall_ns
        saves = "saves at most these pauses"
        yield Finding((), seen, change, found.oldest, "collection", saves=saves, ns=ns, share=share)
