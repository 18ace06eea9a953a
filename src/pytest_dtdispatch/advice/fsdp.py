"""Rules on groups of parameters that FSDP2 gathers and reduces."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from operator import attrgetter

from pytest_dtdispatch.advice.model import (
    MAX_LINES,
    Finding,
    Observed,
    alike,
    bytes_of,
    is_backward,
    layered,
    repeats_of,
)
from pytest_dtdispatch.core.events import FsdpGroup
from pytest_dtdispatch.core.text import INDEX, first_of, grouped, plural
from pytest_dtdispatch.steps.events import Collective

SMALL_GROUP_BYTES = 2**17


def _of_groups(observed: Observed, is_gather: bool) -> list[Collective]:
    """Return the gathers or the reductions of groups, if the events are those of a recorded step."""
    every = observed.last(Collective) if observed.is_proved else []
    return [one for one in every if one.fsdp_group and (one.kind == "all_gather") == is_gather]


def _count_text(events: Iterable[Collective]) -> str:
    """Format collectives by kind: ``15 reduce_scatters and 15 all_reduces``."""
    kinds = grouped((one.kind, one) for one in events)
    return " and ".join(plural(len(same), kind) for kind, same in kinds.items())


def _modules(observed: Observed, groups: Collection[int]) -> str:
    """Return the modules of groups; ``the model`` if no other group was gathered or reduced."""
    of_step = {one.fsdp_group for one in observed.every(Collective)} - {0}
    if of_step == set(groups):
        return "the model"
    names = {group: observed.groups[group].module or "the root module" for group in sorted(of_step)}
    others = {INDEX.sub("*", name) for group, name in names.items() if group not in groups}
    folded = {group: INDEX.sub("*", name) for group, name in names.items() if group in groups}
    # One text for all layers only if the change is for all of them.
    texts = (names[group] if text in others else text for group, text in folded.items())
    return ", ".join(first_of(list(dict.fromkeys(texts)), MAX_LINES))


def _saving(
    observed: Observed, events: Sequence[Collective], seen: str, change: str, saved: Sequence[Collective]
) -> Finding:
    """Return the finding that a change saves collectives, by kind."""
    saves = f"saves at most {_count_text(saved)}"
    return replace(observed.saving(events, seen, change, saved, "collective", claims=saved), saves=saves)


def micro_batches(observed: Observed) -> Iterator[Finding]:
    """Advise if FSDP2 reduces gradients in several passes that nothing uses before the last."""
    saved: defaultdict[str, list[Collective]] = defaultdict(list)  # by change, with a placeholder for modules
    reductions = ((one.fsdp_group, one) for one in _of_groups(observed, is_gather=False))
    for number, reduced in grouped(reductions).items():
        by_pass = grouped((one.after, one) for one in reduced)
        passes = [by_pass[after] for after in sorted(by_pass)]
        skipped = [one for one, other in pairwise(passes) if other[0].accumulates]
        if skipped:
            change = "call set_requires_gradient_sync(False) on {} before all passes but the last"
            if len(passes) - len(skipped) > 1:
                change += " before each use of the gradients"
            sums_in = observed.groups[number].sums_in
            if sums_in:
                policy = "reduce_dtype=torch.float32 in the policy"
                change += f", with {policy}: else they are summed in {sums_in}"
            saved[change] += chain(*skipped)
    for change, others in saved.items():
        groups = {one.fsdp_group for one in others}
        nbytes = sum(max(one.bytes for one in same) for same in alike(others, "fsdp_group"))
        seen = f"gradients of {plural(len(groups), 'FSDP group')} reduced in several backward passes"
        keeps = f"; this keeps {nbytes:,} bytes of gradients"
        yield _saving(observed, others, seen, change.format(_modules(observed, groups)) + keeps, others)


def repeated_gathers(observed: Observed) -> Iterator[Finding]:
    """Advise if FSDP2 gathers a group for each call of a module in a row, such as lm_head for each chunk.

    The group of the module around it is gathered anyway, and can have these parameters too.
    """
    gathers = _of_groups(observed, is_gather=True)
    reduced = _of_groups(observed, is_gather=False)
    passes = [(one.fsdp_group, one.after, one.phase) for one in gathers]
    again = {one[0] for one, other in pairwise(passes) if one == other}
    gathered = {0, *(one.fsdp_group for one in gathers)}  # 0: the module around it has no group yet
    each = (
        [one for one in gathers if one.fsdp_group == group]
        for group in sorted(again)
        if observed.groups[group].parent in gathered and _can_leave(observed, group)
    )
    for groups in layered(each, attrgetter("bytes")):
        every, numbers = [*chain(*groups)], {one.fsdp_group for one in chain(*groups)}
        reductions = [one for one in reduced if one.fsdp_group in numbers]
        also = f" and {_count_text(reductions)}" if reductions else ""
        left = [group[0] for group in groups if not observed.groups[group[0].fsdp_group].parent]
        repeats = f" in each of {len(groups)} places" if len(groups) > 1 else ""
        yield Finding(
            every,
            f"{every[0].bytes:,} bytes of an FSDP group gathered {len(groups[0])} times{repeats}",
            f"leave {_modules(observed, numbers)} to the group of the module around it, gathered once",
            len(every) - len(left),
            "all_gather",
            also,
            ns=observed.ns_of([*every, *reductions]),
            bytes=bytes_of([*every, *reductions]) - bytes_of(left),
            claims=[*every, *reductions],
        )


def _can_leave(observed: Observed, group: int) -> bool:
    """Return whether the group of the module around a group can have its parameters.

    That module must call it; if it has no group yet, names of modules decide.
    """
    own = observed.groups[group]
    parent = observed.groups.get(own.parent, own)
    lines = (one.place for one in observed.every(Collective) if one.fsdp_group == group)
    is_named = all(line is not None and line.module == own.module for line in lines)
    is_inside = not own.is_root and bool(own.parent or is_named)
    return is_inside and not own.casts and (own.layout, own.is_frozen) == (parent.layout, parent.is_frozen)


def gathered_again(observed: Observed) -> Iterator[Finding]:
    """Advise if FSDP2 gathers a group again although nothing has written to its parameters.

    One gather in forward and one in backward are the purpose of FSDP2, except in several passes.
    """
    by_change: defaultdict[str, list[list[Collective]]] = defaultdict(list)
    of_contents = alike(_of_groups(observed, is_gather=True), "fsdp_group", "contents")
    values = Counter(gathers[0].fsdp_group for gathers in of_contents)
    for gathers in of_contents:
        in_backward = any(map(is_backward, gathers))
        # Other models may run backward between the forward and the backward of one pass.
        by_phase = grouped((is_backward(one), one.after) for one in gathers).values()
        is_again = not in_backward or any(len({*passes}) > 1 for passes in by_phase)
        if len(gathers) > 1 and is_again and _is_unused(observed, gathers):
            group = observed.groups[gathers[0].fsdp_group]
            has_backward, is_written = in_backward or group.stays_gathered, values[group.number] > 1
            by_change[_change_to_keep(group, has_backward, is_written)].append(gathers)
    for change, groups in by_change.items():
        again = repeats_of(groups)
        numbers = {one.fsdp_group for one in again}
        others = again
        if any(map(is_backward, again)):  # without resharding after forward, no backward gathers
            written = repeats_of(gathers for gathers in of_contents if gathers not in groups)
            others = again + [one for one in written if one.fsdp_group in numbers and is_backward(one)]
        held = sum(gathers[0].bytes for gathers in groups)
        seen = f"{plural(len(numbers), 'unchanged FSDP group')} gathered {len(again) + len(groups)} times"
        keeps = f"; this keeps {held:,} bytes gathered"
        every = [*chain(*groups)]
        yield _saving(observed, every, seen, change.format(_modules(observed, numbers)) + keeps, others)


def _is_unused(observed: Observed, gathers: Sequence[Collective]) -> bool:
    """Return whether the program uses neither shards nor gradients of a group between its gathers.

    While a group is gathered, its modules have other parameters, which are no DTensors, without gradients.
    """
    first, last = gathers[0], gathers[-1]
    own = [one for one in observed.every(Collective) if one.fsdp_group == first.fsdp_group]
    reduced = [one for one in own if one.kind != "all_gather" and first.after <= one.after <= last.after]
    later = (one for one in reduced if one.after > reduced[0].after)
    return first.uses == last.uses and all(one.accumulates for one in later)


def _change_to_keep(group: FsdpGroup, has_backward: bool, is_written: bool) -> str:
    """Return the change that keeps a group gathered, with a placeholder for its modules."""
    if not has_backward:
        before = "call set_reshard_after_forward(False) and unshard() on each group of {} before these calls"
        return f"{before}, and reshard() after them"
    keep = "call set_reshard_after_backward(False) on {} before all passes but the last"
    keep += " before each write to them" if is_written else ""
    return keep if group.stays_gathered else f"pass reshard_after_forward=False, and {keep}"


def small_groups(observed: Observed) -> Iterator[Finding]:
    """Advise if FSDP2 gathers and reduces several groups of few bytes, such as one for each linear layer."""
    of_fsdp = [*_of_groups(observed, is_gather=True), *_of_groups(observed, is_gather=False)]
    sizes: defaultdict[int, int] = defaultdict(int)  # in the order of the first gathers
    for one in of_fsdp:
        sizes[one.fsdp_group] = max(sizes[one.fsdp_group], one.bytes)

    def layout(number: int) -> Hashable:
        """Return a key of groups that can be one group."""
        group, is_small = observed.groups[number], sizes[number] <= SMALL_GROUP_BYTES
        return is_small, group.layout, group.parent, group.is_frozen, group.stays_gathered

    # Only modules that run one after the other can be one group.
    runs = [[*run] for _, run in groupby(sizes, layout)]
    small = [run for run in runs if len(run) > 1 and sizes[run[0]] <= SMALL_GROUP_BYTES]
    every = {group for run in small for group in run}
    if len(every) < 3:
        return
    merged_bytes = 2**20  # as DDP's first bucket
    left = sum(math.ceil(sum(sizes[group] for group in run) / merged_bytes) for run in small)
    share = 1 - left / len(every)
    ran = [one for one in of_fsdp if one.fsdp_group in every]
    groups = f"{len(every)} FSDP groups of {max(sizes[group] for group in every):,} bytes or less"
    change = "pass larger blocks to fully_shard, or a list of modules that run one after the other"
    count, ns = round(len(ran) * share), observed.ns_of(ran) * share
    yield Finding(ran, f"{groups} run {_count_text(ran)}", change, count, "collective", ns=ns)
