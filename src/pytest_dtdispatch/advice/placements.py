"""Rules on redistributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from pytest_dtdispatch.advice.model import (
    CONVERT_ONCE,
    MIN_SUMS,
    Finding,
    Observed,
    alike,
    bytes_of,
    is_backward,
    layered,
    line_of,
    repeats_in_pass,
    repeats_of,
    times_text,
)
from pytest_dtdispatch.core.events import Phase
from pytest_dtdispatch.core.text import grouped, plural
from pytest_dtdispatch.steps.events import Redistribution, placement_change

# With 2 KiB of logits loss_parallel took 7.5 times as long, with 32 MiB 0.56 times. Sizes between: untried.
MIN_LOGITS_BYTES = 2**22


def _implied(observed: Observed) -> list[Redistribution]:
    return [one for one in observed.last(Redistribution) if one.is_implied]


def _explicit(observed: Observed) -> list[Redistribution]:
    """Return redistributions at lines of the program, except those of gradients, which have no number."""
    explicit = (one for one in observed.last(Redistribution) if not one.is_implied)
    return [one for one in explicit if one.tensor_number and (one.input or not one.via)]


def _is_partial(placements: Sequence[str]) -> bool:
    return any("P" in placement for placement in placements)


def _is_gathered(one: Redistribution) -> bool:
    """Return whether a redistribution only gathers shards, over some or all mesh dimensions."""
    pairs = zip(one.source, one.target, strict=True)
    is_whole = all(target in (source, "R") for source, target in pairs)
    return is_whole and bool(one.bytes) and not _is_partial(one.source)


def _moved_text(one: Redistribution) -> str:
    return f"{one.tensor} {placement_change(one.source, one.target)}"


def _saving(
    observed: Observed, seen: str, change: str, events: list[Redistribution], saved: list[Redistribution]
) -> Finding:
    """Return advice to omit some of several explicit redistributions; without a proof, a fact."""
    is_unique = any(one.is_result_unique for one in events)
    proved = change if observed.is_proved and not is_unique else ""
    return observed.saving(events, seen, proved, saved, claims=saved)


def there_and_back(observed: Observed) -> Iterator[Finding]:
    """Advise if the unchanged result of a redistribution is redistributed to the original placements."""
    change = "use the tensor that it was before"
    for groups in _undone(observed):
        if groups[0][0].result_number == groups[0][-1].tensor_number:
            yield _undone_finding(observed, groups, "there and back", change)


def needless_pairs(observed: Observed) -> Iterator[Finding]:
    """Advise if only elementwise ops are between redistributions and the one that undoes them."""
    how = "there and back, with only elementwise ops in between"
    change = "run these ops with the original placements"
    for groups in _undone(observed):
        yield _undone_finding(observed, groups, how, change)


def _undone(observed: Observed) -> list[list[list[Redistribution]]]:
    """Return groups of redistributions with the one that undoes them, if nothing else uses their results."""
    every, left = observed.every(Redistribution), {id(one) for one in _explicit(observed)}
    found = []
    for group in ([*(every[position] for position in one.undoes), one] for one in every if one.undoes):
        is_used = group[-1].forward_uses or any(one.result_uses > 1 or one.other_uses for one in group[:-1])
        if left.issuperset(map(id, group)) and not is_used:
            found.append(group)
            left.difference_update(map(id, group))  # the last of one group may be the first of another
    return layered(found, attrgetter("tensor", "source", "target"))


def _undone_finding(
    observed: Observed, groups: Sequence[Sequence[Redistribution]], how: str, change: str
) -> Finding:
    first, last = groups[0][0], groups[0][-1]
    path = f"{' '.join(first.source)} -> {placement_change(last.source, last.target)}"
    every = [*chain(*groups)]
    saved = [*every, *observed.gradients_of(every, Redistribution)]
    return _saving(observed, f"{first.tensor} {path} redistributed {how}", change, every, saved)


def repeated_redistributions(observed: Observed) -> Iterator[Finding]:
    """Advise if a tensor is redistributed several times to the same placements, as for q, k and v."""
    of_tensors = alike(_explicit(observed), "tensor_number", "mesh", "target", "options", "phase")
    repeated = (group for group in of_tensors if len(group) > 1)
    for groups in layered(repeated, attrgetter("tensor", "source", "target")):
        seen = f"{_moved_text(groups[0][0])} redistributed {times_text(groups)}"
        saved = [*repeats_of(groups), *observed.gradients_of(repeats_in_pass(groups), Redistribution)]
        is_planned = all(len({one.input for one in group}) == 1 and group[0].input for group in groups)
        change = CONVERT_ONCE if is_planned else "redistribute it once before"
        yield _saving(observed, seen, change, [*chain(*groups)], saved)


def gathered_parameters(observed: Observed) -> Iterator[Finding]:
    """Advise if a module gathers a parameter of one dimension in each step, such as the weight of a norm."""
    vectors = (one for one in _explicit(observed) if one.is_parameter and "," not in one.tensor)
    in_modules = (one for one in vectors if one.place and one.place.module and not one.own_writes)
    gathered = [one for one in in_modules if _is_gathered(one) and "S" not in "".join(one.target)]
    # A partial gradient is reduced there; that of a replicated one is reduced by each op that takes it.
    of_gradients = ((one, observed.gradients_of([one], Redistribution)) for one in gathered)
    unreduced = (one for one, moves in of_gradients if not any(_is_partial(each.source) for each in moves))
    keyed = (((one.place and (one.place.file, one.place.line), one.mesh), one) for one in unreduced)
    # Clipping redistributes the norms of replicated gradients to those of sharded ones, one by one.
    is_clipped = any(one.phase is Phase.CLIPPING for one in observed.every(Redistribution))
    for group in grouped(keyed).values():
        seen = f"{plural(len(group), 'parameter')} of one dimension gathered by modules"
        saved = [*group, *([] if is_clipped else observed.gradients_of(group, Redistribution))]
        yield _saving(observed, seen, "place them as Replicate()", group, saved)


def gathered_one_by_one(observed: Observed) -> Iterator[Finding]:
    """Advise if tensors that outlive the step, such as parameters, are gathered one by one, as in a loop.

    Gathers in modules are excluded, because a module gathers a tensor when it needs it.
    """
    lasting = observed.recurring(Redistribution, attrgetter("memory_number"))
    explicit = {id(one) for one in _explicit(observed)}
    first = {one.memory_number: one for one in reversed(lasting) if one.memory_number and id(one) in explicit}
    in_forward = (one for one in first.values() if _is_gathered(one) and one.phase is Phase.FORWARD)
    in_program = (one for one in in_forward if not (one.depth or (one.place and one.place.module)))
    keyed = (((line_of(one.place), one.mesh, one.is_even), one) for one in in_program)
    for group in grouped(keyed).values():
        of_dtype = grouped(((one.tensor.partition("[")[0], one.source), one) for one in group).values()
        bucket_bytes = 25 * 2**20  # as in DDP: larger buckets are hardly faster
        count = len(group) - sum(math.ceil(bytes_of(each) / bucket_bytes) for each in of_dtype)
        if count >= MIN_SUMS - 1 and observed.is_proved:
            pad = "" if group[0].is_even else "pad their local shards to one size, which are uneven, and "
            seen, ns = f"{len(group)} tensors gathered one by one", observed.ns_of(group) * count / len(group)
            change = f"{pad}concatenate their local shards, and gather the result in buckets"
            yield Finding(group, seen, change, count, "redistribution", ns=ns)


def matrices_gathered_again(observed: Observed) -> Iterator[Finding]:
    """Advise if an optimizer gathers each matrix several times, as for products of matrices in Muon.

    The redistributions include those of partial products and norms at the same lines, which gathered matrices
    do not need.
    """
    stepping = [one for one in _implied(observed) if one.matrices and one.bytes]
    for same in alike(stepping, "matrices", "mesh"):
        matrices = same[0].matrices
        gathers = [one for one in same if _is_gathered(one) and "," in one.tensor]
        if len({one.tensor_number or id(one) for one in gathers}) <= matrices:
            continue
        files = {one.place.file for one in gathers if one.place}
        group = [one for one in same if one.place and one.place.file in files]
        count, remaining = len(group) - matrices, sorted(one.bytes for one in gathers)[-matrices:]
        seen = f"{matrices} sharded matrices redistributed {len(group)} times"
        change = "gather each matrix once: redistribute its gradient to R before the step of the optimizer"
        ns, nbytes = observed.ns_of(group) * count / len(group), bytes_of(group) - sum(remaining)
        yield Finding(group, seen, change, count, "redistribution", ns=ns, bytes=nbytes)


def _is_of_logits(one: Redistribution) -> bool:
    """Return whether a redistribution moves logits that are sharded by class, on one mesh dimension."""
    is_by_class = one.source == (f"S{one.tensor.count(',')}",) and (one.is_implied or one.target == ("R",))
    return one.is_for_loss and is_by_class and (one.is_implied or one.other_uses <= 1)


def logits_gathered(observed: Observed) -> Iterator[Finding]:
    """Advise if logits that are sharded by class are gathered for a cross entropy.

    Since torch 2.15 a cross entropy shards logits by row, gathers the log-probabilities, and shards labels.
    """
    softmaxes = [one for one in _implied(observed) if one.op.startswith("_log_softmax")]
    refused = {one.tensor_number for one in softmaxes if one.tensor_number and not one.is_for_loss}
    of_logits = [one for one in observed.last(Redistribution) if _is_of_logits(one)]
    of_logits = [one for one in of_logits if one.tensor_number not in refused]
    of_loss = (one for one in _implied(observed) if one.op.startswith(("_log_softmax", "nll_loss")))
    at_line = grouped((line_of(one.place), one) for one in of_loss if not _is_of_logits(one))
    for line, logits in grouped((line_of(one.place), one) for one in of_logits).items():
        first = logits[0]
        rest = at_line.get(line, [])
        group = [*logits, *(one for one in rest if one.tensor == first.tensor or not one.bytes)]
        if max(one.bytes for one in group) >= MIN_LOGITS_BYTES:
            change = "keep it sharded, and run the loss and its backward in "
            seen = f"{_moved_text(first)} redistributed for a cross entropy"
            change += "torch.distributed.tensor.parallel.loss_parallel()"
            yield observed.saving(group, seen, change, group)


def gradients_reduced_again(observed: Observed) -> Iterator[Finding]:
    """Advise if several ops of an optimizer reduce the same partial gradient, such as three ops of AdamW."""
    reduced = (one for one in _implied(observed) if one.is_gradient and _is_partial(one.source))
    in_optimizer = (one for one in reduced if one.phase is Phase.OPTIMIZER)
    again = [group for group in alike(in_optimizer, "tensor_number") if len(group) > 1]
    if again:
        others = repeats_of(again)
        seen = f"{plural(len(again), 'partial gradient')} reduced {len(others) + len(again)} times"
        change = "redistribute each gradient once before the step of the optimizer"
        yield observed.saving([*chain(*again)], seen, change, others)


def sums_one_by_one(observed: Observed) -> Iterator[Finding]:
    """Advise if independent partial scalars are reduced one by one, such as the norm of each parameter."""
    every = observed.last(Redistribution) if observed.is_proved else []
    own = (one for one in every if one.place and not (one.via or one.is_written_later))
    numbers = (one for one in own if one.tensor.endswith("[]"))
    reduced = (one for one in numbers if _is_partial(one.source) and not _is_partial(one.target))
    for group in alike(reduced, "tensor", "mesh", "source", "target", "depth", "phase"):
        if len({one.tensor_number or id(one) for one in group}) >= MIN_SUMS:
            seen = f"{len(group)} partial results of one number reduced one by one"
            change = "stack them, and reduce the stack once, as torch.nn.utils.get_total_norm does"
            ns = observed.ns_of(group[1:])
            yield Finding(group, seen, change, len(group) - 1, "collective", ns=ns)


def unmerged_dimensions(observed: Observed) -> Iterator[Finding]:
    """Advise if redistributions reduce over each mesh dimension, and torch can reduce over all at once."""
    # With a flattened mesh, torch gathers uneven shards in the wrong order.
    uneven = {one.mesh for one in observed.every(Redistribution) if not one.is_even}
    several = [one for one in observed.last(Redistribution) if one.mergeable and one.mesh not in uneven]
    for group in alike(several, "mesh", "source", "target"):
        dimensions = 1 + group[0].mergeable
        moves = plural(len(group), "redistribution")
        seen = f"{moves} with one all_reduce for each of {dimensions} dimensions"
        change = "call _flatten() once on the mesh of these dimensions, before the first step"
        count, ns = sum(one.mergeable for one in group), observed.ns_of(group) * (1 - 1 / dimensions)
        nbytes = bytes_of(group) - bytes_of(group) // dimensions
        yield Finding(group, seen, change, count, "collective", ns=ns, bytes=nbytes)


def _implied_groups(observed: Observed) -> list[list[Redistribution]]:
    """Group implied redistributions of the program's lines by tensor."""
    moved = (one for one in _implied(observed) if one.bytes and not one.via)
    keyed = (((one.tensor_number or id(one), one.mesh, one.target, one.phase), one) for one in moved)
    return list(grouped(keyed).values())


def repeated_implied_redistributions(observed: Observed) -> Iterator[Finding]:
    """Advise if ops redistribute the same operand several times implicitly, as for q, k and v."""
    again = (group for group in _implied_groups(observed) if len(group) > 1)
    for groups in layered(again, attrgetter("op", "tensor", "source", "target")):
        every = [*chain(*groups)]
        if not all(map(is_backward, every)):
            yield _implied_finding(observed, every, "redistribute it once before", repeats_of(groups))


def implied_redistributions(observed: Observed) -> Iterator[Finding]:
    """Advise if an op redistributes an operand implicitly, and another placement of it needs no transfer.

    That is certain for a tensor that the step does not compute, and that only this op uses.
    """
    once = (group for group in _implied_groups(observed) if len(group) == 1)
    placed = (group for group in once if not _is_partial(group[0].source))
    for groups in layered(placed, attrgetter("op", "tensor", "source", "target", "free_dims")):
        every = [*chain(*groups)]
        if all(map(is_backward, every)):
            continue  # the program does not place a gradient
        is_free = all(one.is_lasting and one.uses == 1 for one in every)
        first, change = every[0], ""
        if is_free and all(one.operands > 1 for one in every):
            change = f"create the {first.tensor} as {' '.join(first.target)}, not {' '.join(first.source)}"
        elif is_free and first.free_dims and not any(one.output_uses for one in every):
            change = f"shard dimension {first.free_dims[0]} instead, which this op does not need whole"
        yield _implied_finding(observed, every, change, every)


def _implied_finding(
    observed: Observed, every: Sequence[Redistribution], change: str, saved: Sequence[Redistribution]
) -> Finding:
    ops, times = ", ".join(dict.fromkeys(one.op for one in every)), f" {len(every)} times"
    seen = f"{_moved_text(every[0])} implied by {ops}{times if len(every) > 1 else ''}"
    return observed.saving(every, seen, change if observed.is_proved else "", saved)
