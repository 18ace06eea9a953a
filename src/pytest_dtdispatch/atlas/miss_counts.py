"""Count what one miss of a signature does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.atlas.model import AtlasRow, Counts, Move
from pytest_dtdispatch.atlas.survey import MeshOf, Surveyed
from pytest_dtdispatch.measuring.op_call import OpCall, tensor_text
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import Redistribution, StepCounts
from pytest_dtdispatch.torchapi.ops import arguments_of, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import tensor_traits

# A counter collects garbage after each signature, the slower the more has come since it was entered.
BATCH = 100


def check_that_counts_can_be_had() -> None:
    """Find out at once, and not when all is measured."""
    with StepCounter():
        pass


def counted(surveyed: Sequence[Surveyed], mesh_of: MeshOf) -> Iterator[AtlasRow]:
    """Run every signature that can be run once more, on a miss, and count what that does."""
    for first in range(0, len(surveyed), BATCH):
        yield from _counted_batch(surveyed[first : first + BATCH], mesh_of)


def _counted_batch(surveyed: Sequence[Surveyed], mesh_of: MeshOf) -> Iterator[AtlasRow]:
    with StepCounter() as counter:
        caches = ShardingCaches()  # made where the counter sees them cleared
        for one in surveyed:
            if one.case is None or not one.row.visits:
                yield one.row
                continue
            call = one.case.on(mesh_of(one.case.layout.mesh))
            caches.clear()
            call.run()
            yield replace(one.row, counts=_counts(counter.lap(), call))


def _counts(step: StepCounts, call: OpCall) -> Counts:
    return Counts(
        propagations=sum(1 + miss.nested for miss in step.missed),
        moves=tuple(_move(one, call) for one in step.redistributions),
        collectives=step.collectives,
    )


def _move(moved: Redistribution, call: OpCall) -> Move:
    source, target = "".join(moved.source), "".join(moved.target)
    names = (
        argument.name
        for argument in arguments_of(call.func, call.args, call.kwargs)
        if f"{moved.tensor}{source}" in _tensors(argument.value)
    )
    return Move(tuple(names), moved.tensor, source, target)


def _tensors(value: Any) -> list[str]:
    traits = map(tensor_traits, tree_leaves(value))
    return [tensor_text(tensor) for tensor in traits if tensor]
